#include "sim/schedule/schedule_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/job/job_file.h"
#include "core/model/json_input.h"
#include "core/plan/units/units.h"
#include "core/text/digest.h"

namespace foreshard {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "foreshard.schedule/1";

std::string seal_of(const Json& value) { return digest_of(value.dump()); }

Json text_or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

/// What the schedule was made for.
Json shape_of(const Job& job, const Model& model) {
  return {{"model", model.name},
          {"batch", job.model.batch},
          {"seq", job.model.seq},
          {"micro_batches", job.train.micro_batches},
          {"world_size", job.cluster.world_size},
          {"ranks_per_node", job.cluster.ranks_per_node},
          {"tensor", job.mesh.tensor},
          {"context", job.mesh.context},
          {"expert", job.mesh.expert},
          {"strategy", std::string(strategy_name(job.fsdp.strategy))}};
}

Json row_of(const ScheduledUnit& unit) {
  return {{"module", unit.decided.module},
          {"keep", unit.decided.keep},
          {"activations", unit.decided.activations},
          {"gather_forward", text_or_null(unit.decided.gather_forward)},
          {"gather_backward", text_or_null(unit.decided.gather_backward)},
          {"reduce", text_or_null(unit.decided.reduce)},
          {"bucket", unit.bucket},
          {"modules", unit.modules},
          {"bytes", unit.bytes},
          {"why", unit.why}};
}

/// Reading: the first thing that is wrong ends it.
class Reader {
 public:
  Reader(const std::string& file, const Job& job, const Model& model) : file_(file), job_(job), model_(model) {}

  Result<Job> read(const Json& document) {
    if (!document.is_object() || document.value("schema", Json()) != Json(kSchema)) {
      const Json schema = document.is_object() ? document.value("schema", Json()) : Json();
      return fail(error("schema", "this is no schedule", fmt::format("\"{}\"", kSchema), schema.dump()));
    }
    const Json shape = document.value("made_for", Json()), wanted = shape_of(job_, model_);
    if (!shape.is_object()) return fail(error("made_for", "this is no schedule", "an object", shape.dump()));
    for (const auto& [key, value] : wanted.items()) {
      // Written before meshes were scheduled.
      const bool degree = key == "tensor" || key == "context" || key == "expert";
      const Json made = shape.value(key, degree ? Json(1) : Json());
      if (made != value)
        return fail(error("made_for." + key, "the schedule was made for another job", value.dump(), made.dump()));
    }
    const Json units = document.value("units", Json::array()), seals = document.value("seals", Json::array());
    if (!units.is_array() || !seals.is_array() || seals.size() != units.size() + 1)
      return fail(
          error("seals", "rows are missing", fmt::format("{}", units.size() + 1), fmt::format("{}", seals.size())));
    for (std::size_t k = 0; k <= units.size(); ++k) {
      const std::string seal = seal_of(k == 0 ? head_of(document) : units[k - 1]);
      if (seals[k] == Json(seal)) continue;
      const std::string place = k == 0 ? std::string("made_for") : fmt::format("units[{}]", k - 1);
      Error edited = error(place, "the file was edited", "what `foreshard schedule` wrote", "something else");
      edited.hint = "write decisions of your own into the job's keys: docs/schedule.md says which";
      return fail(std::move(edited));
    }
    return apply(document, units);
  }

  static Json head_of(const Json& document) {
    Json head = document.value("made_for", Json());
    for (const char* const key : {"job", "budget_bytes", "starts"}) head[key] = document.value(key, Json());
    if (document.contains("limit_bytes")) head["limit_bytes"] = document.at("limit_bytes");
    return head;
  }

 private:
  Error error(std::string place, std::string message, std::string expected, std::string got) const {
    return {.code = ErrorCode::Inconsistent,
            .message = std::move(message),
            .file = file_,
            .place = std::move(place),
            .expected = std::move(expected),
            .got = std::move(got),
            .hint = "`foreshard schedule JOB --out FILE` makes one for this job"};
  }

  // Sealed: types are those that were written.
  Result<Job> apply(const Json& document, const Json& units) {
    Job job = job_;
    for (const char* const key : schedule_keys()) {
      if (!document.at("job").contains(key)) continue;  // written before there was such a key
      const auto settings = parse_setting(fmt::format("{}={}", key, document.at("job").at(key).get<std::string>()));
      if (!settings) return fail(settings.error());
      for (const JobSetting& setting : *settings) {
        if (auto set = apply_setting(setting, job); !set) return fail(set.error());
      }
    }
    if (job.schedule.budget == 0) job.schedule.budget = document.at("budget_bytes").get<Bytes>();
    if (document.contains("limit_bytes"))
      job.schedule.budget = std::min(job.schedule.budget, document.at("limit_bytes").get<Bytes>());
    if (auto same = compare_units(job, units); !same) return fail(same.error());
    return job;
  }

