// An archive written in float32, read as mixed precision runs it.
#include "core/model/pt2/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/model/pt2/model.h"

namespace foreshard {
namespace {

const std::string kArchives = std::string(FORESHARD_TEST_DATA) + "/pt2/";

Model read(const std::string& name, std::optional<DType> dtype, std::optional<DType> created = DType::Float32) {
  ModelOptions options;
  options.loss = "none";
  options.dtype = created;
  ProgramOptions program;
  program.compute_dtype = dtype;
  auto model = model_from_pt2(kArchives + name, options, program);
  EXPECT_TRUE(model) << to_text(model.error());
  return model ? std::move(*model) : Model{};
}

DType type_of(const Model& model, const Arg& arg) {
  if (const auto* value = std::get_if<ValueRef>(&arg.value)) return model.values[value->id.index()].dtype;
  if (const auto* param = std::get_if<ParamRef>(&arg.value))
    return is_floating(model.params[param->id.index()].dtype) ? model.compute_dtype : DType::Int64;
  if (const auto* buffer = std::get_if<BufferRef>(&arg.value))
    return model.buffers[static_cast<std::size_t>(buffer->index)].dtype;
  return DType::Int64;
}

/// What PyTorch refuses: a product of two dtypes.
std::vector<std::string> mixed_products(const Model& model) {
  std::vector<std::string> names;
  for (const Op& op : model.ops) {
    if (op.name != "aten.mm.default" && op.name != "aten.addmm.default" && op.name != "aten.bmm.default" &&
        op.name.find("_attention") == std::string::npos)
      continue;
    std::vector<DType> types;
    for (const Arg& arg : op.args)
      if (const DType type = type_of(model, arg); is_floating(type)) types.push_back(type);
    if (std::any_of(types.begin(), types.end(), [&](DType type) { return type != types[0]; })) names.push_back(op.name);
  }
  return names;
}

std::map<std::string, int> counted(const Model& model) {
  std::map<std::string, int> counts;
  for (const Op& op : model.ops) ++counts[op.name];
  return counts;
}

TEST(Pt2Precision, ParametersStayAsCreatedAndTheProgramComputesInTheLowType) {
  const Model model = read("llama_tiny.pt2", DType::BFloat16);
  ASSERT_FALSE(model.ops.empty());
  EXPECT_EQ(model.compute_dtype, DType::BFloat16);
  for (const ParamInfo& param : model.params) EXPECT_EQ(param.dtype, DType::Float32) << param.fqn;
  EXPECT_TRUE(mixed_products(model).empty());
  EXPECT_EQ(model.values[model.outputs[0].index()].dtype, DType::BFloat16);
}

TEST(Pt2Precision, CastsAreThoseOfTheModelInHalfPrecision) {
  const Model model = read("llama_tiny.pt2", DType::BFloat16);
  // Two layers: five norms cast there and back, position ids once, cos and sin once each.
  EXPECT_EQ(counted(model).at("aten._to_copy.default"), 5 * 2 + 1 + 2);
  EXPECT_EQ(counted(model).at("aten._scaled_dot_product_efficient_attention.default"), 2);
}

TEST(Pt2Precision, NothingHasToBeCastThatTheModuleCastsItself) {
  const auto members = read_pt2_archive(kArchives + "llama_tiny.pt2", {});
  ASSERT_TRUE(members);
  const auto program = parse_pt2_program(*members, "x.pt2");
  ASSERT_TRUE(program);
  std::vector<std::string> casts;
  with_mixed_precision(*program, DType::BFloat16, std::nullopt, &casts);
  EXPECT_TRUE(casts.empty()) << casts.front();
}

TEST(Pt2Precision, WithoutMixedPrecisionTheArchiveIsReadAsWritten) {
  const Model plain = read("user_mlp_shared.pt2", std::nullopt), same = read("user_mlp_shared.pt2", DType::Float32);
  EXPECT_EQ(plain, same);
  EXPECT_EQ(plain.compute_dtype, DType::Float32);
}

TEST(Pt2Precision, AnArchiveOfTheLowTypeIsTakenAsItIsAndItsParametersAreCreatedWide) {
  const Model own = read("llama_1b_meta.pt2", DType::BFloat16, std::nullopt);  // model.dtype = "config"
  Model wide = read("llama_1b_meta.pt2", DType::BFloat16, DType::Float32);
  ASSERT_FALSE(wide.params.empty());
  for (const ParamInfo& param : wide.params) EXPECT_EQ(param.dtype, DType::Float32) << param.fqn;
  EXPECT_EQ(wide.compute_dtype, DType::BFloat16);
  EXPECT_EQ(read("llama_1b_meta.pt2", std::nullopt), own);  // nothing is cast: as the archive has it
  for (ParamInfo& param : wide.params) param.dtype = DType::BFloat16;
  EXPECT_EQ(wide, own);
}

TEST(Pt2Precision, HalfPrecisionKeepsHalfTheBytes) {
  const auto kept = [](const Model& model) {
    const auto lowered = lower(model, {{0, static_cast<std::int32_t>(model.ops.size()), false, -1}},
                               std::vector<bool>(model.params.size(), true));
    EXPECT_TRUE(lowered);
    Bytes bytes = 0;
    for (const SegmentInstance& instance : lowered->instances)
      for (const Slot& slot : lowered->templates[static_cast<std::size_t>(instance.lowered)].slots) bytes += slot.bytes;
    return bytes;
  };
  const Bytes whole = kept(read("user_mlp_shared.pt2", DType::Float32));
  const Bytes half = kept(read("user_mlp_shared.pt2", DType::BFloat16));
  EXPECT_GT(whole, 0);
  EXPECT_LE(half, whole * 6 / 10);
}

}  // namespace
}  // namespace foreshard
