#include "sim/play/segments/async_products.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <variant>

#include "core/model/mesh_dimension.h"

namespace foreshard {
namespace {

bool is_product(const Op& op) {
  return op.name == "aten.mm.default" || op.name == "aten.addmm.default" || op.name == "aten.linear.default" ||
         op.name == "aten.bmm.default";
}

bool moves_nothing(const Op& op) {
  return op.name == "aten.view.default" || op.name == "aten._unsafe_view.default" ||
         op.name == "aten.reshape.default" || op.name == "aten.t.default" || op.name == "aten.transpose.int";
}

/// The operators of one segment, as who made and who reads what.
class Readers {
 public:
  Readers(const Model& model, const Segment& segment) : model_(model), begin_(segment.op_begin), end_(segment.op_end) {}

  const Op& at(std::int32_t op) const { return model_.ops[static_cast<std::size_t>(begin_ + op)]; }
  std::int32_t count() const { return end_ - begin_; }

  /// Products that read what `op` makes, or a view of it.
  std::vector<std::int32_t> products_of(std::int32_t op) const {
    std::vector<std::int32_t> found;
    std::vector<ValueId> seen{at(op).out.begin(), at(op).out.end()};
    for (std::int32_t k = op + 1; k < count(); ++k) {
      if (std::none_of(seen.begin(), seen.end(), [&](ValueId value) { return reads(at(k), value); })) continue;
      if (moves_nothing(at(k))) seen.insert(seen.end(), at(k).out.begin(), at(k).out.end());
      if (is_product(at(k))) found.push_back(k);
    }
    return found;
  }

  /// The product that made what `op` reads, alone or seen otherwise; -1: something else did.
  std::int32_t product_before(std::int32_t op) const {
    for (std::int32_t k = op - 1; k >= 0; --k) {
      if (std::none_of(at(k).out.begin(), at(k).out.end(), [&](ValueId value) { return reads(at(op), value); }))
        continue;
      if (is_product(at(k))) return k;
      if (!moves_nothing(at(k))) return -1;
      op = k;
    }
    return -1;
  }

 private:
  static bool reads(const Op& op, ValueId value) {
    return value.valid() && std::any_of(op.args.begin(), op.args.end(), [&](const Arg& arg) {
             const auto* ref = std::get_if<ValueRef>(&arg.value);
             return ref != nullptr && ref->id == value;
           });
  }

  const Model& model_;
  std::int32_t begin_, end_;
};

/// An operator's first product, which in backward is of its input's gradient where that is asked for.
std::optional<std::size_t> first_product(const KernelList& list, std::int32_t op) {
  for (std::size_t k = 0; k < list.kernels.size(); ++k) {
    if (list.kernels[k].model_op == op && list.kernels[k].kind == KernelClass::Gemm) return k;
  }
  return std::nullopt;
}

}  // namespace

void overlap_products(const Model& model, const Segment& segment, const KernelList& list, bool backward,
                      const HardwareProfile& profile, std::vector<SimDuration>& device) {
  const Readers readers(model, segment);
  std::vector<SimDuration> left = device;  // of products, which hide one transfer at a time
  for (std::size_t k = 0; k < list.kernels.size(); ++k) {
    const Kernel& kernel = list.kernels[k];
    const bool gathers = kernel.collective == KernelCollective::AllGather;
    const bool scatters = kernel.collective == KernelCollective::ReduceScatter;
    if ((!gathers && !scatters) || kernel.model_op < 0 || kernel.model_op >= readers.count()) continue;
    const MeshDimension& dimension = model.mesh[static_cast<std::size_t>(kernel.dimension)];
    if (!stands_beside_fsdp(dimension)) continue;
    // Backward of a scatter gathers for the product before it, backward of a gather scatters what its readers made.
    std::vector<std::int32_t> products;
    if (gathers != backward) {
      products = readers.products_of(kernel.model_op);
    } else if (const std::int32_t made = readers.product_before(kernel.model_op); made >= 0) {
      products = {made};
    }
    if (scatters && products.size() != 1) continue;  // a sum of products is sent, which nothing can begin early
    const auto ranks = static_cast<double>(dimension.ranks.size());
    const SimDuration alone = device[k];
    for (const std::int32_t op : products) {
      const auto product = first_product(list, op);
      if (!product) continue;
      const auto most =
          static_cast<SimDuration>(std::llround(static_cast<double>(left[*product]) * (ranks - 1) / ranks));
      const SimDuration hidden = std::min(device[k], most);
      device[k] -= hidden;
      left[*product] -= hidden;
    }
    if (device[k] == alone || !scatters) continue;
    const double sum_ns = static_cast<double>(kernel.vector_bytes) * (1 + 1 / ranks) / profile.hbm_gb_per_s;
    device[k] += static_cast<SimDuration>(std::llround(sum_ns));
  }
}

}  // namespace foreshard
