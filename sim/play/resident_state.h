// What the optimizer keeps on the device from iteration to iteration, and what the steps between backward and the next
// forward take: the temporaries of clipping, scaling and stepping.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/job/optimizer_facts.h"
#include "core/model/model.h"
#include "core/operators/layout.h"
#include "core/plan.h"
#include "sim/device/device.h"

namespace foreshard {

/// One parameter as the optimizer of this rank sees it.
struct LocalParam {
  Numel numel = 0;
  Bytes bytes = 0;
  DType dtype = DType::Float32;
  std::int32_t unit = -1;       // in Plan::units
  ParamId param = {};           // of a flat parameter its first
  std::int32_t mesh = -1;       // the dimension of the model's mesh that it lies on with others; -1: none
  bool cut = false;             // along that
  Bytes momentum = 0;           // of SGD's, where that is not as large as the parameter's part
  Numel rows = 0, columns = 0;  // of whole matrices: how many sums over the last dimension, over the one before
  bool is_matrix() const { return rows > 0; }
};

/// Trainable parameters with elements on this rank, in the plan's order.
std::vector<LocalParam> local_params(const Plan& plan, const Model& model, const Job& job);

inline constexpr Numel kListChunk = 65536;  // elements of one block of a kernel over lists of tensors

/// The result of a norm over a whole tensor (kNoBlock: out of memory); split over thread blocks it clears semaphores
/// first, and has taken and given back what these need.
struct NormBlock {
  BlockHandle block = kNoBlock;
  bool split = false;
};
/// Whether a reduction over `dim` is split over thread blocks: then what that needs has been taken and given back.
/// Nothing: out of memory.
std::optional<bool> reduction_splits(Device& device, int pool, const Layout& input, std::int32_t dim);
NormBlock norm_of(Device& device, int pool, Numel numel, DType dtype);

/// Python drops a list's elements from its end.
void free_list(Device& device, const std::vector<BlockHandle>& blocks);

/// One foreach call: reads and writes `passes` times all parameters of the list.
void list_call(Device& device, Stream stream, const ActivitySpan& what, int passes,
               const std::vector<LocalParam>& list);

/// The steps of one that no job names, as the script's was seen to take them; of others none.
WatchedOptimizer watched_of(const Model* model, const OptimizerOptions& options);

class OptimizerState {
 public:
  /// What it keeps and takes lies in the pool of `stream`, where it runs.
  /// `model`: where a watched one is known from; nullptr: it is none.
  OptimizerState(const Job& job, std::vector<LocalParam> params, const Model* model, Stream stream = Stream::D)
      : options_(job.train.optimizer),
        flat_(job.fsdp.runtime == Runtime::Fsdp1),
        flattened_(job.mesh.flattened || (job.mesh.expert > 1 && job.mesh.tensor == 1)),
        params_(std::move(params)),
        stream_(stream),
        has_state_(optimizer_facts(options_).made_by_constructor),
        watched_(watched_of(model, options_)) {}

  /// Rule G9 and F2-29; the all-reduce of the norm is the plan's. False: out of memory.
  bool clip(Device& device, const Plan& plan, const Instruction& i, const ActivitySpan& what);
  /// What a gradient scaler does on the device, and keeps there from the first loss on; the all-reduce of what unscale
  /// found is the plan's. False: out of memory.
  bool scale_loss(Device& device, const ActivitySpan& what);
  bool unscale(Device& device, const ActivitySpan& what, bool on_host);
  void update_scale(Device& device, const ActivitySpan& what);
  /// The first step makes the state, where the constructor has not.
  bool step(Device& device, const ActivitySpan& what, bool on_host);
  /// Somebody else has made it.
  void has_made_state() {
    has_state_ = true;
    ++steps_;
  }
  /// zero_grad that keeps the gradients.
  void zero(Device& device, const ActivitySpan& what);

