// core/cpu/cpu_convolution.h against what PyTorch 2.11's profiler counted for aten::convolution_backward of bfloat16 on
// a Xeon with AMX and 2 MiB of second cache a core, byte for byte.
#include "core/cpu/cpu_convolution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard {
namespace {

using ::testing::ElementsAre;

struct Recorded {
  std::int64_t threads, images, channels, size, filters, filter, stride, padding;
  bool bias;
  Bytes results, images_turned, scratch, filters_laid_out;
};

TEST(CpuConvolution, FilterGradientsTakeWhatWasRecorded) {
  const Recorded all[] = {
      {1, 4, 3, 32, 32, 8, 8, 0, true, 4096, 24576, 431896, 131072},
      {1, 4, 3, 64, 48, 16, 16, 0, true, 6144, 98304, 1882456, 786432},
      {1, 2, 3, 48, 40, 8, 8, 0, true, 5760, 27648, 631000, 196608},
      {1, 8, 3, 224, 64, 16, 16, 0, true, 200704, 2408448, 4789656, 1048576},
      {2, 8, 3, 224, 64, 16, 16, 0, true, 200704, 2408448, 9545904, 1048576},
      {4, 8, 3, 224, 64, 16, 16, 0, true, 200704, 2408448, 19058400, 1048576},
      {4, 1, 3, 64, 768, 16, 16, 0, true, 24576, 24576, 54719200, 12582912},
      {1, 4, 16, 32, 32, 3, 1, 1, false, 262144, 131072, 180888, 18432},
      {1, 2, 64, 28, 64, 3, 2, 1, false, 50176, 200704, 433304, 73728},
      {1, 4, 32, 20, 40, 1, 1, 0, false, 128000, 102400, 115352, 3072},
  };
  for (const Recorded& row : all) {
    CpuConvolution c;
    c.images = row.images, c.channels = row.channels, c.filters = row.filters, c.bias = row.bias;
    for (int i = 0; i < 2; ++i) {
      c.in[i] = row.size, c.filter[i] = row.filter, c.stride[i] = row.stride, c.padding[i] = row.padding;
      c.out[i] = (row.size + 2 * row.padding - row.filter) / row.stride + 1;
    }
    const CpuConvolutionBuffers told = cpu_filter_gradient_buffers(c, row.threads, 2 * kMiB);
    EXPECT_THAT(told.before_result, ElementsAre(row.results, row.images_turned, row.scratch)) << row.filters;
    EXPECT_EQ(told.beside_result, row.filters_laid_out) << row.filters;
  }
}

}  // namespace
}  // namespace foreshard
