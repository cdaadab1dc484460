// What a convolution's backward takes beside its gradients, and in which order these come (ConvolutionMM2d.cu,
// DepthwiseConv2d.cu of PyTorch 2.11; oneDNN on a CPU). Internal to the lowering.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/cpu/cpu_convolution.h"
#include "core/lowering/backward/backward.h"

namespace foreshard::lowering {

/// oneDNN's buffers for the gradient of a convolution's filters, where it works on tiles.
CpuConvolutionBuffers filter_gradient_buffers(Emitter& e, const BackwardInput& in, const Layout& g);

/// REQUIRES a convolution.
Flops convolution_backward_flops(const BackwardInput& in);

/// Held while the kernel runs; of another operator it is empty.
class ConvolutionRoom {
 public:
  ConvolutionRoom(Emitter& e, const BackwardInput& in);

  bool depthwise() const { return backend_.starts_with("cudadepthwise"); }
  /// The gradients' places among the arguments, as ATen allocates them.
  std::vector<std::size_t> order() const;
  /// ATen's own kernels take an input without gaps.
  void copy_input();
  /// Behind the input's gradient, whose kernel unfolds whatever the filter is.
  void unfold_for_input();
  /// Behind the last gradient, where nothing is unfolded yet.
  void unfold();

 private:
  Emitter& e_;
  const BackwardInput& in_;
  bool some_ = false;  // a convolution of which a gradient is wanted
  std::string_view backend_;
  Ref input_, columns_;
};

}  // namespace foreshard::lowering
