// The largest of 0..all that fits, where more needs more: one question at a time. All are asked for first, then none.
#pragma once

#include <optional>

namespace foreshard {

class Bisection {
 public:
  explicit Bisection(int all) : low_(-1), high_(all + 1), next_(all) {}

  /// The count to try; empty: the answer is known.
  std::optional<int> next() const { return high_ - low_ > 1 ? std::optional<int>(next_) : std::nullopt; }
  void tell(bool fits) {
    (fits ? low_ : high_) = next_;
    next_ = low_ < 0 ? 0 : low_ + (high_ - low_) / 2;
  }
  /// -1: none does.
  int most() const { return low_; }

 private:
  int low_, high_, next_;  // low_ fits, high_ does not
};

}  // namespace foreshard
