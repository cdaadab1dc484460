#include "cli/session/run_action_check.h"

#include <string>
#include <utility>

#include "cli/console/usage_error.h"
#include "core/plan/actions/action_request.h"

namespace foreshard::cli {
namespace {

Result<void> refuse(std::string place, std::string message, std::string got, std::string hint) {
  Error error = usage_error(std::move(message), "", std::move(got));
  error.place = std::move(place);
  error.hint = std::move(hint);
  return fail(std::move(error));
}

}  // namespace

Result<void> check_action_flags(const RunFlags& flags) {
  if (flags.action == "train") return {};
  if (flags.action == "eval") {
    return refuse("--action", "run evaluates while it trains", "eval",
                  "--set train.eval.every=N; plan and simulate have --action eval");
  }
  if (const auto actions = parse_actions(flags.action); !actions) return fail(actions.error());
  if (flags.emulate_world > 0) {
    return refuse("--emulate-world", "an action gathers what other ranks hold, and here they do not exist",
                  flags.action, "--nproc N, or simulate --action " + flags.action);
  }
  if (flags.backend != "host") {
    return refuse("--backend", "actions run on the host", flags.backend,
                  "--backend host; simulate --action " + flags.action + " predicts them on a card");
  }
  return {};
}

Result<void> check_action_list(const RunFlags& flags, const Job& job) {
  if (flags.action == "train") return {};
  const auto requests = parse_actions(flags.action);
  if (!requests) return fail(requests.error());
  const PlanAction begins = requests->front().action;
  bool optimizer_state = begins == PlanAction::Summon || begins == PlanAction::Save;
  bool loads = false;
  for (const ActionRequest& request : *requests) {
    if (request.action == PlanAction::Init && &request != &requests->front()) {
      return refuse("--action", "init wraps what is not wrapped yet", action_text(request), "put init first");
    }
    if (request.action == PlanAction::Save && request.optimizer && !optimizer_state) {
      return refuse("--action", "nothing has made the optimizer's state yet", action_text(request),
                    "begin with save: the state is then as training leaves it (zero, or that of --resume)");
    }
    loads = loads || request.action == PlanAction::Load;
    optimizer_state = optimizer_state || (request.action == PlanAction::Load && request.optimizer);
  }
  if (!flags.resume) return {};
  if (job.train.checkpoint.dir.empty()) {
    return refuse("train.checkpoint.dir", "--resume needs a folder of checkpoints", "none",
                  "--set train.checkpoint.dir=DIR");
  }
  if (begins != PlanAction::Init || loads) return {};
  return refuse("--action", "nothing reads the checkpoint: init begins with the job's own values", flags.action,
                "leave --resume or init away, or load after it");
}

}  // namespace foreshard::cli
