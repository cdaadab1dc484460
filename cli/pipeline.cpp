#include "cli/pipeline.h"

#include <fmt/core.h>

#include <cstdint>

#include "core/plan/plan_json.h"

namespace foreshard::cli {

std::string plan_digest(const Plan& plan) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : plan_to_json(plan)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return fmt::format("{:016x}", hash);
}

Bytes card_memory(const Job& job, const HardwareProfile& profile) {
  return job.cluster.memory > 0 ? job.cluster.memory : profile.memory_bytes;
}

}  // namespace foreshard::cli
