#include "cli/exec_program/run_op_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"
#include "cli/session/job_source.h"
#include "core/lowering/op_rules.h"
#include "core/model/sources/load_model.h"
#include "exec/operators/operator_proof.h"

namespace foreshard::cli {
namespace {

enum class Verdict : std::uint8_t { Agrees, Differs, NotHere, NoRule };

constexpr std::string_view text_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Agrees: return "agrees";
    case Verdict::Differs: return "differs";
    case Verdict::NotHere: return "not run";
    case Verdict::NoRule: return "no rule";
  }
  return "";
}

struct CaseAnswer {
  std::string call;
  Verdict verdict = Verdict::Agrees;
  std::vector<std::string> lines;  // what differs, or why it was not run
};

struct OperatorAnswer {
  std::int32_t count = 0;  // in the program
  std::vector<CaseAnswer> cases;

  /// Of its cases the one that says most.
  Verdict verdict() const {
    Verdict worst = Verdict::Agrees;
    bool agreed = false, not_here = false;
    for (const CaseAnswer& one : cases) {
      if (one.verdict == Verdict::Differs || one.verdict == Verdict::NoRule) worst = one.verdict;
      agreed = agreed || one.verdict == Verdict::Agrees;
      not_here = not_here || one.verdict == Verdict::NotHere;
    }
    return worst == Verdict::Agrees && not_here && !agreed ? Verdict::NotHere : worst;
  }
};

using Answers = std::map<std::string, OperatorAnswer>;

/// LibTorch's errors go on for many lines about backends.
std::string first_sentence(const std::string& text) {
  const std::size_t line = std::min(text.find('\n'), text.find(". "));
  return text.substr(0, std::min<std::size_t>(line, 160));
}

CaseAnswer answer_of(const OperatorCase& what) {
  CaseAnswer answer{to_text(what), Verdict::Agrees, {}};
  if (find_op_rule(what.op.name) == nullptr) {
    answer.verdict = Verdict::NoRule;
    return answer;
  }
  auto differing = exec::prove_rule(what);
  if (!differing) {
    answer.verdict = Verdict::NotHere;
    answer.lines = {first_sentence(differing.error())};
  } else if (!differing->empty()) {
    answer.verdict = Verdict::Differs;
    answer.lines = std::move(*differing);
  }
  return answer;
}

Answers ask(const Model& model) {
  Answers answers;
  for (const OperatorCase& what : operator_cases(model)) {
    OperatorAnswer& of = answers[what.op.name];
    of.count += what.count;
    of.cases.push_back(answer_of(what));
  }
  return answers;
}

std::map<Verdict, int> counted_verdicts(const Answers& answers) {
  std::map<Verdict, int> count;
  for (const auto& [name, answer] : answers) ++count[answer.verdict()];
  return count;
}

std::string answers_text(const Answers& answers) {
  std::string text;
  const auto out = [&] { return std::back_inserter(text); };
  for (const auto& [name, answer] : answers) {
    fmt::format_to(out(), "{:<9}{:<58}{} in {}\n", text_of(answer.verdict()), name, counted(answer.count, "call"),
                   counted(static_cast<std::int64_t>(answer.cases.size()), "form"));
    for (const CaseAnswer& one : answer.cases) {
      if (one.verdict == Verdict::Agrees) continue;
      if (one.verdict != Verdict::NoRule) fmt::format_to(out(), "           {}\n", one.call);
      for (const std::string& line : one.lines) fmt::format_to(out(), "             {}\n", line);
    }
  }
  auto count = counted_verdicts(answers);
  fmt::format_to(out(), "\n{}: {} agree, {} differ, {} not run here, {} without a rule\n",
                 counted(static_cast<std::int64_t>(answers.size()), "operator"), count[Verdict::Agrees],
                 count[Verdict::Differs], count[Verdict::NotHere], count[Verdict::NoRule]);
  return text;
}

std::string answers_json(const Answers& answers) {
  JsonText out(3);
  out.begin_object().field("schema", "foreshard.op_rules/1").key("operators").begin_array();
  for (const auto& [name, answer] : answers) {
    out.begin_object().field("name", name).field("verdict", text_of(answer.verdict())).field("count", answer.count);
    out.key("forms").begin_array();
    for (const CaseAnswer& one : answer.cases) {
      out.begin_object().field("call", one.call).field("verdict", text_of(one.verdict)).key("lines").begin_array();
      for (const std::string& line : one.lines) out.value(line);
      out.end_array().end_object();
    }
    out.end_array().end_object();
  }
  out.end_array().end_object();
  return out.take();
}

}  // namespace

ExitCode run_op_rules(const JobFlags& flags, const Console& console) {
  const auto job = load_job(flags, console);
  if (!job) return console.error(job.error());
  const auto model = load_model(job->job.model, program_options(job->job));
  if (!model) return console.error(model.error());
  if (model->ops.empty()) {
    Error error;
    error.code = ErrorCode::Unsupported;
    error.file = job->job.model.source;
    error.message = "the model has no operators to ask about";
    error.expected = "a config.json, a .pt2 archive or a model.json with ops";
    return console.error(error);
  }
  const Answers answers = ask(*model);
  return console.result(console.json ? answers_json(answers) : answers_text(answers)) ? ExitCode::Ok
                                                                                      : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
