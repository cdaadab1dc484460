// exec/calibrate/calibration.h on the tiny Llama: everything is measured, under the signatures that the simulator looks
// up.
#include "exec/calibrate/calibration.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/operators/operator_signature.h"
#include "exec/communicators/in_process_communicator.h"
#include "sim/machine/profile.h"
#include "tests/exec/tiny_llama.h"

namespace foreshard::exec {
namespace {

Calibration calibrated(const Model& model, int ranks) {
  const NamedTensors weights = tiny_llama_weights();
  std::map<std::int32_t, at::Tensor> params;
  for (std::size_t p = 0; p < model.params.size(); ++p) {
    params[static_cast<std::int32_t>(p)] = weights.at(model.params[p].fqn).clone().set_requires_grad(true);
  }
  CalibrationSetup setup{model, tiny_llama_inputs(tiny_llama_data(), 0, 0, 2),
                         [&](ParamId id) { return params.at(id.value); }, tiny_llama_buffers(model)};
  setup.repeats = 3;
  if (ranks > 1) setup.communicators = in_process_communicators(ranks, std::chrono::seconds(60));
  auto result = calibrate(setup);
  if (!result) throw std::runtime_error(to_text(result.error()));
  return *result;
}

TEST(Calibration, EveryOperatorOfTheModelIsMeasuredUnderItsSignature) {
  const Model model = tiny_llama(tiny_llama_job(2));
  const Calibration c = calibrated(model, 1);
  std::map<std::string, const OperatorTime*> by_signature;
  std::int64_t count = 0;
  for (const OperatorTime& op : c.operators) {
    EXPECT_TRUE(by_signature.emplace(op.signature, &op).second) << "twice: " << op.signature;
    count += op.count;
    EXPECT_GE(op.forward_ns, 0);
  }
  EXPECT_EQ(count, static_cast<std::int64_t>(model.ops.size()));
  bool products_have_backward = false;
  for (const Op& op : model.ops) {
    const auto found = by_signature.find(operator_signature(model, op));
    ASSERT_NE(found, by_signature.end()) << op.name;
    products_have_backward = products_have_backward ||
                             (op.name.find("linear") != std::string::npos || op.name.find("mm") != std::string::npos
                                  ? found->second->backward_ns > 0
                                  : false);
  }
  EXPECT_TRUE(products_have_backward);
  EXPECT_GT(c.whole_forward_ns, 0);
  EXPECT_GT(c.whole_backward_ns, 0);
  EXPECT_TRUE(c.collectives.empty());
  EXPECT_GT(c.copy_gb_per_s, 0);
  EXPECT_GT(c.gemm_tflops, 0);
  EXPECT_GT(c.issue_ns, 0);
}

TEST(Calibration, RanksThatTalkGiveACurveOfEachCollective) {
  const Model model = tiny_llama(tiny_llama_job(2));
  const Calibration c = calibrated(model, 2);
  ASSERT_EQ(c.collectives.size(), 3u);
  EXPECT_EQ(c.collectives[0].kind, "all_gather");
  for (const CollectiveCurve& curve : c.collectives) {
    EXPECT_EQ(curve.ranks, 2);
    ASSERT_GT(curve.bytes.size(), 3u);
    EXPECT_EQ(curve.bytes.size(), curve.ns.size());
    EXPECT_TRUE(std::is_sorted(curve.bytes.begin(), curve.bytes.end()));
    for (const SimDuration ns : curve.ns) EXPECT_GT(ns, 0);
    ASSERT_EQ(curve.beside_ns.size(), curve.ns.size());
    ASSERT_EQ(curve.taken_ns.size(), curve.ns.size());
    ASSERT_EQ(curve.cpu_ns.size(), curve.ns.size());
    for (std::size_t k = 0; k < curve.ns.size(); ++k) {
      EXPECT_GT(curve.beside_ns[k], 0);
      EXPECT_LE(curve.taken_ns[k], curve.beside_ns[k]) << "compute cannot lose more time than passes";
      EXPECT_GT(curve.cpu_ns[k], 0);
    }
  }
}

TEST(Calibration, ARanksOwnWorkIsTimedBySizeOfItsTensors) {
  const Model model = tiny_llama(tiny_llama_job(2));
  const Calibration c = calibrated(model, 1);
  std::map<std::string, const WorkCurve*> curves;
  for (const WorkCurve& curve : c.work) curves[curve.kind] = &curve;
  for (std::size_t w = 0; w < kTensorWorks; ++w) {
    const std::string kind(tensor_work_name(static_cast<TensorWork>(w)));
    ASSERT_TRUE(curves.contains(kind)) << "profiles name it";
    const WorkCurve& curve = *curves.at(kind);
    ASSERT_EQ(curve.bytes.size(), curve.ns.size());
    EXPECT_TRUE(std::is_sorted(curve.bytes.begin(), curve.bytes.end()));
    EXPECT_GT(curve.ns.back(), curve.ns.front()) << kind << ": a large tensor takes longer than a small one";
  }
  EXPECT_GT(curves.at("adamw")->ns.front(), curves.at("copy")->ns.front()) << "a step is many calls";
  EXPECT_GT(c.handover_ns, 0);
  EXPECT_GE(c.segment_forward_ns, 0);
}

TEST(Calibration, WhatCannotRunIsAnErrorWithItsOperator) {
  const Model model = tiny_llama(tiny_llama_job(2));
  CalibrationSetup setup{model, tiny_llama_inputs(tiny_llama_data(), 0, 0, 2),
                         [](ParamId) { return at::zeros({1}); },  // no parameter has this shape
                         tiny_llama_buffers(model)};
  const auto result = calibrate(setup);
  ASSERT_FALSE(result);
  EXPECT_NE(to_text(result.error()).find("ops["), std::string::npos) << to_text(result.error());
}

}  // namespace
}  // namespace foreshard::exec
