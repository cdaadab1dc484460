// The rules of a program's operators, one after the other: equal layers ask for the same few names again and again,
// and a name that was asked for is found without another search. For one walk; the names outlive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/lowering/op_rules.h"
#include "core/model/model.h"

namespace foreshard {

class RuleFinder {
 public:
  /// As find_op_rule.
  const OpRule* find(std::string_view name) {
    Known& known = known_[place_of(name)];
    if (known.name != name) known = {name, find_op_rule(name)};
    return known.rule;
  }

 private:
  struct Known {
    std::string_view name;
    const OpRule* rule = nullptr;
  };
  static constexpr std::size_t kPlaces = 256;  // 8 bits

  /// Names begin alike ("aten.") and end alike (".default"): what stands between tells them apart.
  static std::size_t place_of(std::string_view name) {
    constexpr std::size_t kFrom = 5;
    std::uint64_t middle = 0;
    if (name.size() >= kFrom + sizeof(middle)) std::memcpy(&middle, name.data() + kFrom, sizeof(middle));
    return (middle + name.size()) * 0x9e3779b97f4a7c15ULL >> 56;
  }

  std::array<Known, kPlaces> known_;
};

/// By operator of the program; null where its name has no rule, or the model says itself what it does (Op::opaque).
inline std::vector<const OpRule*> rules_of(const std::vector<Op>& ops) {
  RuleFinder finder;
  std::vector<const OpRule*> rules;
  rules.reserve(ops.size());
  for (const Op& op : ops) rules.push_back(op.opaque < 0 ? finder.find(op.name) : nullptr);
  return rules;
}

}  // namespace foreshard
