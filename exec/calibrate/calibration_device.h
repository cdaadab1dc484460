// What calibration asks of the device that it measures: where tensors lie, how work is timed, what the host pays.
//
// One object for all ranks; each rank's thread enters with its number and takes a stopwatch of its own.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/result.h"
#include "core/units.h"

namespace foreshard::exec {

/// Times pieces of work that follow one another on a stream; one thread's.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  /// What follows is issued before any of it runs, so that the time between two pieces is the device's and not the
  /// issuer's. Nothing where work runs at once.
  virtual void ahead() = 0;
  /// The same where the device has caught up with the issuer: behind an operator that the host waits for, say.
  virtual void keep_ahead() = 0;
  virtual void start() = 0;
  virtual void stop() = 0;
  /// Waits; ns from each start to its stop since the last call.
  virtual std::vector<std::int64_t> take() = 0;
  /// Waits until all that was issued is done. Nothing where work runs at once.
  virtual void settle() = 0;
};

/// What the issuer pays for one call each, ns. 0: not known.
struct HostCosts {
  SimDuration issue = 0, event = 0, allocation = 0;
};

class CalibrationDevice {
 public:
  virtual ~CalibrationDevice() = default;
  /// On the rank's own thread, first of all: tensors of this thread are made there from now on.
  virtual c10::Device enter(int rank) = 0;
  virtual std::unique_ptr<Stopwatch> stopwatch() = 0;
  virtual HostCosts host_costs() = 0;
  virtual Bytes largest_collective() const = 0;
};

/// CPUs: every rank is a thread.
std::unique_ptr<CalibrationDevice> host_calibration_device();

}  // namespace foreshard::exec
