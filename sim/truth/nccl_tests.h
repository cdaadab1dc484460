// The output of nccl-tests (all_gather_perf and its siblings) as a measured collective of a profile: what a team with
// one machine can give to have its own links in a prediction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "sim/machine/profile.h"

namespace foreshard {

struct NcclTestsRun {
  MeasuredCollective measured;  // sizes ascending, out of place
  std::string device;           // "NVIDIA H100 80GB HBM3"; "" if the output does not say
  int hosts = 1;
  double worst_spread = 0;  // largest |in place - out of place| over the smaller of both: how well the times repeat
};

/// One collective a text; several runs in one text (a log of several tests) give several. Ranks are counted from the
/// device list; the kind follows from busbw / algbw and the reduction. Errors name file and line: no table, no device
/// list, a row that cannot be.
Result<std::vector<NcclTestsRun>> parse_nccl_tests(std::string_view text, const std::string& file);

}  // namespace foreshard
