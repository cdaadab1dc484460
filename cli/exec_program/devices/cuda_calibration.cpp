#include <fmt/format.h>

#include <chrono>
#include <numeric>
#include <vector>

#include "cli/exec_program/devices/calibration_machine.h"
#include "exec/communicators/nccl_communicator.h"
#include "exec/communicators/nccl_meeting.h"
#include "exec/cuda/card_state.h"
#include "exec/cuda/cuda_device.h"
#ifdef FORESHARD_WITH_HOLD_STREAM
#include "exec/cuda/cuda_calibration.h"
#endif

namespace foreshard::cli {

Result<CalibrationMachine> open_cuda_calibration(int ranks) {
#ifdef FORESHARD_WITH_HOLD_STREAM
  auto device = exec::cuda_calibration_device(ranks);
  if (!device) return fail(device.error());
  const auto card = exec::cuda_device(0);
  if (!card) return fail(card.error());
  CalibrationMachine machine;
  machine.device = std::move(*device);
  machine.fingerprint = fmt::format("{}, driver for CUDA {}.{}, NCCL {}; {}", card->name, card->driver_version / 1000,
                                    card->driver_version % 1000 / 10, exec::nccl_version(), exec::card_state(0));
  machine.connect = [ranks](exec::Rendezvous& meeting) {
    exec::NcclGroup group{"calibration", std::vector<int>(static_cast<std::size_t>(ranks)), meeting.rank()};
    std::iota(group.ranks.begin(), group.ranks.end(), 0);
    return exec::connect_nccl(meeting, group);
  };
  return machine;
#else
  static_cast<void>(ranks);
  return fail({ErrorCode::Unsupported, "this build cannot time CUDA devices: it was configured without nvcc", "",
               "--backend", "host", "cuda", "configure again where nvcc is found"});
#endif
}

}  // namespace foreshard::cli
