// What the device did and when: CUPTI's activity records, given to the instructions that caused them.
//
//   issuer    |at 7: launch k1 k2|at 8: ...        API calls, each with a correlation id
//   stream D          |k1||k2|                     kernels with the same ids
//
// A record belongs to the instruction under which its API call was made: by the external correlation id that the issuer
// has pushed, or, where another thread called (autograd's runs backward while the issuer waits for it), by the
// instruction that the issuer stood at when the call began. Both are told on the host's clock, so no device time
// decides. CUPTI is asked to stamp with the steady clock, the Recorder's.
//
// Once a second a step waits for CUPTI's flush, and no longer: a thread of the recorder's own reads the records while
// the next steps are issued. A record that comes a flush late finds what its launch left.
//
// Waits, with the stream whose event is awaited, and memory that the driver hands out become DriverCalls.
//
// Whatever CUPTI refuses is an Error to be told: training goes on without.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "exec/record/recorder.h"

struct CUstream_st;

namespace foreshard::exec {

class CuptiRecorder {
 public:
  virtual ~CuptiRecorder() = default;

  /// One at a time in a process; before its first CUDA call, or records may miss the clock. Errors: another profiler
  /// holds CUPTI, counters are not permitted (ERR_NVGPUCTRPERM), no driver.
  static Result<std::unique_ptr<CuptiRecorder>> start(RecordedKinds kinds = RecordedKinds::All);

  /// Kinds of records that this driver does not give; the others come.
  virtual std::vector<Error> refused() const = 0;

  // ---- The issuer's side.
  virtual void at_instruction(std::int32_t step, InstructionId instruction) = 0;

  /// Has the records that are complete, where the last flush is a second ago, taken to the lanes of their streams and
  /// to `calls`, which nobody else may touch before finish(). REQUIRES that the device is idle. Returns what was
  /// counted since the last call.
  virtual DeviceRecordCounts collect(const std::vector<std::pair<CUstream_st*, RecordedLane*>>& lanes,
                                     DriverCalls& calls) = 0;
  /// Waits until all records are in their lanes, also those that CUPTI held back.
  virtual DeviceRecordCounts finish() = 0;
};

}  // namespace foreshard::exec
