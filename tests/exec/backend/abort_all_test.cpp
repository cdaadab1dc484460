// The end of communicators, some of which cannot even end.
#include "exec/backend/abort_all.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace foreshard::exec {
namespace {

class Ending final : public Communicator {
 public:
  explicit Ending(bool fails) : fails_(fails) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather(void*, const void*, Numel, DType) override {}
  void all_gather_uneven(void*, const void*, std::span<const Numel>, DType) override {}
  void reduce_scatter(void*, const void*, Numel, DType, ReduceOp) override {}
  void reduce_scatter_uneven(void*, const void*, std::span<const Numel>, DType, ReduceOp) override {}
  void all_reduce(void*, Numel, DType, ReduceOp) override {}
  void all_to_all(void*, const void*, std::span<const Numel>, std::span<const Numel>, DType) override {}
  void broadcast(void*, Numel, DType, int) override {}
  void barrier() override {}
  void abort(std::string_view why) override {
    asked = why == "lost";
    if (fails_) throw std::runtime_error("the device is broken");
  }

  std::atomic<bool> asked = false;

 private:
  const bool fails_;
};

TEST(AbortAll, OneThatThrowsKeepsTheOthersFromNothing) {
  for (std::size_t failing = 0; failing < 3; ++failing) {  // the caller's own thread ends the first
    std::vector<std::shared_ptr<Ending>> endings;
    for (std::size_t i = 0; i < 3; ++i) endings.push_back(std::make_shared<Ending>(i == failing));
    EXPECT_NO_THROW(abort_all({endings.begin(), endings.end()}, "lost"));
    for (const auto& ending : endings) EXPECT_TRUE(ending->asked);
  }
}

}  // namespace
}  // namespace foreshard::exec
