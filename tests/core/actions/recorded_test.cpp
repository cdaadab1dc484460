// Recordings of PyTorch 2.11 (oracle fsdp1/numerics, cases `memory` and `state`): bytes of construction, and keys and
// shapes of state dicts on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/actions/fixture.h"

namespace foreshard::actions_test {
namespace {

std::vector<std::int64_t> device_events(const PlanIteration& iteration) {
  std::vector<std::int64_t> bytes;
  std::vector<std::pair<BufferName, Bytes>> held;
  for (const Instruction& i : iteration.instructions) {
    if (i.kind == InstructionKind::Alloc) {
      held.emplace_back(i.buffer, i.bytes);
      bytes.push_back(i.bytes);
    } else if (i.kind == InstructionKind::Free) {
      for (const auto& [name, size] : held) {
        if (name == i.buffer) bytes.push_back(-size);
      }
    }
  }
  return bytes;
}

TEST(Recorded, BytesOfConstruction) {  // I6
  int rows = 0;
  for (const Json& row : recorded_rows()) {
    if (row.at("case") != "memory") continue;
    ++rows;
    const Plan plan = plan_of(of_row(row, 0), "init");
    const Json& construction = row.at("result").at("construction");
    const ActionMemory memory = action_memory(plan.iterations[0]);
    EXPECT_EQ(memory.device_peak, construction.at("peak")) << row.at("id");
    EXPECT_EQ(memory.device_end, construction.at("end")) << row.at("id");
    EXPECT_EQ(device_events(plan.iterations[0]), construction.at("large_events").get<std::vector<std::int64_t>>())
        << row.at("id");
  }
  EXPECT_EQ(rows, 5);
}

Json shown(const StateEntry& entry) {
  if (!entry.sharded) return Json::array({"tensor", entry.shape, entry.dtype == DType::Float32 ? "fp32" : "other"});
  Json shards = Json::array();
  if (entry.held) shards.push_back(Json::array({entry.offset, entry.local}));
  return Json::array({"sharded", entry.shape, shards});
}

/// Key order is the dict's own business: compared as sets of members.
std::map<std::string, Json> members(const Json& object) {
  std::map<std::string, Json> all;
  for (const auto& [key, value] : object.items()) all[key] = value;
  return all;
}

ActionRequest request_of(const std::string& kind) {
  ActionRequest request;
  request.action = PlanAction::Save;
  request.kind = kind.starts_with("FULL")      ? StateKind::Full
                 : kind.starts_with("SHARDED") ? StateKind::Sharded
                                               : StateKind::Local;
  request.rank0_only = kind.find("rank0_only") != std::string::npos;
  return request;
}

Json planned_model(const StateSource& source, const ActionRequest& request) {
  Json dict = Json::object();
  for (const StateEntry& entry : model_state(source, request)) dict[entry.key] = shown(entry);
  return dict;
}

Json planned_optimizer(const StateSource& source, const ActionRequest& request) {
  Json state = Json::object();
  for (const StateEntry& entry : optimizer_state(source, request)) {
    for (const OptimizerTensor& tensor : optimizer_tensors(source.job.train.optimizer)) {
      state[entry.key][tensor.name] = tensor.scalar ? Json::array({"tensor", Json::array(), "fp32"}) : shown(entry);
    }
  }
  return state;
}

TEST(Recorded, KeysAndShapesOfStateDictsOnEveryRank) {  // K1, K2, K4, K5
  int dicts = 0;
  for (const Json& row : recorded_rows()) {
    if (row.at("case") != "state") continue;
    for (std::size_t rank = 0; rank < row.at("result").size(); ++rank) {
      const Subject subject = of_row(row, static_cast<std::int64_t>(rank));
      const UnitTable table = units_of(subject);
      const StateSource source{subject.model, subject.job, table};
      for (const auto& [kind, dict] : row.at("result")[rank].items()) {
        const std::string where = row.at("id").get<std::string>() + " rank " + std::to_string(rank) + " " + kind;
        const ActionRequest request = request_of(kind);
        ++dicts;
        if (kind.find("optimizer") == std::string::npos) {
          EXPECT_EQ(members(planned_model(source, request)), members(dict)) << where;
          continue;
        }
        const Json state = dict.contains("state") ? dict.at("state") : Json::object();
        const auto planned = members(planned_optimizer(source, request)), recorded = members(state);
        ASSERT_EQ(planned.size(), recorded.size()) << where;
        for (const auto& [key, tensors] : recorded) {
          ASSERT_TRUE(planned.contains(key)) << where << " " << key;
          EXPECT_EQ(members(planned.at(key)), members(tensors)) << where << " " << key;
        }
      }
    }
  }
  EXPECT_EQ(dicts, 7 * (2 + 4 + 4 + 4 + 2 + 2 + 2 + 4 + 4 + 4));
}

/// What `after_init` of the gpu_memory rows counts as requested bytes is what a plan leaves behind: m001's Llama, its
/// sizes written out (hidden 1024, 4 layers, 8 ranks), rank 0.
TEST(Recorded, WhatWrappingLeavesBehindIsWhatTheAllocatorWasAskedFor) {
  Subject subject;
  Model& model = subject.model;
  const auto module = [&](const std::string& fqn, const std::string& cls, std::int32_t parent) {
    ModuleInfo info;
    info.fqn = fqn;
    info.class_name = cls;
    const ModuleId id(model.modules.size());
    if (parent >= 0) {
      info.parent = ModuleId(parent);
      model.modules[static_cast<std::size_t>(parent)].children.push_back(id);
    }
    model.modules.push_back(std::move(info));
    return id.value;
  };
  const auto param = [&](std::int32_t owner, const std::string& name, Shape shape) {
    const std::string& prefix = model.modules[static_cast<std::size_t>(owner)].fqn;
    model.modules[static_cast<std::size_t>(owner)].params.push_back(ParamId(model.params.size()));
    model.params.push_back({prefix + "." + name, std::move(shape), DType::Float32, true, ModuleId(owner), {}});
  };
  module("", "LlamaForCausalLM", -1);
  param(module("embed", "Embedding", 0), "weight", {32000, 1024});
  for (int layer = 0; layer < 4; ++layer) {
    const std::int32_t block = module("b" + std::to_string(layer), "LlamaDecoderLayer", 0);
    for (const auto& [name, shape] : std::vector<std::pair<std::string, Shape>>{{"q", {1024, 1024}},
                                                                                {"k", {512, 1024}},
                                                                                {"v", {512, 1024}},
                                                                                {"o", {1024, 1024}},
                                                                                {"gate", {2816, 1024}},
                                                                                {"up", {2816, 1024}},
                                                                                {"down", {1024, 2816}},
                                                                                {"norm1", {1024}},
                                                                                {"norm2", {1024}}}) {
      param(block, name, shape);
    }
  }
  param(module("norm", "LlamaRMSNorm", 0), "weight", {1024});
  param(module("lm_head", "Linear", 0), "weight", {32000, 1024});
  for (int copy = 0; copy < 2; ++copy) {  // inv_freq and original_inv_freq
    model.buffers.push_back({"rotary.b" + std::to_string(copy), {32}, DType::Float32, ModuleId(0), false});
  }
  subject.job.fsdp.runtime = Runtime::Fsdp1;
  subject.job.fsdp.wrap.classes = {"LlamaDecoderLayer"};
  EXPECT_EQ(action_memory(plan_of(subject, "init").iterations[0]).device_end, 56365824);  // m001, after_init, requested
  subject.job.fsdp.runtime = Runtime::Fsdp2;
  EXPECT_EQ(action_memory(plan_of(subject, "init").iterations[0]).device_end, 56365824);  // m039
}

}  // namespace
}  // namespace foreshard::actions_test
