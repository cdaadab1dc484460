#include "core/cpu/cpu_convolution.h"

#include <algorithm>

namespace foreshard {
namespace {

constexpr Bytes kBf16 = 2, kFloat = 4;
constexpr std::int64_t kBlock = 16;  // channels and filters that lie together
constexpr std::int64_t kRow = 32;    // positions of a full tile

/// Each buffer of a scratchpad is booked with room to align it.
Bytes booked(Bytes bytes, Bytes alignment = 128) { return bytes + alignment; }

/// Positions of a row of results: a length that cuts into few tiles.
std::int64_t row_of_results(std::int64_t width) {
  const std::int64_t least = round_up(width, 2);
  std::int64_t best = least, fewest = least / 2;
  if (least <= kRow) return least;
  for (std::int64_t row = least; row <= round_up(least, kRow); row += 2) {
    for (std::int64_t tile = kRow; tile > 0; tile -= 2) {
      if (row % tile != 0) continue;
      if (row / tile < fewest) {
        fewest = row / tile;
        best = row;
      }
      break;
    }
  }
  return best;
}

/// Rows of results that a thread does at a time: what they need stays in its second cache.
std::int64_t rows_at_a_time(const CpuConvolution& c, std::int64_t in_row, std::int64_t out_row, Bytes l2_bytes) {
  const std::int64_t in_bytes = kBf16 * in_row * kBlock * ceil_div(c.channels, kBlock) * 2;
  const std::int64_t out_bytes = kBf16 * out_row * kBlock * ceil_div(c.filters, kBlock) * 2;
  const float room = std::max(0.0F, 0.8F * static_cast<float>(l2_bytes) - static_cast<float>(c.filter[0] * in_bytes));
  const auto limit = static_cast<std::int64_t>(std::max(1.0F, room / static_cast<float>(in_bytes + out_bytes)));
  return std::clamp<std::int64_t>(ceil_div(c.out[0], ceil_div(c.out[0], limit)), 1, c.out[0]);
}

}  // namespace

CpuConvolutionBuffers cpu_filter_gradient_buffers(const CpuConvolution& given, std::int64_t threads, Bytes l2_bytes) {
  constexpr Bytes kPage = 4096, kCall = 40;
  CpuConvolution c = given;
  const bool pointwise = c.filter[0] == 1 && c.filter[1] == 1 && c.stride[0] == 1 && c.stride[1] == 1 &&
                         c.padding[0] == 0 && c.padding[1] == 0;
  if (pointwise && c.in[1] <= 28) {  // all of an image is one row
    c.in[1] *= c.in[0], c.out[1] *= c.out[0];
    c.in[0] = c.out[0] = 1;
  }
  const std::int64_t channel_blocks = ceil_div(c.channels, kBlock), filter_blocks = ceil_div(c.filters, kBlock);
  const std::int64_t reached = (c.out[1] - 1) * c.stride[1] + c.filter[1];  // columns, with padding
  const std::int64_t padded = std::max(c.in[1] + c.padding[1], reached);
  const std::int64_t in_row = round_up(ceil_div(padded, c.stride[1]), kRow) * c.stride[1];
  const std::int64_t out_row = row_of_results(c.out[1]);
  const std::int64_t rows = rows_at_a_time(c, in_row, out_row, l2_bytes);
  const std::int64_t in_rows = std::min(c.in[0], c.stride[0] * ((rows - 1) * c.stride[0] + c.filter[0]));
  const std::int64_t right_padding = std::max<std::int64_t>(0, reached - c.in[1] - c.padding[1]);
  const std::int64_t guard = round_up(std::max(c.padding[1], right_padding + 1), kRow);

  const std::int64_t parts = std::min(threads, c.images * c.out[0]);  // each sums up its images' gradient
  const std::int64_t weights = filter_blocks * kBlock * channel_blocks * kBlock * c.filter[0] * c.filter[1] +
                               (c.bias ? filter_blocks * kBlock : 0);
  Bytes scratch = booked(kBf16 * (parts * channel_blocks * in_row * kBlock * in_rows + guard));
  scratch += booked(kBf16 * (parts * filter_blocks * out_row * kBlock * rows + in_row * kBlock));
  scratch += booked(kFloat * parts * weights);
  scratch += booked(kPage, kPage);                                                               // where threads meet
  scratch += booked(64);                                                                         // the tiles' shape
  scratch += booked(parts * ceil_div(round_up(c.out[0] * kCall, kPage), kCall) * kCall, kPage);  // blocks of a call
  scratch += booked(parts * 2 * kPage, kPage);                                                   // tiles

  const Bytes filters = kBf16 * filter_blocks * kBlock * round_up(c.channels, 2 * kBlock) * c.filter[0] * c.filter[1];
  return {{kBf16 * given.images * given.filters * given.out[0] * given.out[1],
           kBf16 * given.images * given.channels * given.in[0] * given.in[1], scratch},
          filters};
}

}  // namespace foreshard
