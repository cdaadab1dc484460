// Modules that run on a rank's own part of the sequence: their operators are those of the program that is built for
// that part (DTensor's local_map; torchtitan's moe_sharding.py around experts that lie on ranks of their own).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/mesh/program_cutter.h"

namespace foreshard::mesh {
namespace {

/// Which dimension of the whole shape the ranks have parts of; -1: none.
std::int32_t cut_of(const Shape& whole, const Shape& part, std::int64_t ranks, bool& torn) {
  std::int32_t dim = -1;
  torn = whole.size() != part.size();
  for (std::size_t d = 0; d < whole.size() && !torn; ++d) {
    if (whole[d] == part[d]) continue;
    torn = dim >= 0 || whole[d] != part[d] * ranks;
    dim = static_cast<std::int32_t>(d);
  }
  return dim;
}

}  // namespace

Error not_local(std::string place, std::string message, std::string got) {
  return {ErrorCode::Unsupported,
          std::move(message),
          {},
          std::move(place),
          "a module that reads this rank's part of [batch, sequence, width] and hands on as much",
          std::move(got),
          "set mesh.tensor = 1 or mesh.expert = 1, or change the modules of style local in mesh.plan"};
}

Result<void> ProgramCutter::carry_local(std::int32_t index) {
  const auto at = static_cast<std::size_t>(index);
  Op op = old_[at];
  if (options_.part == nullptr || options_.part->ops.size() != old_.size() || options_.part->ops[at].name != op.name ||
      options_.part->ops[at].out != op.out) {
    return fail(not_local(place_of(model_, op),
                          "only a model that is built for a length runs on a part of its sequence",
                          "a program of another length"));
  }
  op = options_.part->ops[at];
  std::optional<Error> wrong;
  each_arg(op, [&](Arg& arg) {
    auto* value = std::get_if<ValueRef>(&arg.value);
    if (value == nullptr) return;
    const Shape& expected = options_.part->values[value->id.index()].shape;
    value->id = ValueId(seen(value->id.value));
    const Shape& shape = model_.values[value->id.index()].shape;
    if (!wrong && shape != expected)
      wrong = not_local(place_of(model_, op), "what this module reads is no part of the sequence",
                        fmt::format("[{}], not [{}]", fmt::join(shape, ", "), fmt::join(expected, ", ")));
  });
  if (wrong) return fail(std::move(*wrong));
  place_.back() = static_cast<std::int32_t>(ops_.size());
  for (const ValueId id : op.out) {
    if (!id.valid()) continue;
    if (made_at_[id.index()] < 0) made_at_[id.index()] = index;
    const ValueInfo& own = options_.part->values[id.index()];
    bool torn = false;
    Cut cut;
    cut.dim = cut_of(whole_[id.index()], own.shape, options_.group.ranks, torn);
    if (cut.cut()) cut.whole = whole_[id.index()][static_cast<std::size_t>(cut.dim)];
    if (torn) {
      torn_.insert(id.value);
      cut = {};
    }
    cuts_[id.index()] = cut;
    model_.values[id.index()].shape = own.shape;
    model_.values[id.index()].strides = own.strides;
  }
  ops_.push_back(std::move(op));
  return {};
}

}  // namespace foreshard::mesh
