// What the host makes the device wait for: batches, waits for the device, the driver's memory, FSDP's limiter, or
// launches that simply come too late.
#include <fmt/format.h>

#include "core/plan.h"
#include "traces/diagnosis/rules.h"
#include "traces/timeline/trace_names.h"

namespace foreshard {
namespace {

constexpr double kHostBound = 0.05;  // some launches always come late

/// The operator that the thread was in.
std::string operator_label(const RecordingFacts& facts, const UseStretch& stretch) {
  if (!stretch.host.valid()) return "outside of every recorded operator";
  return std::string(facts.name_of(facts.own().accountant->threads().operator_of(stretch.host)));
}

void find_data(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const Collected found(
      facts, [](const UseStretch& s) { return s.use == TimeUse::Data; },
      [&](const UseStretch& s) { return std::string(facts.name_of(s.host)); });
  if (found.share() < facts.options.least_share) return;
  DiagnosedCause finding = found.avoidable("dataloader_stall");
  finding.cause = fmt::format("the device stands idle for {} of a step ({}) while the host waits for a batch",
                              time_words(static_cast<double>(found.cost())), share_words(found.share()));
  finding.remedy =
      "DataLoader(num_workers=..., pin_memory=True, persistent_workers=True, prefetch_factor=4): batches "
      "made while the device computes; the next batch copied with non_blocking=True";
  diagnosis.findings.push_back(std::move(finding));
}

std::string synchronise_remedy(std::string_view op) {
  if (contains(op, "item") || contains(op, "_local_scalar_dense") || contains(op, "is_nonzero"))
    return "leave the value on the device: .item(), float(loss) and `if tensor:` only every few steps, on .detach()ed "
           "values; GradScaler and clip_grad_norm_(error_if_nonfinite=True) ask too";
  if (contains(op, "nonzero") || contains(op, "masked_select") || contains(op, "index"))
    return "shapes that depend on values make the host wait: torch.where and fixed sizes instead of boolean indexing";
  if (contains(op, "Memcpy") || contains(op, "copy") || contains(op, "aten::to"))
    return "pin_memory=True and .to(device, non_blocking=True); copies back to the host only every few steps";
  return "no torch.cuda.synchronize() and no blocking copy inside the step";
}

void find_waits(const RecordingFacts& facts, Diagnosis& diagnosis) {
  // Waits of a plan and of the executor that runs it are not a user's to take out.
  if (facts.t.provenance.source == "executed") return;
  const Collected found(
      facts,
      [&](const UseStretch& s) {
        return s.use == TimeUse::Synchronise && !facts.is_pageable_copy(s.host) &&
               !(s.host.valid() && facts.at(s.host).instruction.valid());  // a prediction's
      },
      [&](const UseStretch& s) { return operator_label(facts, s); });
  if (found.share() < facts.options.least_share) return;
  DiagnosedCause finding = found.avoidable("synchronising_copy");
  finding.cause = fmt::format(
      "the host waits for the device in {}, has lost its lead when it goes on, and the device stands idle for {} of a "
      "step ({})",
      found.first(), time_words(static_cast<double>(found.cost())), share_words(found.share()));
  finding.remedy = synchronise_remedy(found.first());
  diagnosis.findings.push_back(std::move(finding));
}

void find_driver_calls(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const Collected found(
      facts, [](const UseStretch& s) { return s.use == TimeUse::Allocator; },
      [&](const UseStretch& s) {
        const std::string call(facts.name_of(s.host)), op = operator_label(facts, s);
        return op == call ? call : fmt::format("{} in {}", call, op);
      });
  if (found.share() < facts.options.least_share) return;
  // A first step fills the cache, and a recording of one step may be it: only giving back tells.
  if (facts.own().accountant->steps() < 2 && !contains(found.first(), "Free")) return;
  DiagnosedCause finding = found.avoidable("allocator_retries");
  finding.cause = fmt::format(
      "in steps that should find all their memory cached the allocator goes to the driver ({}): the device stands idle "
      "for {} of a step ({})",
      found.first(), time_words(static_cast<double>(found.cost())), share_words(found.share()));
  finding.remedy =
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and less memory at the peak (checkpointing, a "
      "smaller batch): cudaFree in a step is the cache being emptied to make room";
  finding.set = {"allocator.expandable_segments=true"};
  diagnosis.findings.push_back(std::move(finding));
}

void find_limiter(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const Collected found(
      facts, [](const UseStretch& s) { return s.use == TimeUse::HeldBack || s.use == TimeUse::Limiter; },
      [&](const UseStretch& s) { return s.span.valid() ? facts.unit_of(facts.at(s.span)) : std::string(); });
  if (found.share() < facts.options.least_share) return;
  DiagnosedCause finding = found.avoidable("limiter");
  finding.cause = fmt::format(
      "FSDP's limiter holds the host until earlier all-gathers are freed, and the device stands idle or gathers alone "
      "for {} of a step ({})",
      time_words(static_cast<double>(found.cost())), share_words(found.share()));
  finding.remedy = "FSDP(limit_all_gathers=False), if the memory of one more gathered unit is there; larger units";
  finding.set = {"fsdp.limit_all_gathers=false"};
  diagnosis.findings.push_back(std::move(finding));
}

bool in_optimizer(const RecordingFacts& facts, const UseStretch& s) {
  return s.span.valid() && facts.at(s.span).phase == static_cast<std::int32_t>(Phase::Optimizer);
}

bool is_late(const UseStretch& s) { return s.use == TimeUse::Host || s.use == TimeUse::LateIssue; }

/// Kernels of one parameter each take their least time, however fast they are launched.
void find_optimizer_launches(const RecordingFacts& facts, Diagnosis& diagnosis) {
  constexpr SimDuration kShort = 20 * kMicrosecond;
  constexpr double kMany = 200;  // a step
  const auto is_short = [&](const UseStretch& s) {
    return (s.use == TimeUse::Compute && facts.at(s.span).duration < kShort) || s.use == TimeUse::KernelGap;
  };
  const auto label = [&](const UseStretch& s) {
    return s.use == TimeUse::Compute ? std::string(facts.name_of(s.span)) : operator_label(facts, s);
  };
  const Collected late(
      facts, [&](const UseStretch& s) { return is_late(s) && in_optimizer(facts, s); }, label);
  const Collected both(
      facts, [&](const UseStretch& s) { return (is_late(s) || is_short(s)) && in_optimizer(facts, s); }, label);
  const bool many = static_cast<double>(both.count()) / facts.steps() >= kMany;
  const Collected& found = many ? both : late;
  if (found.share() < facts.options.least_share) return;
  DiagnosedCause finding = found.avoidable("optimizer_launches");
  finding.cause = fmt::format("the optimizer's kernels are launched too slowly{}: {} of a step ({})",
                              many ? fmt::format(", or too short to fill the device ({:.0f} of them)",
                                                 static_cast<double>(both.count()) / facts.steps())
                                   : "",
                              time_words(static_cast<double>(found.cost())), share_words(found.share()));
  finding.remedy = "torch.optim.AdamW(..., fused=True): one kernel for many parameters";
  finding.set = {"train.optimizer.impl=fused"};
  diagnosis.findings.push_back(std::move(finding));
}

void find_late_launches(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const Collected rest(
      facts, [&](const UseStretch& s) { return is_late(s) && !in_optimizer(facts, s); },
      [&](const UseStretch& s) { return operator_label(facts, s); });
  // The host is late by what its copies took: they are the finding.
  if (facts.pageable_copying() >= rest.cost()) return;
  if (rest.share() < std::max(kHostBound, facts.options.least_share)) return;
  DiagnosedCause finding = rest.avoidable("host_bound");
  finding.cause = fmt::format(
      "the device waits for launches for {} of a step ({}): the host is slower than the device, longest in {}",
      time_words(static_cast<double>(rest.cost())), share_words(rest.share()), rest.first());
  finding.remedy =
      "fewer and larger kernels: torch.compile of each block, a larger micro-batch, fused optimizer, CUDA "
      "graphs; with FSDP2 set_modules_to_forward_prefetch lets gathers be issued a unit earlier";
  diagnosis.findings.push_back(std::move(finding));
}

}  // namespace

void find_host_causes(const RecordingFacts& facts, Diagnosis& diagnosis) {
  if (!facts.has_steps()) {
    diagnosis.not_looked_at.emplace_back("host, communication, precision: no work on a device was recorded");
    return;
  }
  bool calls = false;
  for (const Flow& flow : facts.t.flows) calls = calls || flow.from.valid();
  if (!calls) {
    diagnosis.not_looked_at.emplace_back(
        "host: no calls are joined to the device's work (record with ProfilerActivity.CPU too)");
    return;
  }
  find_data(facts, diagnosis);
  find_waits(facts, diagnosis);
  find_driver_calls(facts, diagnosis);
  find_limiter(facts, diagnosis);
  find_optimizer_launches(facts, diagnosis);
  find_late_launches(facts, diagnosis);
}

}  // namespace foreshard
