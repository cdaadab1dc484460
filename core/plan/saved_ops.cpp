#include "core/plan/saved_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "core/lowering/op_rules.h"
#include "core/text/edit_distance.h"

namespace foreshard {
namespace {

struct Word {
  std::string_view word;
  std::vector<std::string_view> names;
};

/// torchtitan's words; of its list the kernels that no rule here knows never occur in a program.
const std::vector<Word>& words() {
  static const std::vector<Word> all{
      {"mm", {"aten.mm.default"}},
      {"addmm", {"aten.addmm.default"}},
      {"bmm", {"aten.bmm.default"}},
      {"max", {"aten.max.default"}},
      {"sdpa",
       {"aten._scaled_dot_product_efficient_attention.default", "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default"}},
      {"collectives", {"mesh.reduce_scatter"}},  // all-reduces are not on its list
  };
  return all;
}

/// "aten.mm" stands for its overload "default".
std::string with_overload(std::string_view name) {
  const bool short_name = std::count(name.begin(), name.end(), '.') < 2;
  return short_name ? fmt::format("{}.default", name) : std::string(name);
}

Error unknown_word(std::string_view word) {
  std::string nearest;
  std::size_t best = std::numeric_limits<std::size_t>::max();
  const auto offer = [&](std::string_view name) {
    const std::size_t distance = edit_distance(word, name);
    if (distance >= best) return;
    best = distance;
    nearest = name;
  };
  for (const Word& known : words()) offer(known.word);
  for (const OpRule& rule : op_rules()) offer(rule.name.substr(0, rule.name.rfind('.')));  // without its overload
  return {ErrorCode::NotFound,
          "checkpointing.save names no operator",
          {},
          "checkpointing.save",
          "mm, mm:K, addmm, bmm, sdpa, max, collectives, or an operator as aten.NAME",
          std::string(word),
          fmt::format("the nearest is \"{}\"", nearest)};
}

Error wrong_count(std::string_view word, std::string_view why) {
  return {ErrorCode::OutOfRange,
          fmt::format("checkpointing.save: {}", why),
          {},
          "checkpointing.save",
          "mm, or mm:K once, K from 2 on",
          std::string(word),
          "mm:2 runs every second product again, as torchtitan does"};
}

}  // namespace

Result<SavedOps> saved_ops(const CheckpointingOptions& options) {
  SavedOps saved;
  if (options.policy != CheckpointPolicy::Ops) return saved;
  std::optional<std::int64_t> rerun;
  for (const std::string& given : options.save) {
    std::string_view word = given;
    std::int64_t every = 0;
    if (word.starts_with("mm:")) {
      const std::string_view number = word.substr(3);
      const auto read = std::from_chars(number.data(), number.data() + number.size(), every);
      if (read.ec != std::errc() || read.ptr != number.data() + number.size() || every < 2)
        return fail(wrong_count(given, "after mm: stands which products run again"));
      word = "mm";
    }
    if (word == "mm") {
      if (rerun && *rerun != every) return fail(wrong_count(given, "mm stands there twice"));
      rerun = every;
    }
    const auto known = std::find_if(words().begin(), words().end(), [&](const Word& w) { return w.word == word; });
    if (known != words().end()) {
      saved.names.insert(saved.names.end(), known->names.begin(), known->names.end());
      continue;
    }
    const std::string name = with_overload(word);
    if (find_op_rule(name) == nullptr) return fail(unknown_word(given));
    saved.names.push_back(name);
  }
  saved.rerun_product = rerun.value_or(0);
  std::sort(saved.names.begin(), saved.names.end());
  saved.names.erase(std::unique(saved.names.begin(), saved.names.end()), saved.names.end());
  return saved;
}

OffloadedActivations offloaded_activations(const Job& job) {
  // FSDP wraps the model after the hooks were told of its parameters: what it gathers lies elsewhere.
  const Runtime runtime = job.fsdp.runtime;
  return {job.checkpointing.offload_activations, runtime == Runtime::None, runtime == Runtime::Fsdp1};
}

}  // namespace foreshard