  Result<void> compare_units(const Job& job, const Json& rows) {
    const auto table = build_units(model_, job);
    if (!table) {
      Error other = table.error();
      other.file = file_;
      return fail(std::move(other));
    }
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const auto module = rows[k].at("module").get<std::string>();
      const auto unit = std::find_if(table->units.begin(), table->units.end(), [&](const PlanUnit& one) {
        return model_.modules[one.modules.front().index()].fqn == module;
      });
      const std::string place = fmt::format("units[{}]", k);
      if (unit == table->units.end())
        return fail(error(place + ".module", "the model has no such unit", "a module of it", "\"" + module + "\""));
      const Bytes bytes = unit->padded_numel * itemsize(unit->param_dtype);
      const auto written = rows[k].at("bytes").get<Bytes>();
      if (written != bytes) {
        return fail(error(place + ".bytes", fmt::format("unit \"{}\" has another size", module),
                          fmt::format("{}", bytes), fmt::format("{}", written)));
      }
    }
    return {};
  }

  std::string file_;
  const Job& job_;
  const Model& model_;
};

}  // namespace

std::span<const char* const> schedule_keys() {
  static constexpr std::array kKeys{"fsdp.runtime",
                                    "fsdp.wrap.policy",
                                    "fsdp.wrap.classes",
                                    "fsdp.wrap.min_num_params",
                                    "fsdp.wrap.units",
                                    "fsdp.overrides",
                                    "fsdp.prefetch.forward",
                                    "fsdp.prefetch.backward",
                                    "fsdp.prefetch.forward_depth",
                                    "fsdp.prefetch.backward_depth",
                                    "checkpointing.policy",
                                    "checkpointing.units",
                                    "checkpointing.reentrant",
                                    "checkpointing.offload_activations",
                                    "schedule.objective"};
  return kKeys;
}

namespace {

Json proposal_of(const Proposal& proposal) {
  if (proposal.step_ns <= 0) return {};
  Json keys = Json::object();
  for (const Proposal::Key& key : proposal.keys) keys[key.name] = key.value;
  return {{"runtime", proposal.runtime == Runtime::Fsdp1 ? "fsdp1" : "planned"},
          {"step_time_ns", proposal.step_ns},
          {"peak_reserved_bytes", proposal.reserved},
          {"keys", std::move(keys)}};
}

}  // namespace

std::string schedule_json(const FoundSchedule& found, const Model& model, bool seconds) {
  Json document;
  document["schema"] = kSchema;
  document["made_for"] = shape_of(found.job, model);
  for (const char* const key : schedule_keys()) document["job"][key] = write_job_key(*find_job_key(key), found.job);
  document["step_time_ns"] = found.fits ? Json(found.step_ns) : Json();
  document["fsdp2_step_time_ns"] = found.fsdp2.step_ns > 0 ? Json(found.fsdp2.step_ns) : Json();
  document["fsdp1_step_time_ns"] = found.fsdp1.step_ns > 0 ? Json(found.fsdp1.step_ns) : Json();
  const bool bounded = found.fits && found.bound.ns > 0;
  document["bound_ns"] = bounded ? Json(found.bound.ns) : Json();
  document["free_step_ns"] = bounded ? Json(found.bound.free_step_ns) : Json();
  document["gap"] = bounded ? Json(found.gap()) : Json();
  document["proposed"] = proposal_of(found.proposal);
  document["advice"] = found.advice.empty() ? Json() : Json(found.advice);
  document["peak_reserved_bytes"] = found.peak_reserved;
  document["alloc_retries"] = found.alloc_retries;
  document["driver_allocs"] = found.driver_allocs;
  document["first_steps_alloc_retries"] = found.first_retries;
  document["unpadded_step_time_ns"] = found.unpadded.step_ns > 0 ? Json(found.unpadded.step_ns) : Json();
  const bool roomy = found.roomy.step_ns > 0;
  document["roomy_budget_bytes"] = roomy ? Json(found.roomy.reserved) : Json();
  document["roomy_step_time_ns"] = roomy ? Json(found.roomy.step_ns) : Json();
  document["expandable_step_time_ns"] = found.expandable.step_ns > 0 ? Json(found.expandable.step_ns) : Json();
  document["budget_bytes"] = found.budget;
  if (found.fits && found.limit < found.budget) document["limit_bytes"] = found.limit;
  if (!found.fits) document["least_budget_bytes"] = found.least_budget;
  document["starts"] = found.explicit_starts ? "schedule" : "fsdp2";
  document["units"] = Json::array();
  document["seals"] = Json::array({seal_of(Reader::head_of(document))});
  for (const ScheduledUnit& unit : found.units) {
    document["units"].push_back(row_of(unit));
    document["seals"].push_back(seal_of(document["units"].back()));
  }
  document["stays_on_device"] = found.stays_on_device;
  document["simulations"] = found.simulated;
  document["out_of_time"] = found.out_of_time;
  if (seconds) document["seconds"] = found.seconds;
  return document.dump(1) + "\n";
}

Result<Job> apply_schedule_file(const std::string& text, const std::string& file, const Job& job, const Model& model) {
  if (auto checked = parse_json(text, file); !checked) return fail(checked.error());
  return Reader(file, job, model).read(Json::parse(text));
}

}  // namespace foreshard
