#include "core/operators/program_strides.h"

#include <algorithm>

#include "core/result.h"

namespace foreshard::families {

Dims::Dims(std::initializer_list<std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  std::copy(sizes.begin(), sizes.end(), at_.begin());
}

Dims Dims::of(const Shape& shape) {
  FORESHARD_CHECK(shape.size() <= static_cast<std::size_t>(kMaxRank),
                  "tensors of the families have at most six dimensions");
  Dims dims;
  dims.rank_ = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.at_.begin());
  return dims;
}

void Dims::insert(int dim, std::int64_t size) {
  const int at = dim < 0 ? dim + rank_ + 1 : dim;
  FORESHARD_CHECK(rank_ < kMaxRank, "tensors of the families have at most six dimensions");
  for (int i = rank_; i > at; --i) at_[static_cast<std::size_t>(i)] = at_[static_cast<std::size_t>(i - 1)];
  at_[static_cast<std::size_t>(at)] = size;
  ++rank_;
}

void Dims::erase(int dim) {
  for (int i = wrap(dim); i + 1 < rank_; ++i) at_[static_cast<std::size_t>(i)] = at_[static_cast<std::size_t>(i + 1)];
  --rank_;
}

std::int64_t Dims::product() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= at_[static_cast<std::size_t>(i)];
  return n;
}

bool Dims::operator==(const Dims& other) const {
  return rank_ == other.rank_ && std::equal(at_.begin(), at_.begin() + rank_, other.at_.begin());
}

bool Tensor::is_contiguous() const {
  std::int64_t step = 1;
  for (int i = sizes.rank() - 1; i >= 0; --i) {
    if (sizes[i] != 1 && strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

bool Tensor::is_dense() const {
  const int rank = sizes.rank();
  std::int64_t step = 1;
  std::uint32_t left = 0;  // dimensions of more than one element, as bits
  for (int i = 0; i < rank; ++i) left |= sizes[i] > 1 ? 1u << i : 0u;
  while (left != 0) {
    int next = -1;
    for (int i = 0; i < rank; ++i) {
      if ((left & (1u << i)) != 0 && strides[i] == step) next = i;
    }
    if (next < 0) return false;
    step *= sizes[next];
    left &= ~(1u << next);
  }
  return true;
}

Dims strides_by_operands(const Dims& sizes, std::initializer_list<const Dims*> operands) {
  const int rank = sizes.rank();
  std::array<int, Dims::kMaxRank> order{};  // innermost first
  for (int i = 0; i < rank; ++i) order[static_cast<std::size_t>(i)] = rank - 1 - i;
  const auto compare = [&](int inner, int outer) {
    for (const Dims* strides : operands) {
      const std::int64_t a = (*strides)[inner], b = (*strides)[outer];
      if (a == 0 || b == 0) continue;
      if (a != b) return a < b ? -1 : 1;
      if (sizes[inner] > sizes[outer]) return 1;
    }
    return 0;
  };
  for (int i = 1; i < rank; ++i) {
    int outer = i;
    for (int inner = i - 1; inner >= 0; --inner) {
      const int verdict = compare(order[static_cast<std::size_t>(inner)], order[static_cast<std::size_t>(outer)]);
      if (verdict < 0) break;
      if (verdict > 0) {
        std::swap(order[static_cast<std::size_t>(inner)], order[static_cast<std::size_t>(outer)]);
        outer = inner;
      }
    }
  }
  Dims strides = sizes;
  std::int64_t step = 1;
  for (int i = 0; i < rank; ++i) {
    const int dim = order[static_cast<std::size_t>(i)];
    strides[dim] = step;
    step *= sizes[dim];
  }
  return strides;
}

Dims broadcast_strides(const Tensor& x, const Dims& sizes) {
  Dims strides = sizes;
  const int lead = sizes.rank() - x.sizes.rank();
  for (int i = 0; i < sizes.rank(); ++i) {
    const bool broadcast = i < lead || (x.sizes[i - lead] == 1 && sizes[i] != 1);
    strides[i] = broadcast ? 0 : x.strides[i - lead];
  }
  return strides;
}

Dims broadcast_sizes(const Dims& a, const Dims& b) {
  Dims sizes = a.rank() >= b.rank() ? a : b;
  const Dims& other = a.rank() >= b.rank() ? b : a;
  const int lead = sizes.rank() - other.rank();
  for (int i = 0; i < other.rank(); ++i) {
    if (sizes[i + lead] == 1) sizes[i + lead] = other[i];
  }
  return sizes;
}

bool view_strides(const Tensor& x, const Dims& sizes, Dims& strides) {
  strides = sizes;
  int view = sizes.rank() - 1;
  std::int64_t chunk_base = x.sizes.rank() > 0 ? x.strides[-1] : 1;
  std::int64_t tensor_numel = 1, view_numel = 1;
  for (int dim = x.sizes.rank() - 1; dim >= 0; --dim) {
    tensor_numel *= x.sizes[dim];
    const bool chunk_ends = dim == 0 || (x.sizes[dim - 1] != 1 && x.strides[dim - 1] != tensor_numel * chunk_base);
    if (!chunk_ends) continue;
    while (view >= 0 && (view_numel < tensor_numel || sizes[view] == 1)) {
      strides[view] = view_numel * chunk_base;
      view_numel *= sizes[view];
      --view;
    }
    if (view_numel != tensor_numel) return false;
    if (dim > 0) {
      chunk_base = x.strides[dim - 1];
      tensor_numel = view_numel = 1;
    }
  }
  for (; view >= 0; --view) strides[view] = 1;  // only sizes of 1 are left
  return true;
}

}  // namespace foreshard::families
