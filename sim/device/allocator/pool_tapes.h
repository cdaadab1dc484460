// Pools that write down what they do, or answer as was written (sim/device/allocator/pool_tape.h), until they do
// something that no tape holds. Part of one caching allocator; REQUIRES can_follow(settings). Bytes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/units.h"
#include "sim/device/allocator/allocator_ledger.h"
#include "sim/device/allocator/blocks.h"
#include "sim/device/allocator/pool_tape.h"
#include "sim/device/allocator/pools.h"
#include "sim/device/allocator/segments.h"
#include "sim/device/allocator/settings.h"
#include "sim/device/device_clock.h"
#include "sim/device/driver_memory.h"

namespace foreshard {

class PoolTapes {
 public:
  PoolTapes(const AllocatorSettings& settings, Blocks& blocks, Pools& pools, Segments& segments,
            AllocatorLedger& ledger, const DriverMemory& driver, DeviceClock& clock)
      : settings_(settings),
        blocks_(blocks),
        pools_(pools),
        segments_(segments),
        ledger_(ledger),
        driver_(driver),
        clock_(clock),
        decks_(pools.count()) {}

  /// Plain settings: no limit of splits, nothing expandable.
  bool can_follow() const;
  /// REQUIRES can_follow() and that nothing was allocated yet. While pools follow, no segments can be told of them.
  void record(int stream, PoolTape* tape);
  void follow(int stream, const PoolTape& tape);
  bool records(int stream) const;
  bool follows(int stream) const;
  /// Whether a tape answers for either of the stream's pools.
  bool answers(int stream) const;
  /// All pools go on by themselves.
  void end();

  /// Whether any pool has ever had a tape.
  bool used() const { return used_; }
  /// What the tape of this pool answers. kNoBlock: the pool has none, or left it just now.
  BlockHandle allocate(std::size_t pool, Bytes size, Bytes requested);
  /// False: the block is still to be freed.
  bool free(BlockHandle h);
  /// The amounts that an allocation may change, as they were before it.
  struct Before {
    Bytes inactive = 0, reserved = 0;
  };
  Before before() const { return {ledger_.stats.inactive_split.current, ledger_.stats.reserved.current}; }
  /// An allocation, or a completed free with its change of inactive bytes, of a pool that may be recorded.
  void made(BlockHandle h, Bytes size, const Before& before);
  void freed(BlockHandle h, Bytes change);

  /// Where the stream's pools stand on their tape. REQUIRES records() or follows().
  std::array<std::size_t, 2> place(int stream) const;
  /// Of the stream, in both pools. REQUIRES records().
  std::array<std::int32_t, 2> allocations(int stream) const;
  /// Segments that the driver gave for what was recorded, in order.
  const std::vector<SegmentRun::DriverCall>& driver_calls() const { return calls_; }
  /// Which allocation of its pool a block is. REQUIRES records() or follows() for its stream.
  std::int32_t number_of(BlockHandle block) const { return numbers_[static_cast<std::size_t>(block)]; }
  /// Passes over what a recorded run did; its blocks are not made. False: the tape stands elsewhere or the card has
  /// not the room, and nothing was done. The host pays for run.calls at its own time.
  bool skip(int stream, const SegmentRun& run);
  /// A block that skipped runs made and did not free: what it adds to the statistics has been added.
  BlockHandle adopt(int stream, const SegmentRun::Holding& holding);
  /// A block that was adopted, where a skipped run has freed it.
  void disown(BlockHandle block) { blocks_.drop(block); }

 private:
  struct Deck {
    std::vector<PoolEvent>* recorded = nullptr;
    const std::vector<PoolEvent>* followed = nullptr;
    std::size_t position = 0;       // in the followed tape
    std::int32_t numbers = 0;       // allocations so far
    std::vector<Bytes> addresses;   // of segments, while following
    bool skipped = false;           // a run: both pools of the stream leave together
    std::vector<BlockHandle> made;  // by number, once the tape was left after skipping
  };
  void begin();
  void number(BlockHandle h, std::int32_t number);
  BlockHandle make_block(std::size_t pool, std::int32_t number, Bytes size, Bytes requested);
  void leave(std::size_t pool);
  std::vector<BlockHandle> replay(std::size_t pool, const std::vector<PoolEvent>& events);

  const AllocatorSettings& settings_;
  Blocks& blocks_;
  Pools& pools_;
  Segments& segments_;
  AllocatorLedger& ledger_;
  const DriverMemory& driver_;
  DeviceClock& clock_;
  std::vector<Deck> decks_;  // by pool
  std::vector<SegmentRun::DriverCall> calls_;
  std::vector<std::int32_t> numbers_;  // by block: which allocation of its pool; pools with a tape only
  bool used_ = false;
};

}  // namespace foreshard
