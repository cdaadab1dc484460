// Memory of CPU tensors, kept when it goes back: the C library gives large blocks back to the system, which then clears
// every page of them anew, and a training step asks for the same sizes again and again.
//
// Blocks of nearly equal size (an eighth of a power of two) stand in for each other. What is kept and not used is a
// quarter of the most that was ever used, beside what is missing of that; of more, what lay longest goes back. Sizes
// are bytes. Any thread.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

namespace foreshard::exec {

class KeptMemory {
 public:
  /// Takes from `source` what it does not have; `source` outlives it.
  explicit KeptMemory(c10::Allocator& source) : source_(source) {}
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  /// Not cleared, aligned as the source does it. Throws what the source throws; before that everything kept goes back.
  void* take(std::size_t bytes);
  /// `bytes` as it was taken.
  void give_back(void* data, std::size_t bytes);

  std::size_t kept() const;

 private:
  struct Block {
    void* data = nullptr;
    std::uint64_t since = 0;  // give_back() calls before it
  };
  void* from_source(std::size_t bytes);
  void count(std::size_t taken);
  void shrink(std::size_t most);

  c10::Allocator& source_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::deque<Block>> free_;  // by size, latest last; no empty ones
  std::size_t used_ = 0, most_used_ = 0, kept_ = 0;
  std::uint64_t calls_ = 0;
};

}  // namespace foreshard::exec
