// `foreshard fit`: from a model and GPUs to the jobs that train it fastest, and to the longest sequence that fits.
//
// Every choice is a simulated job; what is said of the others was simulated too, or is bounded by what was: a layout
// whose compute alone takes longer than the best job found is cut. Deterministic but for `seconds`; times in
// nanoseconds, sizes in bytes. The grid that the search walks is fit_lines(), so that it can be laid beside all of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/result.h"
#include "sim/fit/context.h"
#include "sim/fit/try_jobs.h"
#include "sim/simulate.h"

namespace foreshard {

struct FitRequest {
  Job job;                                   // model, cluster and all that is not searched
  std::vector<std::string> methods{"full"};  // full | lora
  std::int64_t tokens_per_step = 0;          // of all ranks; 0 = as many as fit, without accumulation
  bool context_first = false;                // the choices are for the longest sequence that fits
  bool one_precision = false;                // gathers and reductions in one dtype, as accelerate sets them
  std::size_t choices = 3;
  int threads = 0;  // 0 = one a core
  /// False for jobs that the programs which are to run them cannot be told.
  std::function<bool(const Job&, const std::vector<std::string>& set)> sayable;
  std::function<void(const std::string& what, std::size_t done, std::size_t total)> progress;
};

struct FitChoice {
  Job job;
  std::vector<std::string> set;  // on the request's job
  std::string layout, recomputation;
  Prediction prediction;
  std::int64_t sequence = 0;  // tokens; a program that was captured has its own, whatever the job's default is
  std::vector<std::string> why;
};

struct FitMethod {
  std::string method;
  std::optional<Error> refused;  // this method cannot be planned for this job
  std::vector<FitChoice> choices;
  std::optional<LongestContext> longest;  // of the layout that needs least memory
  std::vector<std::string> longest_set;
  std::vector<std::string> smallest_set;
  Job smallest;  // the job that needs least memory, where nothing fits: changes start from here
  std::size_t lines = 0, cut = 0, unsayable = 0, simulated = 0;
  std::vector<std::string> not_tried;  // what the search left out, and why
};

struct FitAnswer {
  std::vector<FitMethod> methods;
  double seconds = 0;
};

/// Errors: a model that cannot be read, tokens that no batch makes up. What a method cannot do is in its answer.
Result<FitAnswer> fit(const FitRequest& request);

/// The settings of a method on the request's job.
Result<std::vector<std::string>> method_settings(const std::string& method);

/// All lines of a method, none tried, none cut. Lines that cannot be planned carry their reason.
std::vector<FitLine> fit_lines(const Job& job, const FitRequest& request);

}  // namespace foreshard
