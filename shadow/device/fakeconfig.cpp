// What the environment asks of the virtual GPU (README.md): its settings, and the failures on demand.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "shadow/device/fakegpu_state.h"

namespace fakegpu {

// ---------------------------------------------------------------- configuration

double env_num(const char* key, double dflt) {
  const char* v = getenv(key);
  return v && *v ? atof(v) : dflt;
}

static Config read_config() {
  Config c;
  const char* t = getenv("FAKEGPU_TIME");
  if (t && !strcmp(t, "instant")) c.mode = TimeMode::Instant;
  if (t && !strcmp(t, "lazy")) c.mode = TimeMode::Lazy;
  const char* cc = getenv("FAKEGPU_CC");
  if (cc) sscanf(cc, "%d.%d", &c.cc_major, &c.cc_minor);
  const char* nm = getenv("FAKEGPU_NAME");
  c.name = nm ? nm : "NVIDIA H100 80GB HBM3 (fake)";
  c.devices = (int)env_num("FAKEGPU_DEVICES", c.devices);
  c.sms = (int)env_num("FAKEGPU_SMS", c.sms);
  c.mem_gib = env_num("FAKEGPU_MEM_GIB", c.mem_gib);
  c.context_mib = env_num("FAKEGPU_CONTEXT_MIB", c.context_mib);
  c.nccl_comm_mib = env_num("FAKEGPU_NCCL_COMM_MIB", c.nccl_comm_mib);
  c.backed = env_num("FAKEGPU_BACKED", 0) != 0;
  c.log_queries = env_num("FAKEGPU_LOG_QUERIES", 1) != 0;
  const char* kernels = getenv("FAKEGPU_KERNELS");
  c.by_bytes = kernels && !strcmp(kernels, "bytes");
  c.d2h_byte = (int)env_num("FAKEGPU_D2H_BYTE", 0);
  c.launch_us = env_num("FAKEGPU_LAUNCH_US", c.launch_us);
  c.call_us = env_num("FAKEGPU_CALL_US", c.call_us);
  c.query_us = env_num("FAKEGPU_QUERY_US", c.query_us);
  c.malloc_us = env_num("FAKEGPU_MALLOC_US", c.malloc_us);
  c.kernel_us = env_num("FAKEGPU_KERNEL_US", c.kernel_us);
  c.ns_per_thread = env_num("FAKEGPU_NS_PER_THREAD", c.ns_per_thread);
  c.tflops_half = env_num("FAKEGPU_TFLOPS_HALF", c.tflops_half);
  c.tflops_single = env_num("FAKEGPU_TFLOPS_SINGLE", c.tflops_single);
  c.tflops_float8 = env_num("FAKEGPU_TFLOPS_FLOAT8", c.tflops_half);
  c.attention_tflops = env_num("FAKEGPU_TFLOPS_ATTENTION", 0.6 * c.tflops_half);
  c.hbm_gbps = env_num("FAKEGPU_HBM_GBPS", c.hbm_gbps);
  c.pcie_gbps = env_num("FAKEGPU_PCIE_GBPS", c.pcie_gbps);
  c.host_copy_gbps = env_num("FAKEGPU_HOST_COPY_GBPS", c.host_copy_gbps);
  c.nccl_gbps = env_num("FAKEGPU_NCCL_GBPS", c.nccl_gbps);
  c.nccl_inter_gbps = env_num("FAKEGPU_NCCL_INTER_GBPS", c.nccl_inter_gbps);
  c.nccl_lat_us = env_num("FAKEGPU_NCCL_LAT_US", c.nccl_lat_us);
  c.gpus_per_node = (int)env_num("FAKEGPU_GPUS_PER_NODE", c.gpus_per_node);
  c.queue = (int)env_num("FAKEGPU_QUEUE", 0);
  const char* events = getenv("FAKEGPU_EVENTS");
  c.late_events = events && !strcmp(events, "late");
  c.shuffled_events = events && !strcmp(events, "shuffled");
  c.malloc_waits = env_num("FAKEGPU_MALLOC_WAITS", 0) != 0;
  c.driver = (int)env_num("FAKEGPU_DRIVER", CUDART_VERSION);
  c.nccl_version = (int)env_num("FAKEGPU_NCCL_VERSION", 0);
  // As the driver reads it: cards up to the first that is none.
  if (const char* shown = getenv("CUDA_VISIBLE_DEVICES")) {
    int visible = 0;
    for (const char* at = shown; *at;) {
      char* end = nullptr;
      const long index = strtol(at, &end, 10);
      if (end == at || index < 0 || index >= c.devices) break;
      c.cards.push_back((int)index);
      visible++;
      at = *end == ',' ? end + 1 : end;
      if (*end && *end != ',') break;
    }
    c.devices = visible;
  }
  return c;
}

const Config& cfg() {
  static const Config c = read_config();
  return c;
}

State& st() {
  static State* s = new State;
  return *s;
}

std::recursive_mutex& lock() { return st().mu; }

// ---------------------------------------------------------------- failures on demand

// FAKEGPU_FAIL="API@N=CODE,...": the N-th call of API (from 1) returns CODE; "CODE+": and every later one; "CODE~": it
// goes well, and the next call that waits returns CODE. "R:API@...": in the process whose RANK is R.
struct WantedFailure {
  std::string api;
  long nth = 0, calls = 0;
  int code = 0;
  bool stays = false, late = false;
};
static int late_failure = 0;

static WantedFailure read_failure(const std::string& text) {
  WantedFailure f;
  char api[64] = {0}, how = 0;
  if (sscanf(text.c_str(), "%63[^@]@%ld=%d%c", api, &f.nth, &f.code, &how) < 3) {
    fprintf(stderr, "fakegpu: FAKEGPU_FAIL does not read API@N=CODE: %s\n", text.c_str());
    abort();
  }
  f.api = api;
  f.stays = how == '+';
  f.late = how == '~';
  return f;
}

static std::vector<WantedFailure> read_failures(const char* text) {
  std::vector<WantedFailure> wanted;
  const char *only = getenv("FAKEGPU_FAIL_RANK"), *rank = getenv("RANK");
  if (!text || (only && (!rank || strcmp(only, rank)))) return wanted;
  const std::string all = text;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find(',', at), all.size());
    std::string one = all.substr(at, end - at);
    at = end + 1;
    const size_t colon = one.find(':');
    if (colon != std::string::npos && (!rank || one.substr(0, colon) != rank)) continue;
    wanted.push_back(read_failure(colon == std::string::npos ? one : one.substr(colon + 1)));
  }
  return wanted;
}

static std::vector<WantedFailure>& wanted_failures() {
  static auto* wanted = new std::vector<WantedFailure>(read_failures(getenv("FAKEGPU_FAIL")));
  return *wanted;
}

void want_failures(const char* text) { wanted_failures() = read_failures(text); }

int injected(const char* api) {
  Guard lk(lock());
  for (WantedFailure& f : wanted_failures()) {
    if (f.api != api) continue;
    const long call = ++f.calls;
    if (call != f.nth && !(f.stays && call > f.nth)) continue;
    if (!f.late) return f.code;
    late_failure = f.code;
  }
  return 0;
}

cudaError_t work_fails(const char* api) {
  const int code = injected(api), lost = injected("device");
  return (cudaError_t)(code ? code : lost);
}
cudaError_t wait_fails(const char* api) {
  const cudaError_t now = work_fails(api);
  Guard lk(lock());
  return now ? now : (cudaError_t)std::exchange(late_failure, 0);
}

}  // namespace fakegpu
