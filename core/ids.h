// Distinct integer types for the things that are numbered, so that a unit is never mistaken for a stream.
//
// An Id is an index into the table that owns the thing (units of a Plan, modules of a Model, ...); -1 means "none".
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace foreshard {

template <class Tag>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}

  constexpr bool valid() const { return value >= 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const Id&) const = default;
};

using ModuleId = Id<struct ModuleTag>;            // Model::modules
using ParamId = Id<struct ParamTag>;              // Model::params
using ValueId = Id<struct ValueTag>;              // Model::values
using UnitId = Id<struct UnitTag>;                // Plan::units
using EventId = Id<struct EventTag>;              // events of one plan, numbered from 1 in order of creation
using SegmentId = Id<struct SegmentTag>;          // Plan::segments
using NameId = Id<struct NameTag>;                // Plan::names
using InstructionId = Id<struct InstructionTag>;  // position in Plan, unique over all its iterations

}  // namespace foreshard

template <class Tag>
struct std::hash<foreshard::Id<Tag>> {
  std::size_t operator()(foreshard::Id<Tag> id) const noexcept { return std::hash<std::int32_t>{}(id.value); }
};
