#include "cli/calibrate/link_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cli/console/json_text.h"
#include "core/model/json_input.h"
#include "core/output_file.h"
#include "sim/machine/profile.h"
#include "sim/network/collectives.h"
#include "sim/truth/nccl_tests.h"

namespace foreshard::cli {
namespace {

constexpr Bytes kLargestLog = 64 * kMiB;

std::optional<CollectiveKind> kind_of(const std::string& name) {
  if (name == "all_gather") return CollectiveKind::AllGather;
  if (name == "reduce_scatter") return CollectiveKind::ReduceScatter;
  if (name == "all_reduce") return CollectiveKind::AllReduce;
  return std::nullopt;
}

/// Mean distance of the formulas from the curve: what the measurement is worth.
double distance(const HardwareProfile& profile, const MeasuredCollective& curve) {
  const auto kind = kind_of(curve.kind);
  if (!kind) return 0;
  double sum = 0;
  for (std::size_t i = 0; i < curve.bytes.size(); ++i) {
    const auto predicted =
        static_cast<double>(collective_time(profile, *kind, GroupPlacement{curve.ranks, 1}, curve.bytes[i]));
    sum += std::abs(predicted / static_cast<double>(std::max<SimDuration>(curve.ns[i], 1)) - 1);
  }
  return sum / static_cast<double>(curve.bytes.size());
}

Result<std::vector<NcclTestsRun>> read_runs(const std::string& file) {
  const auto text = read_text_file(file, kLargestLog);
  if (!text) return fail(text.error());
  auto runs = parse_nccl_tests(*text, file);
  if (!runs) return runs;
  for (const NcclTestsRun& run : *runs) {
    if (run.hosts == 1) continue;
    return fail({ErrorCode::Unsupported, "curves between machines are not taken over", file, run.measured.kind,
                 "ranks of one machine", std::to_string(run.hosts) + " machines",
                 "set links.scale_out_gb_per_s of the profile instead"});
  }
  return runs;
}

}  // namespace

ExitCode calibrate_links(const CalibrateFlags& flags, const Job& job, const Console& console) {
  auto profile = load_profile(job.cluster.profile);
  if (!profile) return console.error(profile.error());
  const HardwareProfile before = *profile;
  std::string text;
  JsonText json(2);
  json.begin_object().field("schema", "foreshard.link_calibration/1").field("profile", flags.output).key("curves");
  json.begin_array();
  for (const std::string& file : flags.from) {
    const auto runs = read_runs(file);
    if (!runs) return console.error(runs.error());
    for (const NcclTestsRun& run : *runs) {
      const MeasuredCollective& curve = run.measured;
      auto& curves = profile->collectives;
      curves.erase(std::remove_if(curves.begin(), curves.end(),
                                  [&](const auto& c) { return c.kind == curve.kind && c.ranks == curve.ranks; }),
                   curves.end());
      curves.push_back(curve);
      const double off = distance(before, curve), spread = run.worst_spread;
      const std::string told = fmt::format(
          "nccl-tests {}, {} ranks of {}, {} to {} bytes; times repeat within {:.1f} %; without it the prediction was "
          "off "
          "by {:.1f} % on average",
          std::filesystem::path(file).filename().string(), curve.ranks, run.device.empty() ? "?" : run.device,
          curve.bytes.front(), curve.bytes.back(), 100 * spread, 100 * off);
      profile->calibration[fmt::format("{}_{}", curve.kind, curve.ranks)] = told;
      text += fmt::format("{} between {} ranks: {}\n", curve.kind, curve.ranks, told);
      json.begin_object().field("kind", curve.kind).field("ranks", curve.ranks).field("sizes", curve.bytes.size());
      json.field("device", run.device).field("spread", spread).field("formula_error", off).end_object();
    }
  }
  json.end_array().end_object();
  if (auto written = write_whole_file(flags.output, profile_text(*profile)); !written)
    return console.error(written.error());
  text += fmt::format("profile: {}\n", flags.output);
  return console.result(console.json ? json.take() : text) ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
