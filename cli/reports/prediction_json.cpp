#include "cli/reports/prediction_json.h"

#include <cmath>

#include "cli/console/json_text.h"
#include "cli/reports/explain_output.h"
#include "cli/reports/ranks_output.h"
#include "cli/reports/report.h"
#include "core/mesh/rank_model.h"
#include "core/model/facts.h"
#include "sim/play/memory_interval.h"

namespace foreshard::cli {
namespace {

void write_estimate(JsonText& out, const char* name, const Estimate& estimate) {
  out.key(name).begin_object();
  out.field("value", estimate.value).field("low", estimate.low).field("high", estimate.high).end_object();
}

void write_out_of_memory(JsonText& out, const Prediction& p) {
  out.key("oom");
  if (!p.oom) {
    out.null();
    return;
  }
  out.begin_object().field("iteration", p.oom->iteration).field("instruction", p.oom->instruction.value);
  out.field("unit", p.oom->unit).field("phase", p.oom->phase);
  out.field("requested_bytes", p.oom->requested).field("free_bytes", p.oom->free).end_object();
}

void write_iteration(JsonText& out, const IterationResult& i) {
  out.begin_object().field("index", i.index).field("step_time_ns", i.step_time);
  out.field("peak_allocated_bytes", i.peak_allocated).field("peak_active_bytes", i.peak_active);
  out.field("peak_reserved_bytes", i.peak_reserved).field("peak_requested_bytes", i.peak_requested);
  out.field("end_allocated_bytes", i.end_allocated).field("end_active_bytes", i.end_active);
  out.field("end_reserved_bytes", i.end_reserved).field("end_requested_bytes", i.end_requested);
  out.field("alloc_retries", i.alloc_retries).field("ooms", i.ooms).field("exposed_comm_ns", i.exposed_comm);
  out.field("host_wait_ns", i.host_wait).field("compute_ns", i.compute).field("idle_ns", i.idle);
  out.key("phases").begin_array();
  for (const PhaseMemory& phase : i.phases) {
    out.begin_object().field("name", phase.name).field("peak_allocated_bytes", phase.peak_allocated);
    out.field("end_allocated_bytes", phase.end_allocated)
        .field("peak_reserved_bytes", phase.peak_reserved)
        .end_object();
  }
  out.end_array().end_object();
}

void write_memory(JsonText& out, const Simulation& s) {
  const PeakMemory& m = s.prediction.memory;
  out.key("memory").begin_object();
  out.field("peak_allocated_bytes", m.allocated)
      .field("peak_active_bytes", m.active)
      .field("peak_reserved_bytes", m.reserved);
  out.field("growth_bytes_per_step", m.growth);
  write_estimate(out, "outside_allocator_bytes", m.outside_allocator);
  out.field("card_bytes", s.card_memory).field("pinned_host_bytes", m.pinned_host);
  const MemoryIntervals intervals = memory_intervals(s.prediction, s.profile.kind);
  out.key("intervals").begin_object();
  write_estimate(out, "peak_allocated_bytes", intervals.allocated);
  write_estimate(out, "peak_active_bytes", intervals.active);
  write_estimate(out, "peak_reserved_bytes", intervals.reserved);
  write_estimate(out, "device_bytes", intervals.device);
  out.end_object();
  out.key("at_peak")
      .begin_object()
      .field("instruction", m.instruction.value)
      .field("unit", m.unit)
      .field("phase", m.phase);
  out.key("categories").begin_object();
  for (const CategoryBytes& category : m.categories) out.field(category.category, category.bytes);
  out.end_object().end_object().end_object();
}

void write_work(JsonText& out, const Prediction& p) {
  out.key("work").begin_array();
  for (const WorkShare& share : p.work) {
    out.begin_object().field("dtype", share.tf32 ? "tf32" : dtype_name(share.dtype)).field("flops", share.flops);
    out.field("recomputed_flops", share.recomputed_flops).field("peak_tflops", share.peak_tflops).end_object();
  }
  out.end_array();
}

void write_communication(JsonText& out, const Prediction& p) {
  out.key("comm").begin_array();
  for (const CommResult& comm : p.comm) {
    out.begin_object().field("kind", comm.kind).field("count", comm.count).field("bytes", comm.bytes);
    out.field("busy_ns", comm.busy).field("exposed_ns", comm.exposed).end_object();
  }
  out.end_array().key("exposed").begin_array();
  for (const ExposedCause& cause : p.exposed) {
    out.begin_object()
        .field("cause", cause.cause)
        .field("kind", cause.kind)
        .field("exposed_ns", cause.time)
        .end_object();
  }
  out.end_array();
  if (p.between_nodes.busy <= 0) return;
  out.key("between_nodes").begin_object().field("busy_ns", p.between_nodes.busy);
  out.field("exposed_ns", p.between_nodes.exposed).field("step_at_half_ns", p.between_nodes.step_at_half).end_object();
}

void write_remedy(JsonText& out, const Simulation& s) {
  if (s.prediction.fits) return;
  out.key("remedy");
  if (!s.remedy) {
    out.null().key("tried").begin_array();
    for (const std::string& text : s.tried) out.value(text);
    out.end_array();
    return;
  }
  out.begin_object().field("text", s.remedy->text).key("set").begin_array();
  for (const std::string& set : s.remedy->set) out.value(set);
  out.end_array()
      .field("peak_reserved_bytes", s.remedy->peak_reserved)
      .field("step_time_ns", s.remedy->step_time_ns)
      .end_object();
}

void write_plan(JsonText& out, const Simulation& s) {
  out.key("job").begin_object().field("model", s.model.name).field("runtime", runtime_name(s.job.fsdp.runtime));
  out.field("strategy", strategy_name(s.job.fsdp.strategy)).field("world_size", s.job.cluster.world_size);
  out.field("rank", s.job.cluster.rank).field("profile", s.profile.id).field("units", s.plan.units.size());
  out.field("tokens_per_rank", s.model.tokens_per_batch * s.job.train.micro_batches).end_object();
  out.key("traps").begin_array();
  for (const Trap& trap : s.plan.traps) {
    out.begin_object().field("number", trap.number).field("name", trap.name).field("text", trap.text);
    out.field("remedy", trap.remedy).end_object();
  }
  out.end_array();
}

}  // namespace

std::string prediction_json(const Simulation& s) {
  const Prediction& p = s.prediction;
  JsonText out(2);
  out.begin_object().field("schema", "foreshard.prediction/1").field("fits", p.fits);
  write_out_of_memory(out, p);
  out.field("deadlock", p.deadlock);
  write_plan(out, s);
  write_estimate(out, "step_time_ns", p.step_time_ns);
  write_estimate(out, "tokens_per_s", p.tokens_per_s);
  write_estimate(out, "mfu", p.mfu);
  write_estimate(out, "hfu", p.hfu);
  write_work(out, p);
  out.key("after_init").begin_object().field("allocated_bytes", p.init_allocated).field("active_bytes", p.init_active);
  out.field("reserved_bytes", p.init_reserved).end_object();
  out.key("iterations").begin_array();
  for (const IterationResult& iteration : p.iterations) write_iteration(out, iteration);
  out.end_array();
  write_memory(out, s);
  write_communication(out, p);
  out.field("level", calibration_level_name(p.level));
  out.key("assumed").begin_array();
  for (const std::string& key : assumed_numbers(s.profile)) out.value(key);
  out.end_array();
  out.key("unknown_ops").begin_array();
  for (const std::string& op : p.unknown_ops) out.value(op);
  out.end_array();
  out.field("lifetimes", lifetimes_name(p.lifetimes)).field("choices", p.assumes_choices ? "assumed" : "computed");
  out.field("loss", loss_origin(s.model));
  if (sends_chosen_tokens(s.model)) out.field("expert_imbalance", s.job.mesh.expert_imbalance);
  write_remedy(out, s);
  if (s.explanation) write_explanation(out, *s.explanation);
  if (s.ranks) write_ranks(out, *s.ranks);
  out.end_object();
  return out.take();
}

}  // namespace foreshard::cli
