#include "sim/machine/host_processor.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <vector>

namespace foreshard {
namespace {

/// Upper bound by oneDNN's word: "AVX512_CORE_BF16" (cpu_isa_traits.cpp).
CpuIsa bound_of(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto is = [&word](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (is({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"})) return CpuIsa::Avx2;
  if (is({"AVX512_CORE", "AVX512_CORE_VNNI"})) return CpuIsa::Avx512;
  if (is({"AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512", "AVX10_2_512"})) return CpuIsa::Avx512Bf16;
  return CpuIsa::Amx;
}

std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value != nullptr) return value;
  return {};
}

}  // namespace

HostProcessor processor_of(std::string_view flags, std::string_view onednn, std::string_view aten) {
  std::istringstream words{std::string(flags)};
  const std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
  const auto has = [&all](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&all](const char* name) { return std::find(all.begin(), all.end(), name) != all.end(); });
  };
  HostProcessor out;
  const bool wide = has({"avx512f", "avx512bw", "avx512vl", "avx512dq"});
  CpuIsa own = CpuIsa::Avx2;
  if (wide) own = CpuIsa::Avx512;
  if (wide && has({"avx512_bf16", "avx512_vnni"})) own = CpuIsa::Avx512Bf16;
  if (own == CpuIsa::Avx512Bf16 && has({"amx_tile", "amx_int8", "amx_bf16"})) own = CpuIsa::Amx;
  out.isa = std::min(own, bound_of(std::string(onednn)));
  out.vectors = wide && has({"fma"}) ? "avx512" : has({"avx2", "fma"}) ? "avx2" : "default";
  if (aten == "default" || (aten == "avx2" && out.vectors == "avx512")) out.vectors = aten;
  return out;
}

HostProcessor host_processor() {
  std::string flags;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; flags.empty() && std::getline(info, line);)
    if (line.starts_with("flags")) flags = line.substr(std::min(line.find(':'), line.size() - 1) + 1);
  HostProcessor out =
      processor_of(flags, variable({"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}), variable({"ATEN_CPU_CAPABILITY"}));
#ifdef _SC_LEVEL2_CACHE_SIZE
  if (const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0) out.l2_bytes = bytes;
#endif
  return out;
}

}  // namespace foreshard
