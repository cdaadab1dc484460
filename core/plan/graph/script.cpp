#include "core/plan/graph/script.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace foreshard {
namespace {

struct Word {
  std::string_view text;
  Action::Kind kind;
};

constexpr std::array<Word, 15> kWords{{{"zero", Action::Kind::Zero},
                                       {"fwd", Action::Kind::Forward},
                                       {"fwd_rest", Action::Kind::Forward},
                                       {"bwd", Action::Kind::Backward},
                                       {"bwd_all", Action::Kind::BackwardAll},
                                       {"bwd_keep", Action::Kind::BackwardKeep},
                                       {"step", Action::Kind::Step},
                                       {"clip", Action::Kind::Clip},
                                       {"unscale", Action::Kind::Unscale},
                                       {"update", Action::Kind::UpdateScale},
                                       {"no_sync{", Action::Kind::NoSyncEnter},
                                       {"nograd_fwd", Action::Kind::NoGradForward},
                                       {"eval", Action::Kind::Eval},
                                       {"train", Action::Kind::Train},
                                       {"wait", Action::Kind::WaitUnshard}}};

Error bad_action(const std::string& text, const std::string& why) {
  return {.code = ErrorCode::OutOfRange,
          .message = why,
          .file = {},
          .place = "train.script",
          .expected =
              "zero, fwd, fwd_rest, bwd[:k], bwd_all, bwd_keep, step, clip, unscale, update, no_sync{, summon{, }, "
              "nograd_fwd, "
              "eval, train, "
              "unshard:UNIT, wait, call:UNIT:METHOD[:ARGS]",
          .got = "\"" + text + "\"",
          .hint = "see docs/formats/job.md, section script"};
}

/// The number after a key of a flat JSON object; -1 if it is not there.
std::int32_t number_of(const std::string& args, const char* name) {
  const std::size_t key = args.find("\"" + std::string(name) + "\"");
  std::size_t at = key == std::string::npos ? key : args.find_first_of("0123456789", args.find(':', key));
  if (at == std::string::npos) return -1;
  std::int32_t number = 0;
  for (; at < args.size() && args[at] >= '0' && args[at] <= '9' && number < 100'000'000; ++at) {
    number = 10 * number + (args[at] - '0');
  }
  return number;
}

bool flag_of(const std::string& args, const char* name, bool otherwise) {
  const std::size_t key = args.find("\"" + std::string(name) + "\"");
  if (key == std::string::npos) return otherwise;
  const std::size_t value = args.find_first_of("tf", args.find(':', key));
  return value == std::string::npos ? otherwise : args[value] == 't';
}

SummonOptions summon_options(const std::string& args) {
  return {
      number_of(args, "state"),           flag_of(args, "recurse", true),         flag_of(args, "writeback", true),
      flag_of(args, "rank0_only", false), flag_of(args, "offload_to_cpu", false), flag_of(args, "with_grads", false)};
}

struct MethodName {
  std::string_view text;
  UnitMethod method;
};

constexpr std::array<MethodName, 22> kMethods{
    {{"set_requires_gradient_sync", UnitMethod::SetRequiresGradientSync},
     {"set_requires_all_reduce", UnitMethod::SetRequiresAllReduce},
     {"set_reshard_after_forward", UnitMethod::SetReshardAfterForward},
     {"set_reshard_after_backward", UnitMethod::SetReshardAfterBackward},
     {"_set_unshard_async_op", UnitMethod::SetUnshardAsyncOp},
     {"set_is_last_backward", UnitMethod::SetIsLastBackward},
     {"set_unshard_in_backward", UnitMethod::SetUnshardInBackward},
     {"set_force_sum_reduction_for_comms", UnitMethod::SetForceSumReductionForComms},
     {"set_gradient_divide_factor", UnitMethod::SetGradientDivideFactor},
     {"set_reduce_scatter_divide_factor", UnitMethod::SetGradientDivideFactor},
     {"set_modules_to_forward_prefetch", UnitMethod::SetModulesToForwardPrefetch},
     {"set_modules_to_backward_prefetch", UnitMethod::SetModulesToBackwardPrefetch},
     {"set_all_reduce_hook", UnitMethod::SetAllReduceHook},
     {"set_post_optim_event", UnitMethod::SetPostOptimEvent},
     {"unshard", UnitMethod::Unshard},
     {"reshard", UnitMethod::Reshard},
     {"state_dict", UnitMethod::StateDict},
     {"forward", UnitMethod::Forward},
     {"set_allocate_memory_from_process_group_for_comm", UnitMethod::Buffers},
     {"set_custom_all_gather", UnitMethod::Buffers},
     {"set_custom_reduce_scatter", UnitMethod::Buffers},
     {"register_fsdp_forward_method", UnitMethod::Buffers}}};

/// "true", "false,recurse=false", "6.0", "layers.1,layers.2"; brackets and quotes may stay.
std::vector<std::string> arguments_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != '[' && c != ']' && c != '"' && c != '{' && c != '}' && c != ' ') {
      words.back() += c == ':' ? '=' : c;
    }
  }
  if (words.size() == 1 && words[0].empty() && text.find('"') == std::string::npos) words.clear();
  return words;
}

}  // namespace

