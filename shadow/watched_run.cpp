#include "shadow/watched_run.h"

#include <nlohmann/json.hpp>

#include "core/input_file.h"

namespace foreshard::shadow {
namespace {

using nlohmann::json;

std::int64_t reshard_of(const json& value) {
  return value.is_boolean() ? static_cast<std::int64_t>(value.get<bool>()) : value.get<std::int64_t>();
}

double number(const json& row, const char* key) {
  const auto at = row.find(key);
  return at == row.end() || !at->is_number() ? 0.0 : at->get<double>();
}

FoundUnit unit_of(const json& row) {
  FoundUnit unit;
  row.at("modules").get_to(unit.modules);
  unit.strategy = row.value("strategy", "FULL_SHARD");
  unit.reshard_after_forward = reshard_of(row.at("reshard_after_forward"));
  unit.param = row.value("param", "none");
  unit.reduce = row.value("reduce", "none");
  unit.buffer = row.value("buffer", "none");
  unit.output = row.value("output", "none");
  unit.cast_forward_inputs = row.value("cast_forward_inputs", true);
  unit.keep_low_precision_grads = row.value("keep_low_precision_grads", false);
  unit.cpu_offload = row.value("cpu_offload", false);
  unit.backward_prefetch = row.value("backward_prefetch", "");
  unit.forward_prefetch = row.value("forward_prefetch", false);
  unit.limit_all_gathers = row.value("limit_all_gathers", true);
  unit.use_orig_params = row.value("use_orig_params", true);
  unit.shard_group = row.value("shard_group", std::int64_t{0});
  unit.tensor_parallel = row.value("tensor_parallel", std::int64_t{1});
  unit.expert_parallel = row.value("expert_parallel", std::int64_t{1});
  unit.wrapped_twice = row.value("wrapped_twice", false);
  unit.parameters = row.value("parameters", std::int64_t{1});
  unit.numel = row.value("numel", std::int64_t{1});
  unit.forward = row.value("forward", std::vector<std::string>{});
  unit.backward = row.value("backward", std::vector<std::string>{});
  unit.shard_dim = row.value("shard_dim", std::map<std::string, std::int64_t>{});
  return unit;
}

FoundSwitches switches_of(const json& told, bool reshard_after_forward) {
  FoundSwitches switches;
  switches.reduce = told.value("reduce_grads", true);
  switches.all_reduce = switches.reduce && told.value("all_reduce_grads", true);
  switches.reshard = told.value("reshard_after_backward", true);
  switches.unshard = told.value("unshard_in_backward", true);
  switches.force_sum = told.value("force_sum_reduction_for_comms", false);
  switches.unshard_async = told.value("unshard_async_op", false);
  switches.divide = number(told, "gradient_divide_factor");
  const auto forward = told.find("reshard_after_forward");
  switches.reshard_after_forward = forward == told.end() ? reshard_after_forward : reshard_of(*forward) != 0;
  return switches;
}

std::vector<FoundBackward> backwards_of(const json& rows, const std::vector<FoundUnit>& units) {
  std::map<std::string, bool> reshards;  // what a unit does unless it is told otherwise
  for (const FoundUnit& unit : units) reshards[unit.modules.front()] = unit.reshard_after_forward != 0;
  std::vector<FoundBackward> backwards;
  for (const json& row : rows) {
    FoundBackward& backward = backwards.emplace_back();
    backward.last = row.value("last", true);
    const json told = row.value("units", json::object());
    for (const auto& [name, each] : told.items()) backward.units[name] = switches_of(each, reshards[name]);
  }
  return backwards;
}

FoundOptimizer optimizer_of(const json& row) {
  FoundOptimizer optimizer;
  optimizer.name = row.value("name", "");
  optimizer.library = row.value("library", "");
  optimizer.impl = row.value("impl", "foreach");
  optimizer.lr = number(row, "lr");
  optimizer.eps = number(row, "eps");
  optimizer.weight_decay = number(row, "weight_decay");
  optimizer.momentum = number(row, "momentum");
  optimizer.alpha = row.value("alpha", 0.99);
  optimizer.centered = row.value("centered", false);
  optimizer.amsgrad = row.value("amsgrad", false);
  optimizer.watched = row.value("watched", "");
  optimizer.params = row.value("params", std::vector<std::string>{});
  optimizer.decoupled_weight_decay = row.value("decoupled_weight_decay", false);
  if (row.contains("betas") && row["betas"].is_array()) row["betas"].get_to(optimizer.betas);
  optimizer.states = row.value("states", std::int64_t{-1});
  return optimizer;
}

AllocatorOptions allocator_of(const json& row) {
  AllocatorOptions allocator;
  allocator.expandable_segments = row.value("expandable_segments", false);
  allocator.max_split_size_mb = row.value("max_split_size_mb", std::int64_t{0});
  allocator.garbage_collection_threshold = row.value("garbage_collection_threshold", 0.0);
  allocator.roundup_power2_divisions = row.value("roundup_power2_divisions", std::int64_t{0});
  return allocator;
}

FoundSetting setting_of(const json& row) {
  FoundSetting setting;
  setting.runtime = row.value("runtime", "none");
  setting.ddp = row.value("ddp", false);
  setting.alone = row.value("alone", false);
  setting.model_class = row.value("model_class", "");
  setting.roots = row.value("roots", std::int64_t{1});
  for (const json& unit : row.at("units")) setting.units.push_back(unit_of(unit));
  setting.optimizer = optimizer_of(row.at("optimizer"));
  for (const json& other : row.value("others", json::array())) setting.others.push_back(optimizer_of(other));
  setting.waiting = row.value("waiting", std::vector<std::string>{});
  setting.ignored = row.value("ignored", std::vector<std::string>{});
  setting.frozen = row.value("frozen", std::vector<std::string>{});
  setting.tied = row.value("tied", std::map<std::string, std::string>{});
  setting.autocast = row.value("autocast", "");
  setting.init = row.value("init", "");
  if (const auto batch = row.find("batch"); batch != row.end()) {
    setting.batch = batch->value("batch", std::int64_t{1});
    setting.seq = batch->value("seq", std::int64_t{0});
  }
  setting.micro_batches = row.value("micro_batches", std::int64_t{1});
  setting.zero_grad = row.value("zero_grad", "");
  setting.beside_later = row.value("beside_later", Bytes{0});
  setting.beside = row.value("beside", Bytes{0});
  if (const auto told = row.find("allocator"); told != row.end()) setting.allocator = allocator_of(*told);
  if (const auto cut = row.find("tensor"); cut != row.end()) {
    setting.tensor_plan = cut->value("plan", std::map<std::string, std::string>{});
    setting.tensor_ranks = cut->value("ranks", std::int64_t{1});
    setting.tensor_sequence = cut->value("sequence", false);
    setting.tensor_loss = cut->value("loss", false);
  }
  if (const auto shared = row.find("sequence"); shared != row.end()) {
    setting.sequence_ranks = shared->value("ranks", std::int64_t{1});
    setting.sequence_rotate = shared->value("rotate", "allgather");
    setting.sequence_buffers = shared->value("buffers", "resized");
    setting.sequence_balanced = shared->value("balanced", true);
  }
  if (const auto narrow = row.find("float8"); narrow != row.end())
    setting.float8_all_gather = narrow->value("precomputed", false) ? "precomputed" : "dynamic";
  setting.once = row.value("once", std::vector<std::vector<bool>>());
  setting.keeps_outputs = row.value("keeps_outputs", false);
  setting.no_sync = row.value("no_sync", false);
  setting.backwards = backwards_of(row.value("backwards", json::array()), setting.units);
  setting.clip = number(row, "clip");
  setting.scaler = row.value("scaler", false);
  const json checkpointed = row.value("checkpointed", json::object());
  for (const auto& [what, calls] : checkpointed.items()) {
    setting.checkpointed.push_back({what, calls.value("calls", std::int64_t{0}), calls.value("reentrant", false),
                                    calls.value("selective", false)});
  }
  if (const auto loss = row.find("loss"); loss != row.end()) setting.loss = loss->value("kind", "");
  if (const auto model = row.find("model"); model != row.end() && model->is_object()) {
    setting.model_file = model->value("file", "");
  }
  return setting;
}

WatchedRun run_of(const json& row) {
  WatchedRun run;
  run.rank = row.value("rank", std::int64_t{0});
  run.world_size = row.value("world_size", std::int64_t{1});
  for (const json& step : row.at("steps")) {
    run.steps.push_back({step.at("allocated_bytes"), step.at("active_bytes"), step.at("reserved_bytes"),
                         step.at("retries"), step.at("ooms"), SimDuration(step.at("virtual_ns").get<std::int64_t>()),
                         step.value("turn", std::size_t{0})});
  }
  if (row.at("setting").is_object()) run.setting = setting_of(row["setting"]);
  for (const json& turn : row.value("turns", json::array())) run.turns.push_back(setting_of(turn));
  run.notes = row.value("notes", std::vector<std::string>{});
  if (const auto failure = row.find("failure"); failure != row.end() && failure->is_object()) {
    run.failure = ScriptFailure{failure->value("code", ""), failure->value("message", ""), failure->value("hint", "")};
  }
  run.torch = row.value("torch", "");
  run.keeps_workspaces = row.value("keeps_workspaces", false);
  run.host_peak = row.value("host_peak_bytes", Bytes{0});
  return run;
}

}  // namespace

Result<WatchedRun> read_watched_run(const std::string& path) {
  const auto text = read_whole_file(path, 256 * kMiB);
  if (!text) return fail(text.error());
  try {
    return run_of(json::parse(*text));
  } catch (const json::exception& error) {
    Error wrong;
    wrong.code = ErrorCode::BadSyntax;
    wrong.message = "this is no report of a watched script";
    wrong.file = path;
    wrong.expected = "what foreshard.shadow writes";
    wrong.got = error.what();
    wrong.hint = "the Python package and this program are of different versions: install both together";
    return fail(wrong);
  }
}

}  // namespace foreshard::shadow
