// Work on the device that neither computes nor communicates: copies between host and device.
#include <fmt/format.h>

#include "traces/diagnosis/rules.h"
#include "traces/timeline/trace_names.h"

namespace foreshard {
namespace {

bool between_host_and_device(std::string_view name) {
  return contains(name, "HtoD") || contains(name, "DtoH") || contains(name, "Host to Device") ||
         contains(name, "Device to Host") || name == "h2d" || name == "d2h";
}

}  // namespace

void find_device_causes(const RecordingFacts& facts, Diagnosis& diagnosis) {
  if (!facts.has_steps()) return;
  const auto label = [&](const UseStretch& s) {
    if (s.use != TimeUse::Copies) return std::string("the host, copying pageable memory");
    const std::string unit = facts.unit_of(facts.at(s.span));
    return unit.empty() ? std::string(facts.name_of(s.span)) : fmt::format("{} ({})", facts.name_of(s.span), unit);
  };
  const auto copies = [&](const UseStretch& s) {
    return s.use == TimeUse::Copies && between_host_and_device(facts.name_of(s.span));
  };
  // What the host comes late with behind such copies is theirs, as far as they took that long (host_rules.cpp).
  const auto late = [&](const UseStretch& s) { return s.use == TimeUse::Host || s.use == TimeUse::LateIssue; };
  const Collected of_host(facts, late, [](const UseStretch&) { return std::string(); });
  const bool slow_host = facts.pageable_copying() > 0 && facts.pageable_copying() >= of_host.cost();
  const Collected unpinned(
      facts,
      [&](const UseStretch& s) {
        return (copies(s) && contains(facts.name_of(s.span), "Pageable")) ||
               (s.use == TimeUse::Synchronise && facts.is_pageable_copy(s.host)) || (slow_host && late(s));
      },
      label);
  const Collected all(facts, copies, label);
  // Most of the time decides what to mend.
  const bool pageable = 2 * unpinned.cost() >= all.cost() && unpinned.cost() > 0;
  const Collected& found = pageable ? unpinned : all;
  if (found.share() < facts.options.least_share) return;
  DiagnosedCause finding;
  finding.name = pageable ? "pageable_copies" : "copies_not_hidden";
  finding.cost = found.cost();
  finding.saving = found.cost();
  finding.share = found.share();
  finding.where = found.where();
  finding.evidence = found.evidence();
  finding.cause = fmt::format(
      "the device does nothing but copy to or from the host{} for {} of a step ({}){}",
      pageable ? ", or waits for it," : "", time_words(static_cast<double>(found.cost())), share_words(found.share()),
      pageable ? ": memory that is not pinned goes at a fraction of the link's speed, and its copies hold the host"
               : "");
  finding.remedy =
      pageable ? "DataLoader(pin_memory=True) and .to(device, non_blocking=True); CPUOffloadPolicy(pin_memory=True)"
               : "copies on a stream of their own, one step ahead; without CPU offload they are not needed";
  if (!pageable) finding.set = {"fsdp.cpu_offload=false"};
  diagnosis.findings.push_back(std::move(finding));
}

}  // namespace foreshard
