// Kind `models`: the Model of a config.json or a .pt2 archive against the recorded truth beside it: structure,
// operators per route and dtype, loss tail, FLOPs.
#include <algorithm>
#include <filesystem>
#include <functional>

#include "core/model/families/config_model.h"
#include "tests/oracle/models/model_truth.h"
#include "tests/oracle/models/pt2_truth.h"

namespace foreshard::oracle {
namespace {

namespace fs = std::filesystem;

Report compare_models(const std::vector<std::string>& folders, const Options& options) {
  Report report;
  for (const std::string& argument : folders) {
    const fs::path folder = fs::path(argument).has_filename() ? fs::path(argument) : fs::path(argument).parent_path();
    const std::string name = folder.filename().string();
    const auto add = [&](const std::string& part, const std::function<RowResult()>& compare) {
      const std::string id = name + "/" + part;
      if (!options.only.empty() && options.only != id && options.only != name) return;
      RowResult row;
      try {
        row = compare();
      } catch (const std::exception& e) {
        row = {{}, Verdict::Fail, "row", "a comparison", e.what(), {}};
      }
      row.id = id;
      report.rows.push_back(std::move(row));
    };
    if (folder.extension() == ".pt2") {
      add("archive", [&] { return compare_archive(folder.string()); });
      continue;
    }
    const Json config = Json::parse(read_text((folder / "config.json").string()));
    const std::string type = config.value("model_type", "");
    const auto known = known_model_types();
    if (std::find(known.begin(), known.end(), type) == known.end()) {
      report.rows.push_back({name, Verdict::Skip, {}, {}, {}, "no builder for the family " + type});
      continue;
    }
    add("structure", [&] { return compare_structure(folder); });
    for (const std::string route : {"cuda", "meta_math", "cpu"}) {
      for (const std::string dtype : {"bf16", "f32"})
        add(route + "." + dtype, [&] { return compare_route(folder, route, dtype); });
    }
    add("flops", [&] { return compare_flops(folder); });
    add("memory", [&] { return compare_memory(folder); });
    add("loss_tail", [&] { return compare_loss_tail(folder); });
  }
  return report;
}

ORACLE_KIND("models", compare_models);

}  // namespace
}  // namespace foreshard::oracle
