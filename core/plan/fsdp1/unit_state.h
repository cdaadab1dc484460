// What FSDP1 remembers of one unit while a plan is built: training states (T1), where the flat parameter points (H11),
// gradients (H15), hooks (R9, R14). One entry per unit, handle or not.
#pragma once

#include <vector>

#include "core/plan.h"
#include "core/plan/autograd.h"

namespace foreshard::fsdp1 {

/// T1: the handle's state. The instance's own state is `UnitState::busy` (IDLE or FORWARD_BACKWARD) and Summon.
enum class HandleState : std::uint8_t { Idle, Forward, BackwardPre, BackwardPost, Summon };

/// What the visible `.grad` of the flat parameter is.
enum class GradKind : std::uint8_t { None, Unsharded, Shard, Host };

struct UnitState {
  UnitId id;
  const PlanUnit* unit = nullptr;
  bool has_handle = false;  // H1: a unit without parameters has hooks but nothing to gather
  bool is_root = false;

  // Options, resolved.
  bool sharded = true;
  bool hybrid = false;
  bool reshard_after_forward = true;  // S1: frees after forward unless root
  bool frees_after_forward = true;    // whether it does
  bool casts_params = false;          // e_c differs from e_o (M2)
  bool offload = false;
  bool use_orig_params = false;
  bool any_in_shard = true;  // this rank's shard holds a piece of some trainable parameter
  BackwardPrefetch backward_prefetch = BackwardPrefetch::Pre;

  // Training states and order (T1, O1, P4).
  bool busy = false;  // FORWARD_BACKWARD
  HandleState state = HandleState::Idle;
  bool prefetched = false;
  bool needs_pre_forward = false;
  bool needs_pre_backward = false;
  bool ran_pre_backward = false;
  std::int32_t pre_index = -1;
  std::int32_t post_index = -1;
  EventId unshard_event;  // R18

  // The flat parameter's data.
  bool full = false;            // full buffer allocated
  bool full_precision = false;  // the one in the original dtype (M7)
  bool cast_shard = false;
  bool h2d_copy = false;
  bool viewed_copy = false;  // NO_SHARD: forward's copy
  Stream full_pool = Stream::U, cast_pool = Stream::Q, h2d_pool = Stream::Q, viewed_pool = Stream::Q;
  bool on_shard = true;        // points at the local shard
  bool pinned = false;         // C1: pointed at the pinned copy since the first reshard
  bool skipped_views = false;  // H12
  bool module_views = false;   // original parameters: the modules hold forward's views, not the parameters (H12)
  bool views_let_go = false;   // original parameters: post-backward has let go of forward's views
  DType data_dtype = DType::Float32;
  bool data_on_host = false;

  // Views of the last forward unshard, by index in PlanUnit::params; none if they carry no gradient.
  std::vector<autograd::NodeIndex> views;
  DType view_dtype = DType::Float32;
  std::vector<std::int32_t> entry_of_param;  // index in PlanUnit::flat

  // Accumulation node of the flat parameter and the hook on it (R9, R14, R26).
  autograd::NodeIndex accumulation = autograd::kNoNode;
  bool hooked = false;
  autograd::NodeIndex hook_node = autograd::kNoNode;
  std::int32_t reshard_group = -1;  // R14
  bool post_backward_called = false;

  // Gradients.
  GradKind grad = GradKind::None;
  DType grad_dtype = DType::Float32;
  BufferWhat grad_buffer = BufferWhat::None;  // device buffer behind `.grad`
  Stream grad_pool = Stream::U;
  bool flat_pending = false;      // concatenated, not yet accumulated
  bool gradient_is_real = false;  // the host gradient holds a reduced gradient, not the zeros it was made with
  bool saved = false;             // a saved shard gradient exists (G7)
  BufferWhat saved_buffer = BufferWhat::None;
  Stream saved_pool = Stream::G;
  bool host_grad = false;      // pinned host gradient exists (C1)
  bool low_host_grad = false;  // flat parameters: its data was replaced by a low-precision copy (M4), for good
  bool param_grads = false;    // original parameters: some `.grad` is visible
  bool param_grads_unsharded = false;
  bool param_grads_on_host = false;  // they are views of the host gradient
};

}  // namespace foreshard::fsdp1
