#include "core/plan/graph/script.h"

#include <array>
#include <charconv>

namespace foreshard {
namespace {

struct Word {
  std::string_view text;
  Action::Kind kind;
};

constexpr std::array<Word, 14> kWords{{{"zero", Action::Kind::Zero},
                                       {"fwd", Action::Kind::Forward},
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
              "zero, fwd, bwd[:k], bwd_all, bwd_keep, step, clip, unscale, update, no_sync{, summon{, }, nograd_fwd, "
              "eval, train, "
              "unshard:UNIT, wait, call:UNIT:METHOD[:ARGS]",
          .got = "\"" + text + "\"",
          .hint = "see docs/formats/job.md, section script"};
}

/// What one iteration of the usual loop does.
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

}  // namespace

Result<Action> parse_action(const std::string& text) {
  Action action;
  action.text = text;
  for (const Word& word : kWords) {
    if (word.text == text) {
      action.kind = word.kind;
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
