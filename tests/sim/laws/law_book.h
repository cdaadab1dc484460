// What was asked of random jobs and how often it held. A law that broke keeps its worst example, with the seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace foreshard::testing {

struct LawRecord {
  std::int64_t held = 0, broken = 0;
  double worst = 0;     // how far beyond the bound, relative to it; 0 where it held
  std::string example;  // of the worst
  bool often = false;   // holds for nine jobs of ten: nothing bounds the others

  bool holds() const;
};

/// By the law's name.
using LawBook = std::map<std::string, LawRecord>;

struct LawRun {
  LawBook book;
  std::int64_t jobs = 0, refused = 0, simulations = 0, growing = 0, restless = 0;
  std::map<std::size_t, std::int64_t> lengths;  // iterations played until the allocator had settled
  std::map<std::string, std::int64_t> kinds;    // jobs by runtime, meshes and archives apart
};

void merge(LawRun& into, const LawRun& from);

/// Writes what holds for one job into the book.
class Judge {
 public:
  /// `job`: the job's text, for examples. `run` outlives it.
  Judge(LawRun& run, std::string job) : run_(run), job_(std::move(job)) {}

  void check(const std::string& law, bool holds, double excess = 0, const std::string& what = {});
  /// `less` <= `more`, in whole nanoseconds or bytes.
  void at_most(const std::string& law, double less, double more, const std::string& what = {});
  /// The same, of jobs in general: the allocator's cache obeys no bound worth stating.
  void mostly_at_most(const std::string& law, double less, double more);
  LawRun& run() { return run_; }

 private:
  LawRun& run_;
  std::string job_;
};

}  // namespace foreshard::testing
