// What a sweep varies: keys of the job with the values to try, and the grid that they span.
//
// Pure values and functions. Points are numbered in the order of the axes as given, the last one running fastest; the
// number of a point depends on the axes alone, so that parts of a sweep made on different machines fit together.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/job/job_file.h"
#include "core/job/key_meaning.h"
#include "core/model/model.h"
#include "core/result.h"
#include "sim/machine/profile.h"

namespace foreshard {

inline constexpr std::size_t kMostSweepPoints = 10'000'000;

struct SweepValue {
  std::string text;  // as given: "block", "true", "[\"layers.*\"]"
  std::vector<JobSetting> settings;
};

struct SweepAxis {
  std::string key;
  std::vector<SweepValue> values;
};

/// "key=v1,v2,...": commas inside brackets, braces and quotes do not divide. Errors: an unknown key, no value, a value
/// given twice, a value that the key does not take.
Result<SweepAxis> parse_sweep_axis(const std::string& text);

struct ChosenAxes {
  std::vector<SweepAxis> axes;
  std::vector<std::string> refused;  // degrees that cannot be, with why
};

/// The axes that make sense for this job on this machine: checkpointing, micro-batch, what the runtime gathers when,
/// hybrid sharding where there are several nodes, degrees of a mesh that cut the model, offload where the state alone
/// comes near the memory. `given` are the user's own; no other axis varies their keys.
Result<ChosenAxes> choose_sweep_axes(const Job& job, const Model& model, const HardwareProfile& profile,
                                     const std::vector<SweepAxis>& given);

class SweepGrid {
 public:
  /// Errors: no axis, one key on two axes, more than kMostSweepPoints.
  static Result<SweepGrid> make(std::vector<SweepAxis> axes);

  const std::vector<SweepAxis>& axes() const { return axes_; }
  std::size_t size() const { return size_; }
  /// Which value of each axis. REQUIRES index < size().
  std::vector<std::size_t> values_of(std::size_t index) const;
  std::size_t index_of(const std::vector<std::size_t>& values) const;
  /// The base job with the values of a point. Errors as validate_job.
  Result<Job> job_of(std::size_t index, const Job& base) const;
  /// The first point that is the same job: keys that have no meaning in it (checkpointing.k without every_k, the other
  /// runtime's) are set back to their first values.
  std::size_t same_job(std::size_t index, const Job& job) const;
  /// Keys of axes that mean nothing in any point (schedule.budget where no runtime is planned); empty for grids above
  /// kMostPointsAsked.
  std::vector<std::string> axes_without_meaning(const Job& base) const;
  static constexpr std::size_t kMostPointsAsked = 20'000;
  /// As many points that differ in sizes, allocator, memory or optimizer alone stand together, one plan for all of
  /// them.
  static constexpr std::size_t kTogether = 8;
  /// Points in the order in which neighbours share most: the keys that change the model are changed last, but for few
  /// batch sizes, which leave plans alone.
  std::vector<std::size_t> sharing_order() const;
  /// So many in a row of these differ in nothing but prefetching and what stands together: what the allocator did for
  /// one serves others of them.
  std::size_t sharing_row() const;

 private:
  int sharing_weight(const SweepAxis& axis) const;

  std::vector<SweepAxis> axes_;
  std::size_t size_ = 1;
};

}  // namespace foreshard
