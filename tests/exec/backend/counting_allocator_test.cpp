#include "exec/host/counting_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "exec/host/host_backend.h"

namespace foreshard::exec {
namespace {

constexpr Bytes kBytes = 4096;
at::Tensor some() { return at::ones({kBytes / 4}); }

/// Runs work on a stream of a backend of its own and says what it counts afterwards.
class Counted {
 public:
  void run(const Work& work) {
    backend_->launch({stream_, InstructionId(0)}, work);
    ASSERT_TRUE(backend_->synchronize());
  }
  Bytes of(MemoryCategory category) const {
    return backend_->memory().by_stream[stream_.index()][static_cast<std::size_t>(category)].resident;
  }
  Bytes total() const { return backend_->memory().total.resident; }

 private:
  std::unique_ptr<Backend> backend_ = make_host_backend();
  StreamIndex stream_ = backend_->create_stream("D", 0);
};

TEST(CountingAllocator, WhatIsLeftOfAScopeChangesItsCategory) {
  Counted counted;
  at::Tensor kept;
  counted.run([&] {
    MemoryScope scope(MemoryCategory::Temporaries, MemoryCategory::Activations);
    const at::Tensor gone = some();
    kept = some();
  });
  EXPECT_EQ(counted.of(MemoryCategory::Activations), kBytes);
  EXPECT_EQ(counted.of(MemoryCategory::Temporaries), 0);
  std::thread([&] { kept = at::Tensor(); }).join();  // memory may go back anywhere
  EXPECT_EQ(counted.total(), 0);
}

TEST(CountingAllocator, ClaimedMemoryKeepsItsCategory) {
  Counted counted;
  at::Tensor gradient;
  counted.run([&] {
    MemoryScope scope(MemoryCategory::Temporaries, MemoryCategory::ActivationGradients);
    gradient = some();
    claim(gradient, MemoryCategory::Gradients);
  });
  EXPECT_EQ(counted.of(MemoryCategory::Gradients), kBytes);
  EXPECT_EQ(counted.of(MemoryCategory::ActivationGradients), 0);
}

TEST(CountingAllocator, OutsideAScopeNothingIsCounted) {
  Counted counted;
  at::Tensor kept;
  counted.run([&] {
    { MemoryScope scope(MemoryCategory::Temporaries, MemoryCategory::Activations); }
    kept = some();
  });
  EXPECT_EQ(counted.total(), 0);
  { MemoryScope scope(MemoryCategory::Temporaries, MemoryCategory::Activations); }  // on a thread of no backend
  EXPECT_EQ(some().sum().item<float>(), static_cast<float>(kBytes / 4));
}

TEST(CountingAllocator, MemoryOutlivesItsBackend) {
  at::Tensor kept;
  {
    Counted counted;
    counted.run([&] {
      MemoryScope scope(MemoryCategory::Temporaries, MemoryCategory::Activations);
      kept = some();
    });
  }
  EXPECT_EQ(kept.sum().item<float>(), static_cast<float>(kBytes / 4));
}

TEST(CountingAllocator, ScopesNest) {
  Counted counted;
  at::Tensor inner, outer;
  counted.run([&] {
    MemoryScope around(MemoryCategory::Temporaries, MemoryCategory::Activations);
    {
      MemoryScope within(MemoryCategory::Temporaries, MemoryCategory::OptimizerState);
      inner = some();
    }
    outer = some();
  });
  EXPECT_EQ(counted.of(MemoryCategory::OptimizerState), kBytes);
  EXPECT_EQ(counted.of(MemoryCategory::Activations), kBytes);
}

}  // namespace
}  // namespace foreshard::exec
