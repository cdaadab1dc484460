#include "core/plan.h"

#include <array>

namespace foreshard {
namespace {

constexpr std::array<std::string_view, kStreamCount> kStreams{"host", "D", "U", "G", "Q", "C",
                                                              "A",    "S", "H", "X", "M", "O"};

constexpr std::array<std::string_view, 37> kKinds{
    "wait_stream",    "record_event", "wait_event", "host_wait",  "limiter_push",
    "limiter_check",  "alloc",        "resize",     "free",       "note_use",
    "use_full",       "use_shard",    "cast",       "copy_in",    "copy_out",
    "concat",         "add",          "fill",       "pad",        "divide",
    "accumulate",     "h2d",          "d2h",        "all_gather", "reduce_scatter",
    "all_reduce",     "broadcast",    "forward",    "backward",   "recompute",
    "clip",           "zero",         "scale_loss", "unscale",    "update_scale",
    "optimizer_step", "mark"};
static_assert(kKinds.size() == static_cast<std::size_t>(InstructionKind::Mark) + 1);

constexpr std::array<std::string_view, 16> kPhases{"none",
                                                   "root_pre_forward",
                                                   "pre_forward",
                                                   "forward",
                                                   "post_forward",
                                                   "pre_backward",
                                                   "backward",
                                                   "post_backward",
                                                   "frozen_post_backward",
                                                   "final",
                                                   "clip",
                                                   "optimizer",
                                                   "summon",
                                                   "init",
                                                   "save",
                                                   "load"};
static_assert(kPhases.size() == static_cast<std::size_t>(Phase::Load) + 1);

constexpr std::array<std::string_view, 39> kBuffers{"none",
                                                    "shard",
                                                    "full",
                                                    "full_precision",
                                                    "cast_shard",
                                                    "h2d_copy",
                                                    "grad",
                                                    "grad_piece",
                                                    "grad_reduce",
                                                    "grad_padded",
                                                    "reduce_out",
                                                    "compressed_grad",
                                                    "compressed_out",
                                                    "saved_grad",
                                                    "shard_grad",
                                                    "host_grad",
                                                    "ag_buffer",
                                                    "cast_buffer",
                                                    "cast",
                                                    "post_forward_shard",
                                                    "accumulated_grad",
                                                    "rs_input",
                                                    "rs_output",
                                                    "grad_cast",
                                                    "shard_dim_temp",
                                                    "shard_dim_grad",
                                                    "optimizer_state",
                                                    "optimizer_temp",
                                                    "clip_temp",
                                                    "input",
                                                    "bucket",
                                                    "param",
                                                    "module_buffer",
                                                    "flat",
                                                    "state_copy",
                                                    "mesh_grad",
                                                    "scaled_shard",
                                                    "gather_scale",
                                                    "viewed_copy"};
static_assert(kBuffers.size() == static_cast<std::size_t>(BufferWhat::ViewedCopy) + 1);

}  // namespace

Plan::Plan() = default;
Plan::Plan(const Plan&) = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(const Plan&) = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

std::string_view stream_name(Stream stream) { return kStreams[static_cast<std::size_t>(stream)]; }
std::string_view instruction_kind_name(InstructionKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }
std::string_view phase_name(Phase phase) { return kPhases[static_cast<std::size_t>(phase)]; }
std::string_view buffer_what_name(BufferWhat what) { return kBuffers[static_cast<std::size_t>(what)]; }

UnitId Plan::find_unit(std::string_view name) const {
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (units[i].name == name) return UnitId(i);
  }
  return {};
}

std::string buffer_name(const Plan& plan, const BufferName& buffer) {
  std::string text(buffer_what_name(buffer.what));
  text += ':';
  if (buffer.param.valid()) {
    text += plan.param_names[buffer.param.index()];
  } else if (buffer.unit.valid()) {
    text += plan.units[buffer.unit.index()].name;
  }
  return text;
}

PlanCounts count_instructions(const PlanIteration& iteration) {
  PlanCounts counts;
  for (const Instruction& i : iteration.instructions) {
    switch (i.kind) {
      case InstructionKind::AllGather: ++counts.all_gather; break;
      case InstructionKind::ReduceScatter: ++counts.reduce_scatter; break;
      case InstructionKind::AllReduce: ++counts.all_reduce; break;
      case InstructionKind::Broadcast: ++counts.broadcast; break;
      case InstructionKind::H2d: ++counts.h2d; break;
      case InstructionKind::D2h: ++counts.d2h; break;
      // A check that pops carries the event that the host then waits for (R6).
      case InstructionKind::LimiterCheck: counts.limiter_waits += i.event.valid() ? 1 : 0; break;
      default: break;
    }
  }
  return counts;
}

}  // namespace foreshard