 private:
  bool make_state(Device& device, const ActivitySpan& what);
  bool make_factors(Device& device, const LocalParam& param, const ActivitySpan& what);
  bool make_moments(Device& device, const LocalParam& param, int count, const ActivitySpan& what);
  /// Operators on one element.
  void scalar_calls(Device& device, const ActivitySpan& what, int count);
  bool make_byte_moments(Device& device, const LocalParam& param, const ActivitySpan& what);
  bool byte_adamw(Device& device, const ActivitySpan& what);
  bool step_by_blocks(Device& device, const ActivitySpan& what);
  bool adamw(Device& device, const ActivitySpan& what);
  bool watched_step(Device& device, const ActivitySpan& what);  // instructions/watched_step.cpp
  bool sgd(Device& device, const ActivitySpan& what);
  bool looped_sgd(Device& device, const ActivitySpan& what);
  bool adafactor(Device& device, const ActivitySpan& what);  // adafactor_step.cpp
  bool norm_for_host(Device& device, const ActivitySpan& what, Numel numel, DType dtype);
  bool adafactor_of_list(Device& device, const ActivitySpan& what, const std::vector<LocalParam>& list);
  bool single_adafactor(Device& device, const ActivitySpan& what);
  bool looped_adafactor(Device& device, const ActivitySpan& what);
  bool adafactor_by_params(Device& device, const ActivitySpan& what);
  /// The same on a host whose work was measured: what the executor takes at once, one after the other.
  bool measured_step(Device& device, const ActivitySpan& what, bool on_host);
  /// clip_grad_norm_ over lists of tensors; DTensors complete their norms dimension by dimension.
  bool clip_lists(Device& device, const Plan& plan, const ActivitySpan& what);
  bool copy_zero(Device& device, const ActivitySpan& what);
  /// FSDP1's own: a norm for each parameter, and a factor for each.
  bool norms_one_by_one(Device& device, const ActivitySpan& what);
  bool scale_one_by_one(Device& device, const ActivitySpan& what);
  /// Of gradients of offloaded parameters.
  bool clip_on_host(Device& device, bool norms, const ActivitySpan& what);
  bool short_lived_numbers(Device& device, int count, const ActivitySpan& what);
  bool list_norm(Device& device, const Plan& plan, const std::vector<LocalParam>& params, const ActivitySpan& what);
  bool measured_clip(Device& device, bool norms, bool scales, const ActivitySpan& what);
  std::vector<LocalParam> taken_at_once() const;
  void foreach_call(Device& device, const ActivitySpan& what, int passes) {
    list_call(device, stream_, what, passes, params_);
  }
  /// The same on the host.
  void host_pass(Device& device, int passes);
  /// A copy of every parameter; freed by the caller. False: out of memory.
  bool temporaries(Device& device, std::vector<BlockHandle>& blocks);

  int pool() const { return static_cast<int>(stream_); }

  OptimizerOptions options_;
  bool flat_ = false;       // FSDP1: parameters of a unit lie side by side
  bool flattened_ = false;  // two dimensions of a mesh complete norms at once
  std::vector<LocalParam> params_;
  Stream stream_ = Stream::D;
  bool has_state_ = false;
  std::int64_t steps_ = 0;
  bool has_scale_ = false, has_zero_ = false;
  BlockHandle found_inf_ = kNoBlock;  // from unscale to update
  std::vector<BlockHandle> scales_;   // adafactor: a number for each parameter
  WatchedOptimizer watched_;
  std::vector<BlockHandle> kept_;  // of a watched one, in the order in which they were taken
};

/// What AdamW steps beside Muon.
std::vector<LocalParam> params_beside_muon(const Model& model, std::vector<LocalParam> params);

/// train.optimizer.impl = "in_backward": an optimizer for each parameter, stepped where its gradient becomes ready.
class StepsInBackward {
 public:
  StepsInBackward(const Job& job, const std::vector<LocalParam>& params) : job_(job), params_(params) {
    const bool foreach = job.train.optimizer.impl == OptimizerImpl::InBackwardForeach;
    job_.train.optimizer.impl = foreach ? OptimizerImpl::Foreach : OptimizerImpl::ForLoop;
  }
  /// False: out of memory.
  bool step(Device& device, const ActivitySpan& what, ParamId param, Stream stream, bool on_host);

 private:
  Job job_;
  std::vector<LocalParam> params_;
  std::map<ParamId, OptimizerState> optimizers_;
};

}  // namespace foreshard
