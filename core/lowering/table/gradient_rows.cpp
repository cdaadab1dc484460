// Rules of operators that autograd's own formulas run, where the engine runs in the midst of a forward
// (torch.autograd.grad) and what it makes is differentiated again; see op_table.h.
//
// The formulas are those of derivatives.yaml and FunctionsManual.cpp, their right operands first, as GCC evaluates
// them.
#include "core/lowering/table/op_table.h"

namespace foreshard::op_table {
namespace {

constexpr OpRule kGradientRows[] = {
    // --- functions of one tensor: linear in the gradient, zeros where the second derivative is none ---
    written("aten.threshold_backward.default", "0: threshold_backward g x1 | 1: zeros_like g", {in(1)}),
    written("aten.leaky_relu_backward.default", "0: leaky_relu_backward g x1 | 1: zeros_like g", {in(1)}),
    written("aten.hardtanh_backward.default", "0: hardtanh_backward g x1 | 1: zeros_like g", {in(1)}),
    written("aten.rrelu_with_noise_backward.default", "0: rrelu_with_noise_backward g x1 x2 | 1: zeros_like g",
            {in(1), in(2)}),
    // --- ... and others ---
    written("aten.sigmoid_backward.default",
            "0: sigmoid_backward g x1 | 1: mul.Tensor x1; add.Scalar 1; mul.Tensor g x0; mul.Tensor 3 2",
            {in(1), in(0)}),
    written("aten.tanh_backward.default", "0: tanh_backward g x1 | 1: mul.Tensor x1; mul.Tensor 1 x0; mul.Tensor g 2",
            {in(1), in(0)}),
    written("aten.elu_backward.default",
            "0: elu_backward g x1"
            " | 1: lt.Scalar x1; _to_copy>L0 1; mul.Tensor g x0; mul.Tensor 3; elu_backward 4 x1; mul.Tensor 5 2",
            {in(1), in(0)}),
    written("aten.softplus_backward.default",
            "0: softplus_backward g x1"
            " | 1: &mul.Tensor g x0;; &mul.Tensor x1;; lt.Scalar 2; _to_copy>L0 3; sigmoid 2; sigmoid_backward 1 5; "
            "mul.Tensor 6 4; mul.Tensor 7",
            {in(1), in(0)}),
    written("aten.log_sigmoid_backward.default",
            "0: log_sigmoid_backward g x1 x2 | 1: &mul.Tensor g x0;; &sigmoid x1;; sub.Scalar 2; mul.Tensor 1 2; "
            "mul.Tensor 4 3",
            {in(1), in(2), in(0)}),
    written("aten.hardswish_backward.default",
            "0: hardswish_backward g x1"
            " | 1: scalar_tensor; mul.Tensor g x0; div.Tensor 2; lt.Scalar x1; gt.Scalar x1; logical_and 5 4; "
            "where.self 6 3 1",
            {in(1), in(0)}),
    written("aten.gelu_backward.default",
            "0: gelu_backward g x1"
            " | 1: &mul.Tensor x1 x1;; mul.Tensor 1; exp 2; &mul.Tensor 3;; mul.Tensor 1 4; mul.Tensor 4; "
            "&sub.Tensor 6 5;; mul.Tensor g x0; mul.Tensor 8 7",
            {in(1), in(0)}),
    // --- losses and probabilities ---
    written("aten.mse_loss_backward.default",
            "0: mse_loss_backward>L1 g x1 x2"
            " | 1: mul.Tensor g x0; mul.Tensor 1; mean?div_.Scalar 2 | 2: mul.Tensor g x0; mul.Tensor 4; "
            "mean?div_.Scalar 5; neg 6",
            {in(1), in(2), in(0)}),
    written("aten._softmax_backward_data.default",
            "0: _softmax_backward_data g x1"
            " | 1: mul.Tensor x1 g; along 1; mul.Tensor x0 2; mul.Tensor x1 x0; along 4; mul.Tensor 5 g; mul.Tensor x0 "
            "g; sub.Tensor 7 6; sub.Tensor 8 3",
            {in(1), in(0)}, F::Contiguous, K::Reduction),
    written("aten._log_softmax_backward_data.default",
            "0: exp x1; mul.Tensor g 0; along 1; sub.Tensor g 2"
            " | 1: exp x1; along x0; neg 5; mul.Tensor 6 4; mul.Tensor 7 g",
            {in(1), in(0)}, F::Contiguous, K::Loss),
    row("aten.convolution_backward.default", F::Contiguous, B::ConvolutionBackward, K::Gemm, {in(0), in(2), in(1)}),
    // --- run without a graph of their own (create_graph=False): with one, PyTorch writes them with other operators ---
    row("aten._fused_rms_norm_backward.default", F::Contiguous, B::None, K::Reduction),
    row("aten.native_group_norm_backward.default", F::Contiguous, B::None, K::Reduction),
    row("aten.silu_backward.default", F::Elementwise, B::None, K::Elementwise),
    row("aten.mish_backward.default", F::Elementwise, B::None, K::Elementwise),
    row("aten._scaled_dot_product_flash_attention_backward.default", F::Attention, B::None, K::Attention),
    row("aten._scaled_dot_product_efficient_attention_backward.default", F::Attention, B::None, K::Attention),
    row("aten.embedding_dense_backward.default", F::Contiguous, B::None, K::Gather),
    row("aten.nll_loss_backward.default", F::Contiguous, B::None, K::Loss),
    // layer_norm_double_backward, of the input's gradient: rows less their means, then what goes to the input, to the
    // weight and to the gradient that came
    written(
        "aten.native_layer_norm_backward.default",
        "*: &sub.Tensor x2 x1;; &pow.Tensor_Scalar x3;; &pow.Tensor_Scalar x3;; &mul.Tensor 2 0;; mul.Tensor x0 x4;; "
        "mul.Tensor 0 4; last 5;; last 4;; last g;; mul.Tensor 0 g; last 9;; mul.Tensor 8 7; div_.Scalar 11; "
        "mul.Tensor g 4; last 13; sub_.Tensor 12 14; mul.Tensor 1 6; mul.Tensor 16 10; mul_.Scalar 17; add_.Tensor 15 "
        "18;; mul.Tensor 3 19; div_.Scalar 20;; div.Scalar 7; sub.Tensor 22 4; mul.Tensor 10 2; div_.Scalar 24; "
        "mul.Tensor 25 23;; div.Scalar 8; sub.Tensor 27 g; mul.Tensor 6 2; div_.Scalar 29; mul.Tensor 30 28;; "
        "add_.Tensor 21 26; &add_.Tensor 32 31 4 6 7 8 10 19 26;; scalar_tensor; mul.Tensor x3 34; &div_.Scalar 35;; "
        "mul.Scalar x0; last x0; sub_.Tensor 37 38; mul.Tensor 0 x0; last 40; mul.Tensor 1 41; mul.Tensor 0 42; "
        "sub_.Tensor 39 43;; mul.Tensor 36 44; mul.Tensor 45 g; &columns 46;; mul.Tensor x3 x4; div_.Scalar 48;; "
        "mul.Scalar g; last g; sub_.Tensor 50 51; mul.Tensor 0 g; last 53; mul.Tensor 1 54; mul.Tensor 0 55; "
        "sub_.Tensor 52 56;; &mul.Tensor 49 57;;"
        " | 1: = 33 | 4: = 47 | 0: = 58",
        {in(1), in(4), in(0), in(2), in(3)}, F::Contiguous, K::Reduction),
    // --- parts of what they came from ---
    written("aten.slice_backward.default", "0: piece g L0", {}, F::Contiguous, K::Copy),
    written("aten.select_backward.default", "0: piece g L0", {}, F::Contiguous, K::Copy),
};

}  // namespace

std::span<const OpRule> gradient_rows() { return kGradientRows; }

}  // namespace foreshard::op_table
