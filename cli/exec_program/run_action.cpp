#include "cli/exec_program/run_action.h"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/exec_program/devices/run_device.h"
#include "cli/exec_program/measured_actions.h"
#include "cli/exec_program/run_timeline.h"
#include "cli/reports/action_report.h"
#include "core/text/utf8.h"
#include "exec/actions/action_run.h"
#include "exec/record/recorder.h"
#include "sim/simulate.h"

namespace foreshard::cli {
namespace {

/// As `simulate --action` does, by action; none where the card would be too small.
Result<std::vector<std::optional<PredictedAction>>> predict(const Prepared& prepared, const Job& job) {
  const auto prediction =
      simulate(prepared.plan, prepared.model, prepared.lowered, job, prepared.profile, simulate_options(job));
  if (!prediction) return fail(prediction.error());
  std::vector<std::optional<PredictedAction>> actions(prepared.plan.iterations.size());
  for (std::size_t a = 0; a < actions.size() && prediction->fits && a < prediction->iterations.size(); ++a) {
    const IterationResult& of = prediction->iterations[a];
    actions[a] = PredictedAction{of.peak_requested, of.end_requested, of.peak_allocated};
  }
  return actions;
}

/// One rank, from its job to what rank 0 tells.
class RankOfActions {
 public:
  RankOfActions(RankSession& session, const RunFlags& flags, const Console& console, const Job& job)
      : session_(session), flags_(flags), console_(console), job_(job) {
    job_.cluster.rank = session.place().rank;
  }

  ExitCode run() {
    const auto prepared = prepare_actions(job_, flags_.action, /*on_host=*/true);
    if (!prepared) return session_.wrong(prepared.error());
    const auto predicted = predict(*prepared, job_);
    if (!predicted) return session_.wrong(predicted.error());
    if (!flags_.timeline.empty() || !flags_.trace.empty()) recorder_.emplace();
    const auto run = exec::ActionRun::open(setup(*prepared));
    if (!run) return session_.wrong(run.error());
    auto end = (*run)->run();
    if (!end) return session_.wrong(end.error());
    if (!end->failure.empty()) return session_.failed(end->failure);
    if (recorder_) {
      const auto written = write_run_timeline(prepared->plan, (*run)->control(), *recorder_,
                                              {flags_.timeline, flags_.trace, processor_text()});
      if (!written) return session_.wrong(written.error());
    }
    std::vector<ActionOnRank> own;
    for (std::size_t a = 0; a < end->actions.size(); ++a) {
      own.push_back({std::move(end->actions[a]), (*predicted)[a]});
    }
    return tell(*prepared, own, (*run)->control()) ? ExitCode::Ok : ExitCode::RunFailed;
  }

 private:
  exec::ActionRunSetup setup(const Prepared& prepared) {
    exec::ActionRunSetup setup{job_, prepared.model, prepared.plan, session_.place()};
    setup.connect = [this](const std::string& name, const std::vector<int>& ranks) {
      return session_.connect(name, ranks);
    };
    setup.intra_op_threads =
        exec::intra_op_threads(session_.place(), [](const char* name) { return std::getenv(name); });
    setup.recorder = recorder_ ? &*recorder_ : nullptr;
    setup.resume = flags_.resume;
    if (session_.first()) setup.note = [this](const std::string& text) { console_.note("note: " + text); };
    return setup;
  }

  /// Every rank to rank 0, which tells it.
  bool tell(const Prepared& prepared, const std::vector<ActionOnRank>& own, exec::Communicator* control) {
    std::vector<std::string> texts{to_json_text(own)};
    if (control != nullptr) texts = exec::gather_texts(texts.front(), *control);
    if (!session_.first()) return true;
    MeasuredActions measured{job_, prepared.model, prepared.plan, {}};
    for (const std::string& text : texts) measured.ranks.push_back(actions_from_json(text));
    return console_.result(console_.json ? actions_json(measured) : actions_text(measured));
  }

  RankSession& session_;
  const RunFlags& flags_;
  const Console& console_;
  Job job_;
  std::optional<exec::Recorder> recorder_;
};

}  // namespace

ExitCode run_actions(RankSession& session, const RunFlags& flags, const Console& console, const Job& job) {
  try {
    return RankOfActions(session, flags, console, job).run();
  } catch (const std::exception& error) {  // a peer is gone, a weight cannot be read
    return session.failed(fmt::format("rank {}: {}", session.place().rank, first_line(error.what())));
  }
}

}  // namespace foreshard::cli
