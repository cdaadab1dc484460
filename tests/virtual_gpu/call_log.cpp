#include "tests/virtual_gpu/call_log.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace foreshard::exec {
namespace {

template <class F>
F* device_function(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) throw std::runtime_error("the virtual device is not loaded: LD_PRELOAD libfakegpu.so");
  return reinterpret_cast<F*>(found);
}

/// Open, and gone from its folder: the log ends with the process.
std::ifstream open_log() {
  const char* pattern = std::getenv("FAKEGPU_LOG");
  if (pattern == nullptr) throw std::runtime_error("FAKEGPU_LOG is not set");
  std::string path = pattern;
  if (const auto at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  std::ifstream file(path);
  std::remove(path.c_str());
  return file;
}

std::vector<DeviceCall> read_calls(std::istream& file) {
  std::vector<DeviceCall> calls;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    calls.push_back({json.value("api", ""), json.value("name", ""), json.value("op", ""),
                     json.value("stream", std::int64_t{-1}), json.value("event", std::int64_t{-1}),
                     json.value("event_stream", std::int64_t{-1}), json.value("bytes", std::int64_t{0}),
                     json.value("ranks", std::int64_t{0}), json.value("comm", std::int64_t{-1})});
  }
  return calls;
}

}  // namespace

std::vector<DeviceCall> calls_since_last() {
  static std::ifstream file = open_log();
  device_function<void()>("fakegpu_log_flush")();
  file.clear();  // the end of before is not the end
  return read_calls(file);
}

std::vector<DeviceCall> calls_in(const std::string& path) {
  std::ifstream file(path);
  return read_calls(file);
}

std::vector<DeviceCall> parse_calls(const std::string& text) {
  std::istringstream stream(text);
  return read_calls(stream);
}

void mark_calls(const std::string& text) { device_function<void(const char*)>("fakegpu_mark")(text.c_str()); }

void fail_calls(const std::string& text) { device_function<void(const char*)>("fakegpu_fail")(text.c_str()); }

std::string races_of_device() { return device_function<const char*()>("fakegpu_races")(); }

void forget_races() { device_function<void()>("fakegpu_races_reset")(); }

}  // namespace foreshard::exec
