// State dicts of models cut over a mesh, saved and loaded on ranks of one process: the values of the whole model come
// out, whole or in shards, and go back in, in the memory of the plan.
#include "core/plan/actions/build_actions.h"
#include "core/plan/units/units.h"
#include "exec/actions/action_runner.h"
#include "exec/actions/action_state.h"
#include "exec/host/host_backend.h"
#include "exec/run/buffers.h"
#include "exec/run/weight_source.h"
#include "exec/step/in_process_groups.h"
#include "tests/exec/run/held_state.h"
#include "tests/exec/tiny_ranks.h"
#include "tests/support/temporary_path.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

namespace foreshard::exec {
namespace {

struct Layout {
  std::string name;
  Job job;
  bool even = true;  // PyTorch loads whole tensors that it can cut evenly alone
};

Job on_mesh(const std::string& model, int world, Runtime runtime = Runtime::Fsdp2) {
  Job job = tiny_job(model, world);
  job.model.batch = 2;
  job.fsdp.runtime = runtime;
  job.fsdp.allow_traps = {27, 45};
  job.train.optimizer.name = OptimizerKind::AdamW;
  return job;
}

Layout tensors(std::string name, int world, Runtime runtime = Runtime::Fsdp2) {
  Layout layout{std::move(name), on_mesh("titan_tiny", world, runtime)};
  layout.job.mesh.tensor = 2;
  return layout;
}

/// 101 rows of a vocabulary and 66 of a width, over 3 x 2 ranks.
Layout uneven(std::string name, Runtime runtime) {
  Layout layout = tensors(std::move(name), 6, runtime);
  layout.job.model.source = testing::temporary_path("uneven.json");
  layout.even = false;
  std::ofstream(layout.job.model.source)
      << R"({"model_type": "titan_llama", "dim": 48, "n_layers": 1, "n_heads": 6, "n_kv_heads": 2, "ffn": 66,
             "vocab_size": 101, "max_seq": 64})";
  return layout;
}

std::vector<Layout> fsdp2_layouts() {
  std::vector<Layout> all{tensors("2 x 2", 4), uneven("3 x 2", Runtime::Fsdp2), tensors("1 x 2", 2),
                          tensors("plain norms", 4), tensors("replicas", 8)};
  all[3].job.mesh.sequence_parallel = all[3].job.mesh.loss_parallel = false;
  all[4].job.fsdp.strategy = Strategy::HybridShard;
  all[4].job.cluster.shard_group = 2;
  all.push_back({"context", on_mesh("titan_tiny", 4)});
  all.back().job.mesh.context = 2;
  all.push_back({"context and tensors", on_mesh("titan_tiny", 4)});
  all.back().job.mesh.context = all.back().job.mesh.tensor = 2;
  for (const int experts : {2, 4}) {
    all.push_back({fmt::format("experts over {}", experts), on_mesh("moe_tiny", 4)});
    all.back().job.mesh.expert = experts;
    all.push_back({fmt::format("experts over {} beside tensors", experts), on_mesh("moe_tiny", 4)});
    all.back().job.mesh.expert = experts;
    all.back().job.mesh.tensor = 2;
  }
  return all;
}

std::vector<Layout> fsdp1_layouts() {
  std::vector<Layout> all;
  for (const bool orig : {true, false}) {
    const std::string names = orig ? "original" : "flat";
    all.push_back(tensors("fsdp1 2 x 2 " + names, 4, Runtime::Fsdp1));
    all.back().job.fsdp.use_orig_params = orig;
    all.push_back(tensors("fsdp1 plain norms " + names, 4, Runtime::Fsdp1));
    all.back().job.mesh.sequence_parallel = all.back().job.mesh.loss_parallel = false;
    all.back().job.fsdp.use_orig_params = orig;
    all.push_back(tensors("fsdp1 whole " + names, 2, Runtime::Fsdp1));  // NO_SHARD: one data rank
    all.back().job.fsdp.use_orig_params = orig;
    all.push_back(uneven("fsdp1 3 x 2 " + names, Runtime::Fsdp1));
    all.back().job.fsdp.use_orig_params = orig;
    all.push_back({"fsdp1 context " + names, on_mesh("titan_tiny", 4, Runtime::Fsdp1)});
    all.back().job.mesh.context = 2;
    all.back().job.fsdp.use_orig_params = orig;
  }
  return all;
}

