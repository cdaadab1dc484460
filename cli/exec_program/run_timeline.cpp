#include "cli/exec_program/run_timeline.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/session/pipeline.h"
#include "traces/formats/chrome_trace.h"
#include "traces/formats/fst.h"
#include "traces/timeline/merged_timeline.h"

namespace foreshard::cli {
namespace {

Result<Timeline> timeline_of_all(const std::vector<std::string>& texts) {
  std::vector<Timeline> timelines;
  for (const std::string& text : texts) {
    auto timeline = parse_fst(text, "a rank's recording");
    if (!timeline) return fail(timeline.error());
    timelines.push_back(std::move(*timeline));
  }
  return merge_timelines(timelines);
}

}  // namespace

Result<void> write_run_timeline(const Plan& plan, exec::Communicator* control, const exec::Recorder& recorder,
                                const TimelineFiles& files) {
  Timeline own = recorder.timeline(plan);
  if (control != nullptr) {
    const auto texts = exec::gather_texts(fst_bytes(own), *control);
    if (plan.rank != 0) return {};
    auto merged = timeline_of_all(texts);
    if (!merged) return fail(merged.error());
    own = std::move(*merged);
  }
  own.provenance.plan_digest = plan_digest(plan);
  own.provenance.software = "foreshard " FORESHARD_VERSION;
  own.provenance.hardware = files.hardware;
  if (!files.fst.empty()) {
    if (auto written = write_fst(own, files.fst); !written) return written;
  }
  if (!files.chrome.empty()) return write_chrome_trace(own, files.chrome);
  return {};
}

std::optional<std::string> model_config(const std::string& source) {
  std::error_code code;
  std::filesystem::path path = source;
  if (std::filesystem::is_directory(path, code)) path /= "config.json";
  if (path.extension() != ".json" || !std::filesystem::is_regular_file(path, code)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.find("\"model_type\"") == std::string::npos) return std::nullopt;  // a model.json of our own
  return text;
}

}  // namespace foreshard::cli
