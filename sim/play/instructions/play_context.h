// What is played, on what, and where it stands: shared by everything that plays one plan, each of which plays its kind
// of instructions. Owned by one PlanPlayer; outlived by what it refers to.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/lowering/lowering.h"
#include "core/model/model.h"
#include "core/plan.h"
#include "sim/device/device.h"
#include "sim/play/loop_phase.h"
#include "sim/play/prediction.h"
#include "sim/play/prepared_plan.h"

namespace foreshard {

inline constexpr int kCompute = static_cast<int>(Stream::D);  // the pool that tapes are of

/// What stopped it, when something did: out of memory, or a wait that nobody ends.
struct PlayStop {
  std::int32_t instruction = -1;  // position in the iteration
  LoopPhase phase = LoopPhase::None;
  Bytes requested = 0, free = 0;
  bool deadlock = false;
  std::string text;  // deadlock: who waits for whom
};

/// The ledger at one moment, for counters.
struct LedgerSample {
  SimTime time = 0;
  Bytes allocated = 0, active = 0, reserved = 0;
  MemoryBook::Categories categories{};
};

/// When the last gradient of the backward that was played last is final, and up to which position of the iteration
/// other streams wait for that instead of all that the backward did.
struct GradientsReady {
  EventStamp event;
  std::int32_t until = -1;
};

struct PlayContext {
  const Plan& plan;
  const Model& model;
  const LoweredProgram& lowered;
  const Job& job;
  Device& device;
  const PreparedPlan& prepared;
  Waived waived = Waived::Nothing;

  const PlanIteration* iteration = nullptr;  // that is played
  std::int32_t position = 0;                 // in it
  const BufferStep* buffer = nullptr;        // of the instruction there, if it is over one of the compute stream
  std::int32_t first_instruction = 0;        // the id of its first, over all iterations played
  LoopPhase phase = LoopPhase::None;
  PlayStop stop;
  GradientsReady gradients_ready;
  std::vector<LedgerSample> samples;  // only when spans are kept

  std::int32_t instruction() const { return first_instruction + position; }

  /// Notes what was asked for and what there was. Always false: what a play() answers that has to stop.
  bool out_of_memory(Bytes requested) {
    const AllocatorStats& stats = device.allocator.stats();
    stop.requested = requested;
    stop.free = device.driver.free_bytes() + stats.reserved.current - stats.active.current;
    return false;
  }

  LedgerSample ledger_now() const {
    const AllocatorStats& stats = device.allocator.stats();
    return {device.clock.host(), stats.allocated.current, stats.active.current, stats.reserved.current,
            device.book.now()};
  }

  ActivitySpan span_of(const Instruction& i, SpanKind kind) const {
    ActivitySpan span;
    span.kind = kind;
    span.instruction = instruction();
    span.unit = i.unit.value;
    span.phase = i.phase;
    span.bytes = i.bytes;
    return span;
  }
};

}  // namespace foreshard
