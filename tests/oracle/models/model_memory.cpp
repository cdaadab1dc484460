// See model_truth.h: what autograd keeps, against memory.json.gz.
#include <filesystem>
#include <map>

#include "core/lowering/activations/activation.h"
#include "core/lowering/lowering.h"
#include "core/model/families/config_model.h"
#include "tests/oracle/models/model_truth.h"

namespace foreshard::oracle {
namespace {

namespace fs = std::filesystem;

RowResult differs(std::string place, std::string expected, std::string got) {
  return {{}, Verdict::Fail, std::move(place), std::move(expected), std::move(got), {}};
}

Result<Model> build(const fs::path& folder, const Json& row, const std::string& route, const std::string& loss) {
  ModelOptions options;
  options.batch = row.at("batch");
  options.seq_given = row.at("seq").is_number();
  if (options.seq_given) options.seq = row.at("seq");
  options.loss = loss;
  options.dtype = parse_dtype(row.at("dtype").get<std::string>());
  ProgramOptions program;
  program.compute_dtype = options.dtype;
  program.device = route == "cuda" ? ProgramDevice::Cuda : ProgramDevice::Meta;
  program.recorded = true;
  return model_from_config((folder / "config.json").string(), options, program);
}

std::string compare_report(const Json& row, const ActivationReport& report) {
  std::map<std::string, Bytes> outside;
  for (const auto& entry : report.outside) outside[entry.module] = entry.bytes;
  if (!report.unknown_ops.empty()) return "unknown operator " + report.unknown_ops.front();
  if (Json(report.per_block) != row.at("per_block")) return "per_block " + Json(report.per_block).dump();
  Bytes named = row.at("saved_input_bytes");  // the recorded places name inputs beside what was made
  for (const auto& [module, bytes] : outside) named += bytes;
  for (const auto& [module, bytes] : row.at("outside_blocks").items()) named -= bytes.get<Bytes>();
  if (named != 0) return "outside " + Json(outside).dump();
  if (report.saved != row.at("saved_activation_bytes").get<Bytes>()) return "saved " + std::to_string(report.saved);
  if (row.contains("held_by_block_kwargs_bytes") &&
      report.held_by_block_arguments != row.at("held_by_block_kwargs_bytes").get<Bytes>())
    return "held " + std::to_string(report.held_by_block_arguments);
  return {};
}

}  // namespace

RowResult compare_memory(const std::string& folder_name) {
  const fs::path folder(folder_name);
  const Json truth = Json::parse(read_text((folder / "memory.json.gz").string()));
  int compared = 0;
  for (const Json& row : truth.at("rows")) {
    if (row.contains("error")) continue;
    const Result<Model> model = build(folder, row, row.at("attention"), row.at("loss").get<bool>() ? "auto" : "none");
    const std::string place = row.at("batch").dump() + "x" + row.at("seq").dump() + " " +
                              row.at("dtype").get<std::string>() + " " + row.at("attention").get<std::string>() +
                              (row.at("loss").get<bool>() ? " loss" : "") +
                              (row.at("checkpoint_blocks").get<bool>() ? " checkpointed" : "");
    if (!model) return differs(place, "a model", to_text(model.error()));
    const auto report = activation_report(*model, row.at("checkpoint_blocks").get<bool>());
    if (!report) return differs(place, "a report", to_text(report.error()));
    if (std::string error = compare_report(row, *report); !error.empty()) return differs(place, row.dump(), error);
    ++compared;
  }
  return {{}, Verdict::Pass, {}, {}, {}, std::to_string(compared) + " rows"};
}

}  // namespace foreshard::oracle
