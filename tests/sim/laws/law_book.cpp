#include "tests/sim/laws/law_book.h"

#include <fmt/format.h>

#include <cmath>

namespace foreshard::testing {

/// One in ten, and three standard deviations: a few hundred jobs are a sample.
bool LawRecord::holds() const {
  if (!often) return broken == 0;
  const auto tried = static_cast<double>(held + broken);
  return static_cast<double>(broken) <= 0.1 * tried + 3 * std::sqrt(0.1 * 0.9 * tried);
}

void merge(LawRun& into, const LawRun& from) {
  into.jobs += from.jobs;
  into.refused += from.refused;
  into.simulations += from.simulations;
  into.growing += from.growing;
  into.restless += from.restless;
  for (const auto& [length, count] : from.lengths) into.lengths[length] += count;
  for (const auto& [kind, count] : from.kinds) into.kinds[kind] += count;
  for (const auto& [law, record] : from.book) {
    LawRecord& all = into.book[law];
    all.held += record.held;
    all.broken += record.broken;
    all.often = record.often;
    if (record.example.empty() || (!all.example.empty() && record.worst <= all.worst)) continue;
    all.worst = record.worst;
    all.example = record.example;
  }
}

void Judge::check(const std::string& law, bool holds, double excess, const std::string& what) {
  LawRecord& record = run_.book[law];
  if (holds) {
    ++record.held;
    return;
  }
  ++record.broken;
  if (!record.example.empty() && excess <= record.worst) return;
  record.worst = excess;
  record.example = fmt::format("{} {}", what, job_);
}

void Judge::at_most(const std::string& law, double less, double more, const std::string& what) {
  const double excess = more > 0 ? less / more - 1 : less;
  check(law, less <= more + 0.5, excess, fmt::format("{} > {} {}", less, more, what));
}

void Judge::mostly_at_most(const std::string& law, double less, double more) {
  at_most(law, less, more);
  run_.book[law].often = true;
}

}  // namespace foreshard::testing
