// Work on the device that neither computes nor communicates: copies between host and device.
#include <fmt/format.h>

#include "traces/diagnosis/rules.h"

namespace foreshard {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool between_host_and_device(std::string_view name) {
  return contains(name, "HtoD") || contains(name, "DtoH") || contains(name, "Host to Device") ||
         contains(name, "Device to Host") || name == "h2d" || name == "d2h";
}

}  // namespace

void find_device_causes(const RecordingFacts& facts, Diagnosis& diagnosis) {
  if (!facts.has_steps()) return;
  const auto label = [&](const UseStretch& s) {
    const std::string unit = facts.unit_of(facts.at(s.span));
    return unit.empty() ? std::string(facts.name_of(s.span)) : fmt::format("{} ({})", facts.name_of(s.span), unit);
  };
  const Collected found(
      facts,
      [&](const UseStretch& s) { return s.use == TimeUse::Copies && between_host_and_device(facts.name_of(s.span)); },
      label);
  if (found.share() < facts.options.least_share) return;
  const bool pageable = contains(found.first(), "Pageable");
  DiagnosedCause finding;
  finding.name = pageable ? "pageable_copies" : "copies_not_hidden";
  finding.cost = found.cost();
  finding.saving = found.cost();
  finding.share = found.share();
  finding.where = found.where();
  finding.evidence = found.evidence();
  finding.cause = fmt::format("the device does nothing but copy to or from the host for {} of a step ({}){}",
                              time_words(static_cast<double>(found.cost())), share_words(found.share()),
                              pageable ? ", from memory that is not pinned, at a fraction of the link's speed" : "");
  finding.remedy = pageable
                       ? "DataLoader(pin_memory=True) and .to(device, non_blocking=True)"
                       : "copies on a stream of their own, one step ahead; without CPU offload they are not needed";
  if (!pageable) finding.set = {"fsdp.cpu_offload=false"};
  diagnosis.findings.push_back(std::move(finding));
}

}  // namespace foreshard
