#include "sim/fit/context.h"

#include <algorithm>
#include <utility>

namespace foreshard {
namespace {

constexpr std::int64_t kFineStep = 128, kStep = 1024;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 14;

enum class Answer { Fits, TooLong, NoModel };

}  // namespace

Result<LongestContext> longest_context(const Job& job, Workbench& bench) {
  LongestContext out;
  Error refused;
  const auto answer = [&](std::int64_t tokens) {
    Job longer = job;
    longer.model.seq = tokens;
    longer.model.seq_given = true;
    ++out.simulated;
    const auto prediction = bench.predict(longer);
    if (!prediction) {
      refused = prediction.error();
      return Answer::NoModel;
    }
    return prediction->fits && prediction->deadlock.empty() ? Answer::Fits : Answer::TooLong;
  };
  // Doubling from one step on, then halving what is left between the last that fits and the first that does not.
  std::int64_t step = kStep;
  Answer first = answer(step);
  if (first != Answer::Fits) {
    const bool model = first == Answer::NoModel;
    step = kFineStep;
    first = answer(step);
    if (first == Answer::NoModel && model) return fail(std::move(refused));
    if (first != Answer::Fits) return out;
  }
  std::int64_t good = 1, bad = kMostSteps;
  Answer why = Answer::TooLong;
  for (std::int64_t probe = 2; good < bad - 1;) {
    const Answer found = answer(probe * step);
    if (found == Answer::Fits) {
      good = probe;
    } else {
      bad = probe;
      why = found;
    }
    probe = bad == kMostSteps ? std::min(good * 2, bad - 1) : (good + bad) / 2;
  }
  out.tokens = good * step;
  out.model_ends = why == Answer::NoModel;
  if (!out.model_ends && bad < kMostSteps) out.too_long = bad * step;
  return out;
}

}  // namespace foreshard
