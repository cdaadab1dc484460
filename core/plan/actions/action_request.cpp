#include "core/plan/actions/action_request.h"

#include <algorithm>
#include <array>

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 4> kActions{"init", "summon", "save", "load"};
constexpr std::array<std::string_view, 3> kKinds{"full", "local", "sharded"};

/// An option word, what it sets, and which actions know it.
struct Option {
  std::string_view word;
  bool ActionRequest::*field;
  bool value;
  std::array<bool, 4> known;  // by PlanAction
};
constexpr std::array<Option, 9> kOptions{{
    {"sync", &ActionRequest::sync_module_states, true, {true, false, false, false}},
    {"no_device_id", &ActionRequest::device_id, false, {true, false, false, false}},
    {"no_recurse", &ActionRequest::recurse, false, {false, true, false, false}},
    {"no_writeback", &ActionRequest::writeback, false, {false, true, false, false}},
    {"with_grads", &ActionRequest::with_grads, true, {false, true, false, false}},
    {"rank0_only", &ActionRequest::rank0_only, true, {false, true, true, true}},
    {"offload", &ActionRequest::offload_to_cpu, true, {false, true, true, false}},
    {"optimizer", &ActionRequest::optimizer, true, {false, false, true, true}},
    {"all_at_once", &ActionRequest::all_at_once, true, {false, false, true, true}},
}};

bool saves_or_loads(PlanAction action) { return action == PlanAction::Save || action == PlanAction::Load; }

std::string words_of(PlanAction action) {
  std::string text;
  const auto add = [&text](std::string_view word) { text += (text.empty() ? "" : ", ") + std::string(word); };
  if (saves_or_loads(action)) {
    for (const std::string_view kind : kKinds) add(kind);
  }
  for (const Option& option : kOptions) {
    if (option.known[static_cast<std::size_t>(action)]) add(option.word);
  }
  return text;
}

Error bad(std::string message, std::string expected, std::string_view got) {
  return {.code = ErrorCode::Usage,
          .message = std::move(message),
          .file = {},
          .place = "--action",
          .expected = std::move(expected),
          .got = std::string(got),
          .hint = "actions are separated by commas, their options by colons: init:sync,save:sharded:optimizer"};
}

std::string_view take(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return head;
}

Result<void> apply(std::string_view word, ActionRequest& request) {
  const auto kind = std::find(kKinds.begin(), kKinds.end(), word);
  if (kind != kKinds.end() && saves_or_loads(request.action)) {
    request.kind = static_cast<StateKind>(kind - kKinds.begin());
    request.kind_given = true;
    return {};
  }
  for (const Option& option : kOptions) {
    if (option.word != word || !option.known[static_cast<std::size_t>(request.action)]) continue;
    request.*option.field = option.value;
    return {};
  }
  return fail(
      bad("no such option of " + std::string(plan_action_name(request.action)), words_of(request.action), word));
}

}  // namespace

std::string_view plan_action_name(PlanAction action) { return kActions[static_cast<std::size_t>(action)]; }
std::string_view state_kind_name(StateKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

Result<std::vector<ActionRequest>> parse_actions(std::string_view text) {
  std::vector<ActionRequest> requests;
  bool more = true;
  while (more) {
    more = text.find(',') != text.npos;
    std::string_view options = take(text, ',');
    const std::string_view word = take(options, ':');
    const auto action = std::find(kActions.begin(), kActions.end(), word);
    if (action == kActions.end()) return fail(bad("no such action", "init, summon, save, load", word));
    ActionRequest request;
    request.action = static_cast<PlanAction>(action - kActions.begin());
    const bool twice = std::any_of(requests.begin(), requests.end(),
                                   [&](const ActionRequest& other) { return other.action == request.action; });
    if (twice) return fail(bad("an action stands twice", "each action once", word));
    while (!options.empty()) {
      const Result<void> applied = apply(take(options, ':'), request);
      if (!applied) return tl::unexpected(applied.error());
    }
    requests.push_back(request);
  }
  return requests;
}

std::string action_text(const ActionRequest& request) {
  std::string text(plan_action_name(request.action));
  if (request.kind_given) text += ":" + std::string(state_kind_name(request.kind));
  for (const Option& option : kOptions) {
    if (option.known[static_cast<std::size_t>(request.action)] && request.*option.field == option.value) {
      text += ":" + std::string(option.word);
    }
  }
  return text;
}

}  // namespace foreshard
