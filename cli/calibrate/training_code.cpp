#include "cli/calibrate/training_code.h"

#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <string_view>

namespace foreshard::cli {
namespace {

/// A change of torchtitan: the newest pull request before it, and the month in which it landed.
struct Change {
  int pull_request;
  int month;  // 202410
};
constexpr Change kDropsLogits{391, 202406};  // "del logits=(bs, seq_len, vocab_size) to save 3.9G memory"
constexpr Change kCastsInLoss{645, 202410};  // "Move output .float() to loss fn"
constexpr Change kExpandable{645, 202410};   // "Use expandable segments in run_llama_train.sh"
constexpr Change kHeadUnit{1477, 202507};    // "Improve reshard_after_forward logic"
constexpr Change kFusedNorm{1500, 202508};   // PyTorch 2.9 has a kernel; before, and before nn.RMSNorm, it was composed
constexpr Change kChunkedLoss{2386, 202602};  // the loss of its configurations; before, 996 cut logits that were there
constexpr Change kTritonNorm{181, 202404};    // "Add FusedRMSNorm", the default of ...
constexpr Change kPlainNorm{297, 202405};     // ... until "turn off dynamic shape"
/// "avoid record streams": its scripts set TORCH_NCCL_AVOID_RECORD_STREAMS, PyTorch's own default since 2.8.
constexpr Change kStashes{212, 202404};
constexpr Change kOneNorm{985, 202503};  // PyTorch's own from here on, and no choice
/// PyTorch's nightly builds from then on: "Ran reduce-scatter copy-in in default stream" (pytorch/pytorch#129721).
constexpr Change kCopiesOnCompute{435, 202407};

/// Hopper's rates in what was published before this month are six to seven tenths of what cards reach since
/// (profiles/h100-sxm-80-2023.toml).
constexpr Change kNewKernels{435, 202407};

/// When the code was: 0 where the source does not say.
struct Moment {
  int pull_request = 0;
  int month = 0;
  bool known() const { return pull_request > 0 || month > 0; }
  bool since(const Change& change) const {
    return pull_request > 0 ? pull_request >= change.pull_request : month >= change.month;
  }
};

/// The digits from `at` on, as a number; 0 without.
int digits(std::string_view text, std::size_t at) {
  int value = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), value);
  return value;
}

/// "2024-10" or "202412" anywhere in the text.
int month_in(std::string_view text) {
  for (std::size_t at = 0; at + 6 <= text.size(); ++at) {
    if (text.substr(at, 2) != "20" || (at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0)) continue;
    const bool dashed = text[at + 4] == '-';
    const int year = digits(text.substr(0, at + 4), at);
    const int month = digits(text.substr(0, at + (dashed ? 7 : 6)), at + (dashed ? 5 : 4));
    if (year > 2020 && month >= 1 && month <= 12) return year * 100 + month;
  }
  return 0;
}

Moment moment_of(std::string_view source) {
  Moment moment;
  constexpr std::string_view kPullRequest = "PR ";
  if (const std::size_t at = source.find(kPullRequest); at != std::string_view::npos)
    moment.pull_request = digits(source, at + kPullRequest.size());
  if (moment.pull_request == 0) moment.month = month_in(source);
  return moment;
}

std::string month_text(int month) {
  const std::string number = std::to_string(month);
  return number.substr(0, 4) + "-" + number.substr(4);
}

TrainingCode titan_code(const Moment& moment, bool decoder) {
  TrainingCode code{.name = "torchtitan", .titan_model = decoder};
  // A change at a time: the newest that the row has names its code.
  constexpr std::array<Change, 5> kNamed{kDropsLogits, kExpandable, kHeadUnit, kFusedNorm, kChunkedLoss};
  std::string since;
  for (const Change& change : kNamed) {
    if (moment.since(change)) since = " since " + month_text(change.month);
  }
  code.name += since.empty() ? " before " + month_text(kDropsLogits.month) : since;
  code.drops_logits = moment.since(kDropsLogits);
  code.casts_in_model = !moment.since(kCastsInLoss);
  code.expandable_segments = moment.since(kExpandable);
  code.head_unit = moment.since(kHeadUnit);
  code.fused_norm = moment.since(kFusedNorm) || (moment.since(kTritonNorm) && !moment.since(kPlainNorm));
  code.norm_open = moment.since(kPlainNorm) && !moment.since(kOneNorm);
  code.notes_uses = !moment.since(kStashes);
  code.early_fsdp2 = !moment.since(kCopiesOnCompute);
  code.chunked_loss = moment.since(kChunkedLoss);
  code.old_kernels = !moment.since(kNewKernels);
  return code;
}

/// kempnerforge/distributed/tensor_parallel.py: every projection gathers its input by itself, the table of tokens is
/// whole, the head's output layout is Replicate().
std::map<std::string, std::string> kempner_plan() {
  return {{"model.embed_tokens", "replicate"},
          {"model.layers.*.input_layernorm", "sequence"},
          {"model.layers.*.self_attn.q_proj", "colwise"},
          {"model.layers.*.self_attn.k_proj", "colwise"},
          {"model.layers.*.self_attn.v_proj", "colwise"},
          {"model.layers.*.self_attn.o_proj", "rowwise"},
          {"model.layers.*.post_attention_layernorm", "sequence"},
          {"model.layers.*.mlp.gate_proj", "colwise"},
          {"model.layers.*.mlp.up_proj", "colwise"},
          {"model.layers.*.mlp.down_proj", "rowwise"},
          {"model.norm", "sequence"},
          {"lm_head", "head"}};
}

}  // namespace

TrainingCode training_code(const std::string& source, bool decoder) {
  if (source.starts_with("torchtitan")) {
    const Moment moment = moment_of(source);
    if (moment.known()) return titan_code(moment, decoder);
    return {.name = "torchtitan of an unknown time", .titan_model = decoder};
  }
  const int month = month_in(source);
  const bool kempner = source.starts_with("KempnerForge");
  const bool transformers = source.find("atorch") != std::string::npos || source.starts_with("llama-cookbook");
  return {.name = transformers ? "Transformers" : "Transformers, for code of its own",
          // llm-foundry's fused loss works in place; other scripts name the logits until backward is over.
          .drops_logits = source.starts_with("llm-foundry"),
          .tensor_plan = kempner ? kempner_plan() : std::map<std::string, std::string>{},
          // The table of llm-foundry's README is of 2023.
          .old_kernels = source.starts_with("llm-foundry") || (month > 0 && month < kNewKernels.month),
          .boards_of_four = kempner};
}

}  // namespace foreshard::cli