std::vector<std::string> usual_actions(const Job& job) {
  std::vector<std::string> texts{"zero"};
  for (std::int64_t k = 0; k < job.train.micro_batches; ++k) {
    const bool hold = job.train.no_sync && k + 1 < job.train.micro_batches;
    if (hold) texts.push_back("no_sync{");
    texts.insert(texts.end(), {"fwd", "bwd"});
    if (hold) texts.push_back("}");
  }
  if (job.train.grad_scaler.enabled) texts.push_back("unscale");
  if (job.train.clip_grad_norm > 0) texts.push_back("clip");
  texts.push_back("step");
  if (job.train.grad_scaler.enabled) texts.push_back("update");
  return texts;
}

UnitCall unit_call(const std::string& method, const std::string& args) {
  UnitCall call;
  for (const MethodName& known : kMethods) {
    if (known.text == method) call.method = known.method;
  }
  call.arguments = arguments_of(args);
  return call;
}

std::optional<bool> UnitCall::truth(std::optional<bool> absent) const {
  if (arguments.empty() || arguments[0].starts_with("recurse")) return absent;
  const std::size_t equals = arguments[0].find('=');
  const std::string value = equals == std::string::npos ? arguments[0] : arguments[0].substr(equals + 1);
  if (value == "true" || value == "True") return true;
  if (value == "false" || value == "False") return false;
  return std::nullopt;
}

bool UnitCall::recurses(bool positional) const {
  const auto no = [&](const std::string& w) {
    return w == "recurse=false" || w == "recurse=False" || (positional && (w == "false" || w == "False"));
  };
  return arguments.size() < 2 || std::none_of(arguments.begin() + 1, arguments.end(), no);
}

bool UnitCall::has_positional_second() const {
  return arguments.size() > 1 && arguments[1].find('=') == std::string::npos;
}

std::optional<double> UnitCall::number() const {
  if (arguments.empty()) return std::nullopt;
  double value = 0;
  const std::string& text = arguments[0];
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<Action> parse_action(const std::string& text) {
  Action action;
  action.text = text;
  for (const Word& word : kWords) {
    if (word.text == text) {
      action.kind = word.kind;
      action.rest = text == "fwd_rest";
      return action;
    }
  }
  const std::string_view view = text;
  if (view.starts_with("bwd:")) {
    action.kind = Action::Kind::Backward;
    const char* first = text.data() + 4;
    const char* last = text.data() + text.size();
    const auto [end, ec] = std::from_chars(first, last, action.output);
    if (ec == std::errc() && end == last && action.output >= 0) return action;
    return fail(bad_action(text, "the number of the pending output is missing"));
  }
  if (view.starts_with("unshard:")) {
    action.kind = Action::Kind::Unshard;
    action.unit = text.substr(8);
    return action;
  }
  if (view.starts_with("summon{")) {
    action.kind = Action::Kind::SummonEnter;
    if (view.size() > 7) {
      if (view[7] != ':') return fail(bad_action(text, "the arguments of summon follow a colon"));
      action.args = text.substr(8);
    }
    action.summon = summon_options(action.args);
    return action;
  }
  if (view.starts_with("call:")) {
    action.kind = Action::Kind::Call;
    const std::size_t method = text.find(':', 5);
    if (method == std::string::npos) return fail(bad_action(text, "a call names its unit and its method"));
    action.unit = text.substr(5, method - 5);
    const std::size_t args = text.find(':', method + 1);
    action.method = text.substr(method + 1, args == std::string::npos ? args : args - method - 1);
    if (args != std::string::npos) action.args = text.substr(args + 1);
    action.call = unit_call(action.method, action.args);
    return action;
  }
  // A lone brace closes whatever is open; script_of turns it into the right kind.
  if (view == "}") {
    action.kind = Action::Kind::NoSyncExit;
    return action;
  }
  return fail(bad_action(text, "unknown action"));
}

Result<Script> script_of(const Job& job) {
  Script script;
  if (!job.train.script.empty()) {
    script.repeat = false;
    for (const std::vector<std::string>& texts : job.train.script) {
      IterationScript iteration;
      std::vector<Action::Kind> open;
      for (const std::string& text : texts) {
        Result<Action> action = parse_action(text);
        if (!action) return tl::unexpected(action.error());
        if (action->kind == Action::Kind::NoSyncEnter || action->kind == Action::Kind::SummonEnter) {
          open.push_back(action->kind);
        } else if (text == "}") {
          if (open.empty()) return fail(bad_action(text, "nothing is open here"));
          action->kind = open.back() == Action::Kind::SummonEnter ? Action::Kind::SummonExit : Action::Kind::NoSyncExit;
          open.pop_back();
        }
        iteration.push_back(std::move(*action));
      }
      if (!open.empty()) return fail(bad_action("}", "a context is left open at the end of an iteration"));
      script.iterations.push_back(std::move(iteration));
    }
    return script;
  }
  IterationScript iteration;
  for (const std::string& text : usual_actions(job)) iteration.push_back(parse_action(text).value());
  script.iterations.push_back(std::move(iteration));
  return script;
}

Job evaluation_job(const Job& job, bool after_training) {
  Job evaluation = job;
  evaluation.train.script.clear();
  if (after_training) evaluation.train.script.push_back(usual_actions(job));
  std::vector<std::string> texts{"eval"};
  texts.insert(texts.end(), static_cast<std::size_t>(job.train.eval.batches), "nograd_fwd");
  texts.push_back("train");
  evaluation.train.script.push_back(std::move(texts));
  return evaluation;
}

}  // namespace foreshard
