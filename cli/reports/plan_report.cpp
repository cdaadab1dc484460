#include "cli/reports/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/console/amount_text.h"
#include "core/plan/form/plan_text.h"
#include "core/plan_warnings.h"
#include "core/text/format_append.h"

namespace foreshard::cli {
namespace {

class Summary {
 public:
  explicit Summary(const Plan& plan) : plan_(plan) {}

  std::string text() {
    head();
    units();
    order();
    iterations();
    checks();
    notes();
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    out_ += "# ";
    format_append(out_, format, std::forward<Args>(args)...);
    while (out_.back() == ' ') out_.pop_back();
    out_ += '\n';
  }

  static std::string named(const std::string& unit) { return unit.empty() ? "(root)" : unit; }

  void head() {
    line("{}, {}, rank {}: {}, {}", runtime_name(plan_.runtime), counted(plan_.world_size, "rank"), plan_.rank,
         counted(static_cast<std::int64_t>(plan_.units.size()), "unit"),
         counted(static_cast<std::int64_t>(plan_.iterations.size()), "iteration"));
    if (!plan_.iterations.empty())
      line("{}",
           plan_.steady ? "the last iteration repeats from here on" : "not steady: the last two iterations differ");
    if (plan_.groups.shard.size() + plan_.groups.replicate.size() > 0) {
      line("shard group of {}, replicate group of {}; gradients divided by {:g} before and {:g} after",
           plan_.groups.shard.size(), std::max<std::size_t>(1, plan_.groups.replicate.size()), plan_.pre_divide,
           plan_.post_divide);
    }
  }

  void units() {
    std::size_t width = 6;
    for (const PlanUnit& unit : plan_.units)
      width = std::max(width, std::min<std::size_t>(48, named(unit.name).size()));
    line("");
    line("{:<{}}  {:>7}{:>16}{:>13}{:>13}  {}", "unit", width, "params", "elements", "gathered", "shard", "strategy");
    for (const PlanUnit& unit : plan_.units) {
      line("{:<{}}  {:>7}{:>16}{:>13}{:>13}  {}{}", named(unit.name), width, unit.params.size(),
           grouped_text(unit.numel), bytes_text(unit.padded_numel * itemsize(unit.param_dtype)),
           bytes_text(unit.shard_numel * itemsize(unit.orig_dtype)), strategy_name(unit.strategy),
           unit.requires_grad ? "" : ", frozen");
    }
  }

  std::string listed(const std::vector<UnitId>& units) const {
    constexpr std::size_t kShown = 6;
    std::string text;
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (units.size() > kShown && i == kShown - 1) {
        text += fmt::format(" ... {} more ...", units.size() - kShown);
        i = units.size() - 1;
      }
      text += (i == 0 ? "" : " ") + named(plan_.units[units[i].index()].name);
    }
    return text;
  }

  void order() {
    if (plan_.iterations.empty()) return;
    line("");
    line("order of pre-forwards:  {}", listed(plan_.iterations.back().pre_order));
    line("order of post-forwards: {}", listed(plan_.iterations.back().post_order));
  }

  void iterations() {
    line("");
    for (const PlanIteration& iteration : plan_.iterations) {
      const PlanCounts c = count_instructions(iteration);
      std::string text = counted(static_cast<std::int64_t>(iteration.instructions.size()), "instruction");
      const std::pair<std::int64_t, const char*> counts[] = {{c.all_gather, "all_gather"},
                                                             {c.reduce_scatter, "reduce_scatter"},
                                                             {c.all_reduce, "all_reduce"},
                                                             {c.broadcast, "broadcast"},
                                                             {c.h2d, "h2d"},
                                                             {c.d2h, "d2h"},
                                                             {c.limiter_waits, "limiter waits"}};
      for (const auto& [count, what] : counts) {
        if (count > 0) text += fmt::format(", {} {}", count, what);
      }
      line("iteration {}: {}", iteration.index, text);
    }
  }

  void checks() {
    if (plan_.checks.empty()) return;
    line("");
    for (const PlanCheck& check : plan_.checks) {
      const char* status = check.status == CheckStatus::Pass   ? "holds"
                           : check.status == CheckStatus::Fail ? "FAILS"
                                                               : "not here";
      line("{:<4} {:<9} {}", check.name, status, check.text);
    }
  }

  void notes() {
    for (const Trap& trap : plan_.traps) {
      line("");
      line("trap {}: {} ({}){}", trap.number, trap.name, trap.rules, trap.refused ? ", allowed on purpose" : "");
      line("  {}", trap.text);
      if (!trap.remedy.empty()) line("  instead: {}", trap.remedy);
    }
    for (const std::string& warning : plan_.warnings) line("{}: {}", said(warning).by, said(warning).text);
    if (plan_.failure)
      line("PyTorch raises {} at {} of iteration {}: {}", plan_.failure->error_class, plan_.failure->action,
           plan_.failure->iteration, plan_.failure->text);
  }

  const Plan& plan_;
  std::string out_;
};

}  // namespace

std::string plan_summary(const Plan& plan) { return Summary(plan).text(); }

std::string plan_report(const Plan& plan) { return plan_summary(plan) + "\n" + plan_to_text(plan); }

}  // namespace foreshard::cli