/// One rank of an action plan, and the whole model that it is a part of.
struct Rank {
  int rank;
  const StateSource& source;
  const Plan& plan;
  ActionRunner& runner;
  Backend& backend;
  const std::vector<at::Tensor>& buffers;

  ActionRequest request(std::size_t iteration) const {
    ActionRequest request = parse_actions(plan.iterations[iteration].actions.front())->front();
    if (!request.kind_given && plan.runtime == Runtime::Fsdp2) request.kind = StateKind::Sharded;
    return request;
  }
  void run(std::size_t iteration) {
    const auto done = runner.run(iteration);
    ASSERT_TRUE(done) << done.error().text;
  }
};

class Ranks {
 public:
  explicit Ranks(Layout layout) : layout_(std::move(layout)), tiny_(layout_.job) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(20261129);
    for (const ParamInfo& info : tiny_.model().params) {
      if (!info.shares.valid()) weights_[info.fqn] = at::randn(info.shape, generator);
    }
  }

  const at::Tensor& weight(const std::string& name) const { return weights_.at(name); }
  const NamedTensors& weights() const { return weights_; }
  WholeParam whole(double factor = 1) const {
    return [this, factor](ParamId id) { return weights_.at(tiny_.model().params[id.index()].fqn) * factor; };
  }

  void run(const std::string& actions, const std::function<void(Rank&)>& work) {
    InProcessGroups groups;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < layout_.job.cluster.world_size; ++rank) {
      threads.emplace_back([&, rank] {
        Job job = layout_.job;
        job.cluster.rank = rank;
        const Model model = tiny_.own_model(rank);
        const auto table = build_units(model, job);
        ASSERT_TRUE(table) << to_text(table.error());
        const StateSource source{model, job, *table};
        const auto plan = build_action_plan(model, job, *table, *parse_actions(actions));
        ASSERT_TRUE(plan) << layout_.name << " " << actions << ": " << to_text(plan.error());
        const auto backend = make_host_backend({.rank = rank});
        const auto buffers = initial_buffers(tiny_.model(), job.model.source, nullptr);
        ASSERT_TRUE(buffers) << to_text(buffers.error());
        auto runner =
            ActionRunner::create({source, *plan, *backend, groups.of(*plan), own_parts(model, whole()), *buffers});
        ASSERT_TRUE(runner) << to_text(runner.error());
        Rank mine{rank, source, *plan, **runner, *backend, *buffers};
        try {
          work(mine);
        } catch (const std::exception& error) {
          ADD_FAILURE() << layout_.name << " " << actions << ", rank " << rank << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  /// Every rank's elements are those of the whole model, and no element is lost between them.
  void expect_state(const Rank& r, double factor, const std::string& what) {
    for (const StateTensor& tensor : r.runner.state().tensors) {
      if (tensor.slot != "param") continue;
      const at::Tensor& from = weight(tensor.fqn);
      ASSERT_EQ(tensor.shape, from.sizes().vec()) << what << ": " << tensor.fqn;
      const at::Tensor flat = from.reshape({-1}) * factor;
      for (const StatePiece& piece : tensor.pieces) {
        ASSERT_TRUE(tensor.local.narrow(0, piece.local_offset, piece.numel)
                        .equal(flat.narrow(0, piece.global_offset, piece.numel)))
            << what << ", rank " << r.rank << ": " << tensor.fqn;
        seen("state " + tensor.fqn, from.sizes()).view({-1}).narrow(0, piece.global_offset, piece.numel).fill_(1);
      }
    }
  }

  /// What save returned has the values of the whole model, whole or where the shard lies.
  void expect_saved(const Rank& r, std::size_t iteration, const std::string& what) {
    for (const StateEntry& entry : model_state(r.source, r.request(iteration))) {
      const auto found = r.runner.dict().find(entry.key);
      ASSERT_EQ(found != r.runner.dict().end(), entry.held) << what << " " << entry.key;
      if (!entry.held || !entry.param.valid()) continue;
      ASSERT_EQ(found->second.sizes(), at::IntArrayRef(entry.sharded ? entry.local : entry.shape)) << entry.key;
      at::Tensor expected = weight(entry.key), covered = seen("dict " + entry.key, expected.sizes());
      ASSERT_EQ(expected.sizes(), at::IntArrayRef(entry.shape)) << what << " " << entry.key;
      for (std::size_t d = 0; entry.sharded && d < entry.local.size(); ++d) {
        expected = expected.narrow(static_cast<std::int64_t>(d), entry.offset[d], entry.local[d]);
        covered = covered.narrow(static_cast<std::int64_t>(d), entry.offset[d], entry.local[d]);
      }
      ASSERT_TRUE(found->second.equal(expected)) << what << ", rank " << r.rank << ": " << entry.key;
      covered.fill_(1);
    }
  }

  void expect_all_seen(const std::string& what) {
    EXPECT_FALSE(seen_.empty()) << what;
    for (const auto& [name, covered] : seen_) EXPECT_TRUE(covered.all().item<bool>()) << what << ": " << name;
    seen_.clear();
  }

 private:
  at::Tensor seen(const std::string& name, at::IntArrayRef shape) {
    const std::lock_guard lock(mutex_);
    at::Tensor& covered = seen_[name];
    if (!covered.defined()) covered = at::zeros(shape, at::kByte);
    return covered;
  }

  Layout layout_;
  TinyRanks tiny_;
  NamedTensors weights_;
  std::mutex mutex_;
  std::map<std::string, at::Tensor> seen_;  // by tensor: elements that a rank had
};

StateDict times(const StateDict& dict, double factor) {
  StateDict scaled;
  for (const auto& [key, tensor] : dict) scaled[key] = tensor * factor;
  return scaled;
}

void expect_saves(const Layout& layout, const std::string& kind) {
  Ranks ranks(layout);
  const std::string what = layout.name + " " + kind;
  ranks.run("init,save:" + kind, [&](Rank& r) {
    r.run(0);
    ranks.expect_state(r, 1, what + " init");
    const Bytes before = r.backend.memory().total.allocated;
    r.backend.reset_peak_memory();
    r.run(1);
    const MemoryCount after = r.backend.memory().total;
    const ActionMemory planned = action_memory(r.plan.iterations[1]);
    EXPECT_EQ(after.peak_allocated - before, planned.device_peak) << what;
    EXPECT_EQ(after.allocated - before, planned.device_end) << what;
    ranks.expect_saved(r, 1, what);
    ranks.expect_state(r, 1, what + " after save");
  });
  ranks.expect_all_seen(what);
}

void expect_loads(const Layout& layout, const std::string& kind) {
  Ranks ranks(layout);
  const std::string what = layout.name + " " + kind;
  ranks.run("init,save:" + kind + ",load:" + kind, [&](Rank& r) {
    r.run(0);
    r.run(1);
    r.runner.set_dict(times(r.runner.dict(), 3));
    const Bytes before = r.backend.memory().total.allocated;
    r.backend.reset_peak_memory();
    r.run(2);
    const MemoryCount after = r.backend.memory().total;
    const ActionMemory planned = action_memory(r.plan.iterations[2]);
    EXPECT_EQ(after.peak_allocated - before, planned.device_peak) << what;
    ranks.expect_state(r, 3, what + " loaded");
    // As from a checkpoint: of whole values each rank's own.
    DictToFill read = dict_to_fill(r.source, r.request(2), r.buffers);
    fill_params(read.state, r.source.model, ranks.whole(7));
    r.runner.set_dict(std::move(read.dict));
    r.run(2);
    ranks.expect_state(r, 7, what + " loaded again");
  });
  ranks.expect_all_seen(what);
}

TEST(MeshActions, Fsdp2SavesWholeTensorsAndShards) {
  for (const Layout& layout : fsdp2_layouts()) {
    for (const char* kind : {"full", "sharded", "full:offload:rank0_only"}) expect_saves(layout, kind);
  }
}

TEST(MeshActions, Fsdp2LoadsWhatWasSaved) {
  for (const Layout& layout : fsdp2_layouts()) {
    expect_loads(layout, "sharded");
    if (layout.even) expect_loads(layout, "full");
  }
}

TEST(MeshActions, Rank0sTensorsReachEveryRanksPart) {
  for (const Layout& layout : fsdp2_layouts()) {
    if (!layout.even) continue;
    Ranks ranks(layout);
    ranks.run("init,load:full:rank0_only:optimizer", [&](Rank& r) {
      r.run(0);
      StateDict dict;
      for (const auto& [name, tensor] : r.rank == 0 ? ranks.weights() : NamedTensors()) {
        dict[name] = tensor * 5;
        for (const char* slot : {".exp_avg", ".exp_avg_sq"}) dict[name + slot] = tensor * 6;
      }
      r.runner.set_dict(dict);
      r.run(1);
      ranks.expect_state(r, 5, layout.name);
    });
    ranks.expect_all_seen(layout.name);
  }
}

TEST(MeshActions, TheOptimizersStateIsGatheredAndCutAsItsParameter) {
  for (const Layout& layout : fsdp2_layouts()) {
    for (const std::string kind : {"full", "sharded"}) {
      if (kind == "full" && !layout.even) continue;
      Ranks ranks(layout);
      ranks.run("init,save:" + kind + ":optimizer,load:" + kind + ":optimizer", [&](Rank& r) {
        const std::string what = fmt::format("{} {}, rank {}", layout.name, kind, r.rank);
        r.run(0);
        TrainState moments;
        for (const auto& [name, tensor] : ranks.weights()) {
          for (const auto& [slot, factor] : {std::pair("exp_avg", 2.0), std::pair("exp_avg_sq", 3.0)}) {
            moments.tensors.push_back(
                {name, slot, tensor.sizes().vec(), tensor.reshape({-1}) * factor, {{0, 0, tensor.numel()}}});
          }
        }
        r.runner.set_state(moments);
        r.run(1);
        for (const StateEntry& entry : optimizer_state(r.source, r.request(1))) {
          at::Tensor expected = ranks.weight(entry.key) * 3;
          for (std::size_t d = 0; entry.sharded && d < entry.local.size(); ++d)
            expected = expected.narrow(static_cast<std::int64_t>(d), entry.offset[d], entry.local[d]);
          ASSERT_TRUE(r.runner.dict().at(entry.key + ".exp_avg_sq").equal(expected)) << what << " " << entry.key;
        }
        r.runner.set_dict(times(r.runner.dict(), 4));
        r.run(2);
        testing::expect_multiples(
            r.runner.state(), [&](const auto& name) { return ranks.weight(name); }, 4, what);
      });
    }
  }
}

TEST(MeshActions, Fsdp1SavesItsOwnPartAndShardsCutAnew) {
  for (const Layout& layout : fsdp1_layouts()) {
    for (const char* kind : {"full", "sharded", "sharded:offload"}) expect_saves(layout, kind);
    // One data rank has nothing to unshard, which PyTorch does not offload (U2).
    if (layout.job.cluster.world_size > 2) expect_saves(layout, "full:offload");
  }
}

TEST(MeshActions, Fsdp1LoadsWhatWasSaved) {
  for (const Layout& layout : fsdp1_layouts()) {
    for (const char* kind : {"full", "sharded"}) expect_loads(layout, kind);
    if (layout.job.mesh.context > 1) expect_loads(layout, "local");  // no DTensors there
  }
}

TEST(MeshActions, WhatNoUnitManagesIsSavedInPartsOrNotAtAll) {
  Layout layout = tensors("outside", 4);
  layout.job.fsdp.ignored = {"output"};
  expect_saves(layout, "sharded");
  Job job = layout.job;
  const Model model = TinyRanks(job).own_model(0);
  const auto table = build_units(model, job);
  ASSERT_TRUE(table) << to_text(table.error());
  const auto plan = build_action_plan(model, job, *table, *parse_actions("save:full"));
  ASSERT_TRUE(plan) << to_text(plan.error());
  const auto backend = make_host_backend();
  const auto runner = ActionRunner::create({{model, job, *table}, *plan, *backend, {}, {}, {}});
  ASSERT_FALSE(runner);
  EXPECT_EQ(runner.error().got, "output.weight");
  EXPECT_NE(runner.error().hint.find("save:sharded"), std::string::npos);
}

TEST(MeshActions, SummonShowsARanksOwnPart) {
  const Layout layout = tensors("fsdp1 2 x 2", 4, Runtime::Fsdp1);
  Ranks ranks(layout);
  ranks.run("init,summon", [&](Rank& r) {
    std::size_t shown = 0;
    r.runner.on_shown([&](ParamId param, const at::Tensor& full) {
      EXPECT_TRUE(full.equal(own_parts(r.source.model, ranks.whole())(param)));
      ++shown;
    });
    r.run(0);
    r.run(1);
    EXPECT_EQ(shown, r.source.model.params.size());
  });
}

}  // namespace
}  // namespace foreshard::exec
