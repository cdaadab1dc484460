#include "cli/exec_program/devices/calibration_machine.h"
#include "cli/exec_program/devices/cuda_findings.h"
#include "cli/exec_program/devices/run_device.h"

namespace foreshard::cli {

namespace {

Error on_cpus_alone() {
  Error error;
  error.code = ErrorCode::Unsupported;
  error.place = "--backend";
  error.message = "this program computes on CPUs alone";
  error.expected = "host";
  error.got = "cuda";
  error.hint = "start `foreshard`, which starts foreshard-exec-cuda; that is built where CUDA 13 and NCCL are found";
  return error;
}

}  // namespace

Result<std::unique_ptr<RunDevice>> open_cuda_device(const DeviceWish&) { return fail(on_cpus_alone()); }

Result<CalibrationMachine> open_cuda_calibration(int) { return fail(on_cpus_alone()); }

std::vector<Finding> cuda_findings() { return {}; }

}  // namespace foreshard::cli
