#include "cli/session/pipeline.h"

namespace foreshard::cli {

Bytes card_memory(const Job& job, const HardwareProfile& profile) {
  return job.cluster.memory > 0 ? job.cluster.memory : profile.memory_bytes;
}

}  // namespace foreshard::cli
