// Measures the machine that it runs on, for a hardware profile: the operators of a model over their real shapes,
// copies, the host's own costs and collectives by size.
//
// As many ranks as will train run at once, as threads with the same number of LibTorch threads each (on GPUs: each with
// its card), so that what they take from each other is in the numbers. An operator is timed alone, as a segment of one;
// what a segment of one costs more than its share of the whole model (which is timed too) is taken off again. Times are
// medians, in nanoseconds.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"
#include "core/units.h"
#include "exec/calibrate/calibration_device.h"
#include "exec/calibrate/calibration_journal.h"
#include "exec/communicators/communicator.h"
#include "exec/operators/operator_interpreter.h"

namespace foreshard::exec {

struct CalibrationSetup {
  const Model& model;
  std::vector<at::Tensor> inputs;            // in the order of Model::inputs
  OperatorInterpreter::ParamTensors params;  // whole, in the dtype that is computed in, with requires_grad
  std::vector<at::Tensor> buffers;
  int intra_op_threads = 1;
  int repeats = 15;
  /// One for each rank, in order; empty: nothing is collected, and one rank runs.
  std::vector<std::shared_ptr<Communicator>> communicators = {};
  CalibrationDevice* device = nullptr;          // null: the host
  OptimizerOptions optimizer = {};              // whose step is timed, on the host
  const CalibrationJournal* journal = nullptr;  // what an interrupted calibration has measured; gets what this one does
};

struct OperatorTime {
  std::string signature;  // core/operators/operator_signature.h
  SimDuration forward_ns = 0, backward_ns = 0;
  std::int64_t count = 0;  // in the model
};

struct CollectiveCurve {
  std::string kind;  // "all_gather", "reduce_scatter", "all_reduce"
  int ranks = 2;
  std::vector<Bytes> bytes;  // of the full buffer
  std::vector<SimDuration> ns;
  // On the host: the time while the ranks compute, what their compute loses meanwhile, and the time that a rank's
  // threads are busy with it when nobody computes.
  std::vector<SimDuration> beside_ns = {}, taken_ns = {}, cpu_ns = {};
};

/// One call of a collective that curves are made of, between the ranks of a group.
class CollectiveCall {
 public:
  /// `bytes` of the full buffer.
  CollectiveCall(const std::string& kind, int ranks, Bytes bytes, c10::Device device);
  Bytes bytes() const { return share_ * ranks_ * 4; }  // in whole elements of each rank
  void run(Communicator& group) const;

 private:
  std::string kind_;
  int ranks_;
  Numel share_;
  at::Tensor whole_, part_;
};

/// A rank's own work by the bytes of the tensor that it is done to, on the host (exec/calibrate/calibration_host.h).
struct WorkCurve {
  std::string kind;  // "copy", ...
  std::vector<Bytes> bytes;
  std::vector<SimDuration> ns;
};

struct Calibration {
  std::vector<OperatorTime> operators;  // in the order of the program, each signature once
  std::vector<CollectiveCurve> collectives;
  std::vector<WorkCurve> work;
  SimDuration segment_forward_ns = 0, segment_backward_ns = 0;  // a segment's, beside its operators
  SimDuration handover_ns = 0;                                  // from stream to stream, on the host
  SimDuration whole_forward_ns = 0, whole_backward_ns = 0;      // of the model as one segment
  SimDuration sum_forward_ns = 0, sum_backward_ns = 0;          // of its operators as they are told
  double spread = 0;         // of the whole step: half of (95 % - 5 %) over the median
  double copy_gb_per_s = 0;  // read and written bytes
  SimDuration smallest_copy_ns = 0;
  double gemm_tflops = 0;                                // float32
  double half_gemm_tflops = 0;                           // bfloat16, on GPUs
  double to_device_gb_per_s = 0, pageable_gb_per_s = 0;  // from pinned host memory, and from other, on GPUs
  SimDuration issue_ns = 0, event_ns = 0, allocation_ns = 0;
  // Of the model, on the issuer's clock while the device waits for it; 0 where the issuer does the work itself.
  SimDuration issue_forward_ns = 0, issue_backward_ns = 0;
};

/// Errors: an operator that LibTorch does not have, or that fails on these inputs.
Result<Calibration> calibrate(const CalibrationSetup& setup);

/// The same with the inputs, parameters and buffers that a training of this job would begin with, of `setup` the rest.
/// Errors: theirs too.
struct JobCalibration {
  int intra_op_threads = 1;
  int repeats = 15;
  std::vector<std::shared_ptr<Communicator>> communicators = {};
  CalibrationDevice* device = nullptr;
  const CalibrationJournal* journal = nullptr;
};
Result<Calibration> calibrate_job(const Model& model, const Job& job, const JobCalibration& setup);

}  // namespace foreshard::exec
