// Every operator rule against LibTorch's dispatcher and autograd: forms of operators (tests/data/oprules/recipes.txt)
// in drawn sizes, two types, and every subset of inputs that need a gradient. What differs is printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/lowering/op_rules.h"
#include "exec/operators/operator_proof.h"
#include "tests/oprules/recipe.h"

namespace foreshard::exec {
namespace {

using oprules::Recipe;

constexpr std::uint32_t kTrials = 3;

std::vector<Recipe> recipes() {
  return oprules::read_recipes(std::string(FORESHARD_TEST_DATA) + "/oprules/recipes.txt");
}

class OperatorRule : public ::testing::TestWithParam<Recipe> {};

TEST_P(OperatorRule, SaysWhatLibTorchDoes) {
  int shown = 0, ran = 0;
  for (std::uint32_t trial = 0; trial < kTrials; ++trial) {
    for (const DType dtype : {DType::Float32, DType::BFloat16}) {
      for (const OperatorCase& what : oprules::draw_cases(GetParam(), trial, dtype)) {
        const auto differing = prove_rule(what);
        if (!differing) {
          // A kernel for one of the types is enough.
          EXPECT_NE(dtype, DType::Float32) << to_text(what) << "\n  LibTorch: " << differing.error();
          continue;
        }
        ++ran;
        if (differing->empty() || shown == 3) continue;
        ++shown;
        std::string text;
        for (const std::string& line : *differing) text += "\n  " + line;
        ADD_FAILURE() << "line " << GetParam().line << ": " << to_text(what) << text;
      }
    }
  }
  EXPECT_GT(ran, 0);
}

std::string test_name(const ::testing::TestParamInfo<Recipe>& info) {
  std::string name = "line" + std::to_string(info.param.line) + "_" + info.param.name();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Recipes, OperatorRule, ::testing::ValuesIn(recipes()), test_name);

/// No kernel on a CPU, or another one: recorded on the meta device under Python instead (shared oracle/op_rules).
const std::set<std::string_view> kNotHere = {
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_flash_attention_backward.default",  // ... and their backward as an operator, with masks
    "aten._scaled_dot_product_efficient_attention_backward.default",
    "higher_order.flex_attention",  // PyTorch's Python, recorded as a whole
    "higher_order.create_block_mask",
    "aten._fused_rms_norm_backward.default",
    "aten.native_layer_norm_backward.default",
    "aten.native_group_norm_backward.default",
    "aten.convolution_backward.default",
    "aten.nll_loss_backward.default",
    "aten.cudnn_batch_norm.default",
    "aten.miopen_batch_norm.default",
    "aten._batch_norm_with_update.default",
    "aten._native_batch_norm_legit_functional.default",
    "aten._grouped_mm.default",          // its groups are values, not shapes
    "bitsandbytes.matmul_4bit.default",  // other libraries', for a GPU
    "bitsandbytes.matmul_8bit_lt.default",
    "liger_kernel.fused_linear_cross_entropy.default",
    "torchao.matmul_float8_gathered.default",
    "torchao.matmul_float8_rowwise.default",
    "torchao.matmul_float8_rowwise_with_gw_hp.default",
    "torchao.matmul_float8_tensorwise.default",
    "aten._fused_rms_norm.default",                                            // falls apart off the GPU
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",  // zero points of 32 bits
    "aten.fake_quantize_per_channel_affine_cachemask.default",
    "aten._local_scalar_dense.default",
    "aten.item.default",     // the host reads a value: no tensor comes out
    "aten.detach_.default",  // only in exported programs of inference
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten.max.default",  // another formula on a CPU, which reads values
    "aten.min.default",
    "aten.median.default",
    "aten.prod.default",
    "aten.prod.dim_int",
    "aten.sgn.default",      // its gradient of zeros has no memory
    "aten.nonzero.default",  // sizes that are values
    "aten._unique2.default",
    "aten.masked_select.default",
    "aten._embedding_bag.default",  // keeps more than its results' sizes say
    "aten._embedding_bag_forward_only.default",
    "aten._thnn_fused_lstm_cell.default",  // a GPU's
    "aten._thnn_fused_gru_cell.default",
    "aten._ctc_loss.default",  // lengths are values
    "aten._ctc_loss.Tensor",
    "aten.multi_margin_loss.default",
    "aten.cumprod.default",  // its backward asks the host for zeros
    "aten.polar.default",
    "aten._fft_c2c.default",  // other plans than a GPU's
    "aten._fft_r2c.default",
    "aten._fft_c2r.default",
    "aten.rrelu_with_noise.default",
    "aten.norm.ScalarOpt_dim_dtype",                // a CPU casts what is of another type before it divides
    "aten.multilabel_margin_loss_forward.default",  // labels are values
    "aten.fractional_max_pool2d.default",
    "aten.fractional_max_pool3d.default",
    "aten.randn.generator",
    "aten._cudnn_rnn.lstm",
    "aten._cudnn_rnn.default",
    "aten.as_strided_copy.default",  // as the view is
    "aten.as_strided.default",       // its copy into zeros reads like a gradient that is copied to be kept
};

/// Written as their parts before anything is planned (core/model/pt2/composites/composites.h); their rows stand for
/// model.json.
const std::set<std::string_view> kComposite = {
    "aten.diff.default",
    "aten.where.ScalarOther",
    "aten.where.ScalarSelf",
    "aten.layer_norm.default",
    "aten.rms_norm.default",
    "aten.batch_norm.default",
    "aten.conv1d.default",
    "aten.conv2d.default",
    "aten.conv3d.default",
    "aten.conv1d.padding",
    "aten.conv2d.padding",
    "aten.max_pool2d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.upsample_nearest2d.vec",
    "aten.upsample_bilinear2d.vec",
    "aten.upsample_bicubic2d.vec",
};

TEST(OperatorRules, EachHasARecipe) {
  std::set<std::string> tried;
  for (const Recipe& recipe : recipes()) tried.insert(recipe.name());
  for (const OpRule& rule : op_rules())
    EXPECT_EQ(tried.count(std::string(rule.name)) + kNotHere.count(rule.name) + kComposite.count(rule.name), 1u)
        << rule.name;
}

}  // namespace
}  // namespace foreshard::exec
