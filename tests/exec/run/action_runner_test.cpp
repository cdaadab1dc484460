// The plans of init, summon, save and load, run: against whole tensors, at several ranks in one process.
#include "exec/actions/action_runner.h"
#include "core/plan/actions/build_actions.h"
#include "core/plan/units/units.h"
#include "exec/actions/action_state.h"
#include "exec/host/host_backend.h"
#include "exec/step/in_process_groups.h"
#include "tests/exec/run/held_state.h"
#include "tests/exec/tiny_llama.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

namespace foreshard::exec {
namespace {

struct Rank {
  int rank;
  const StateSource& source;
  const Plan& plan;
  ActionRunner& runner;
  Backend& backend;

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

class ActionRunnerTest : public ::testing::TestWithParam<int> {
 protected:
  ActionRunnerTest() { job_ = tiny_llama_job(1); }

  /// What rank 0 has; the others begin with something else where rank 0's values are sent.
  at::Tensor whole(const Model& model, ParamId param) const { return weights_.at(model.params[param.index()].fqn); }

  void on_ranks(const std::string& actions, const std::function<void(Rank&)>& work, bool equal = true) {
    const int world = GetParam();
    InProcessGroups groups;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        Job job = job_;
        job.model.batch = 1;
        job.cluster.world_size = job.cluster.ranks_per_node = world;
        job.cluster.rank = rank;
        const Model model = tiny_llama(job);
        const auto table = build_units(model, job);
        ASSERT_TRUE(table) << to_text(table.error());
        const StateSource source{model, job, *table};
        const auto plan = build_action_plan(model, job, *table, *parse_actions(actions));
        ASSERT_TRUE(plan) << to_text(plan.error());
        const auto backend = make_host_backend({.rank = rank});
        const auto initial = [&](ParamId param) {
          const at::Tensor value = whole(model, param);
          return rank == 0 || equal ? value : at::full_like(value, rank);
        };
        auto runner =
            ActionRunner::create({source, *plan, *backend, groups.of(*plan), initial, tiny_llama_buffers(model)});
        ASSERT_TRUE(runner) << to_text(runner.error());
        Rank mine{rank, source, *plan, **runner, *backend};
        work(mine);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void expect_state(const Rank& r, double factor, const std::string& what) const {
    Numel held = 0;
    const TrainState state = r.runner.state();
    for (const StateTensor& tensor : state.tensors) {
      const at::Tensor flat = weights_.at(tensor.fqn).reshape({-1}) * factor;
      for (const StatePiece& piece : tensor.pieces) {
        held += piece.numel;
        EXPECT_TRUE(tensor.local.narrow(0, piece.local_offset, piece.numel)
                        .equal(flat.narrow(0, piece.global_offset, piece.numel)))
            << what << ", rank " << r.rank << ": " << tensor.fqn;
      }
    }
    EXPECT_GT(held, 0) << what;
  }

  /// Every combination of runtime and layout that the plans know.
  void for_layouts(const std::function<void(const std::string&)>& test) {
    for (const bool orig : {true, false}) {
      for (const Strategy strategy : {Strategy::FullShard, Strategy::NoShard}) {
        job_.fsdp.runtime = Runtime::Fsdp1;
        job_.fsdp.use_orig_params = orig;
        job_.fsdp.strategy = strategy;
        test(fmt::format("fsdp1 {} {}", strategy_name(strategy), orig ? "original" : "flat"));
      }
    }
    job_.fsdp.strategy = Strategy::FullShard;
    job_.fsdp.runtime = Runtime::Fsdp2;
    test("fsdp2");
  }

  Job job_;
  NamedTensors weights_ = tiny_llama_weights();
};

TEST_P(ActionRunnerTest, InitShardsWhatRank0Has) {
  for_layouts([&](const std::string& layout) {
    const bool sends = job_.fsdp.runtime == Runtime::Fsdp1;
    for (const char* place : {"meta", "device", "host"}) {
      job_.cluster.init = place;
      on_ranks(
          sends ? "init:sync" : "init",
          [&](Rank& r) {
            r.run(0);
            expect_state(r, 1, layout + " from " + place);
          },
          !sends);
    }
  });
}

TEST_P(ActionRunnerTest, SaveReturnsWholeTensorsOrThisRanksPart) {
  for_layouts([&](const std::string& layout) {
    const bool fsdp2 = job_.fsdp.runtime == Runtime::Fsdp2;
    for (const std::string kind : {"full", "sharded", "local", "full:offload:rank0_only"}) {
      if (fsdp2 && kind == "local") continue;
      const bool whole_only = job_.fsdp.strategy == Strategy::NoShard;
      if (whole_only && kind.find("offload") != std::string::npos) continue;  // U2
      on_ranks("init,save:" + kind, [&](Rank& r) {
        r.run(0);
        r.run(1);
        std::size_t held = 0;
        for (const StateEntry& entry : model_state(r.source, r.request(1))) {
          held += entry.held ? 1 : 0;
          const auto found = r.runner.dict().find(entry.key);
          ASSERT_EQ(found != r.runner.dict().end(), entry.held) << layout << " " << kind << " " << entry.key;
          if (!entry.held) continue;
          EXPECT_EQ(found->second.sizes(), at::IntArrayRef(entry.sharded ? entry.local : entry.shape))
              << layout << " " << kind << " " << entry.key;
          if (!entry.param.valid() || kind == "local") continue;
          at::Tensor expected = whole(r.source.model, entry.param);
          for (std::size_t d = 0; entry.sharded && d < entry.local.size(); ++d) {
            expected = expected.narrow(static_cast<std::int64_t>(d), entry.offset[d], entry.local[d]);
          }
          EXPECT_TRUE(found->second.equal(expected)) << layout << " " << kind << " " << entry.key;
        }
        EXPECT_EQ(r.runner.dict().size(), held) << layout << " " << kind << ", rank " << r.rank;
        expect_state(r, 1, layout + " after save");
      });
    }
  });
}

TEST_P(ActionRunnerTest, LoadGivesBackWhatSaveTook) {
  for_layouts([&](const std::string& layout) {
    for (const std::string kind : {"full", "sharded", "local"}) {
      if (job_.fsdp.runtime == Runtime::Fsdp2 && kind == "local") continue;
      on_ranks("init,save:" + kind + ",load:" + kind, [&](Rank& r) {
        r.run(0);
        r.run(1);
        StateDict dict;
        for (const auto& [key, tensor] : r.runner.dict()) dict[key] = tensor * 3;
        r.runner.set_dict(dict);
        r.run(2);
        expect_state(r, 3, layout + " " + kind);
      });
    }
  });
}

TEST_P(ActionRunnerTest, Rank0sDictReachesAllRanksOfFsdp2) {
  job_.fsdp.runtime = Runtime::Fsdp2;
  on_ranks("init,load:full:rank0_only", [&](Rank& r) {
    r.run(0);
    StateDict dict;
    for (std::size_t p = 0; r.rank == 0 && p < r.source.model.params.size(); ++p) {
      dict[r.source.model.params[p].fqn] = whole(r.source.model, ParamId(p)) * 5;
    }
    r.runner.set_dict(dict);
    r.run(1);
    expect_state(r, 5, "rank 0's");
  });
}

TEST_P(ActionRunnerTest, SummonShowsWholeParametersAndTakesChangesBack) {
  job_.fsdp.runtime = Runtime::Fsdp1;
  for (const bool casts : {false, true}) {
    job_.fsdp.mixed_precision = casts ? MixedPrecision{} : MixedPrecision::none();  // shown in full precision (U3)
    for (const std::string options : {"", ":no_writeback", ":rank0_only:no_writeback:offload"}) {
      on_ranks("init,summon" + options, [&](Rank& r) {
        std::size_t shown = 0;
        r.runner.on_shown([&](ParamId param, const at::Tensor& full) {
          EXPECT_TRUE(full.equal(whole(r.source.model, param))) << r.source.model.params[param.index()].fqn;
          full.mul_(2);
          ++shown;
        });
        r.run(0);
        r.run(1);
        const bool sees = options.find("rank0_only") == std::string::npos || r.rank == 0;
        EXPECT_EQ(shown, sees ? r.source.model.params.size() : 0u);
        expect_state(r, options.empty() ? 2 : 1, "summon" + options);
      });
    }
  }
}

TEST_P(ActionRunnerTest, SummonShowsWhatIsNotShardedToo) {
  job_.fsdp.runtime = Runtime::Fsdp1;
  job_.fsdp.strategy = Strategy::NoShard;
  on_ranks("init,summon", [&](Rank& r) {
    std::size_t shown = 0;
    r.runner.on_shown([&](ParamId param, const at::Tensor& full) {
      EXPECT_TRUE(full.equal(whole(r.source.model, param))) << r.source.model.params[param.index()].fqn;
      ++shown;
    });
    r.run(0);
    r.run(1);
    EXPECT_EQ(shown, r.source.model.params.size());
  });
}

TEST_P(ActionRunnerTest, StateThatNoInitMakesIsWhatTrainingLeaves) {
  job_.train.optimizer.name = OptimizerKind::AdamW;
  for_layouts([&](const std::string& layout) {
    on_ranks("save:full:optimizer", [&](Rank& r) {
      r.runner.make_state(/*optimizer=*/true);
      TrainState state = r.runner.state();
      fill_params(state, r.source.model, [&](ParamId param) { return whole(r.source.model, param); });
      r.runner.set_state(state);
      r.run(0);
      for (const DictTensor& t : dict_tensors(r.runner.dict(), r.source, r.request(0))) {
        const auto weight = weights_.find(t.key);
        const bool moment = weight == weights_.end();
        EXPECT_TRUE(t.local.equal(moment ? at::zeros_like(t.local) : weight->second)) << layout << " " << t.key;
        EXPECT_EQ(t.first, 0) << "whole";
      }
      EXPECT_EQ(r.runner.dict().size(), 3 * weights_.size()) << layout;
    });
  });
}

TEST_P(ActionRunnerTest, WhatLoadReadsIsMadeOfWholeValues) {
  for_layouts([&](const std::string& layout) {
    for (const std::string kind : {"full", "sharded", "local"}) {
      if (job_.fsdp.runtime == Runtime::Fsdp2 && kind == "local") continue;
      on_ranks("init,load:" + kind, [&](Rank& r) {
        r.run(0);
        DictToFill read = dict_to_fill(r.source, r.request(1), tiny_llama_buffers(r.source.model));
        fill_params(read.state, r.source.model, [&](ParamId param) { return whole(r.source.model, param) * 7; });
        r.runner.set_dict(std::move(read.dict));
        r.run(1);
        expect_state(r, 7, layout + " " + kind);
      });
    }
  });
}

TEST_P(ActionRunnerTest, WhatASaveReturnedStaysItsCallers) {
  job_.fsdp.runtime = Runtime::Fsdp1;
  on_ranks("init,save:sharded,load:sharded", [&](Rank& r) {
    r.run(0);
    r.run(1);
    const Bytes held = r.backend.memory().total.allocated;
    r.runner.set_dict(r.runner.dict());
    r.run(2);
    EXPECT_EQ(r.backend.memory().total.allocated, held);
  });
}

TEST_P(ActionRunnerTest, ARunsStateIsTakenOver) {
  for_layouts([&](const std::string& layout) {
    TrainState taken;
    on_ranks("save:full", [&](Rank& r) {
      TrainState state;
      for (const auto& [name, tensor] : weights_) {
        state.tensors.push_back(
            {name, "param", tensor.sizes().vec(), tensor.reshape({-1}).clone(), {{0, 0, tensor.numel()}}});
      }
      r.runner.set_state(state);
      expect_state(r, 1, layout);
      r.run(0);
      for (const auto& [name, tensor] : weights_) {
        EXPECT_TRUE(r.runner.dict().at(name).equal(tensor)) << layout << " " << name;
      }
    });
  });
}

TEST_P(ActionRunnerTest, MemoryIsThatOfThePlan) {
  for_layouts([&](const std::string& layout) {
    for (const std::string action : {"summon", "save:full", "save:sharded", "load:full"}) {
      if (job_.fsdp.runtime == Runtime::Fsdp2 && action == "summon") continue;
      on_ranks("init," + action, [&](Rank& r) {
        r.run(0);
        StateDict dict;
        for (const auto& [name, tensor] : weights_) dict[name] = tensor;
        r.runner.set_dict(dict);
        const Bytes before = r.backend.memory().total.allocated;
        r.backend.reset_peak_memory();
        r.run(1);
        const MemoryCount after = r.backend.memory().total;
        const ActionMemory planned = action_memory(r.plan.iterations[1]);
        EXPECT_EQ(after.peak_allocated - before, planned.device_peak) << layout << " " << action;
        EXPECT_EQ(after.allocated - before, planned.device_end) << layout << " " << action;
      });
    }
  });
}

TEST_P(ActionRunnerTest, OptimizerStateIsSavedAndLoaded) {
  job_.train.optimizer.name = OptimizerKind::AdamW;
  for_layouts([&](const std::string& layout) {
    const bool whole_only = job_.fsdp.strategy == Strategy::NoShard;
    for (const std::string kind : {"full", "sharded", "full:rank0_only"}) {
      if (whole_only && kind != "full") continue;
      on_ranks("init,save:" + kind + ":optimizer,load:" + kind + ":optimizer", [&](Rank& r) {
        const std::string what = fmt::format("{} {}, rank {}", layout, kind, r.rank);
        r.run(0);
        TrainState moments;
        for (const auto& [name, tensor] : weights_) {
          for (const auto& [slot, factor] : {std::pair("exp_avg", 2.0), std::pair("exp_avg_sq", 3.0)}) {
            moments.tensors.push_back(
                {name, slot, tensor.sizes().vec(), tensor.reshape({-1}) * factor, {{0, 0, tensor.numel()}}});
          }
        }
        r.runner.set_state(moments);
        r.run(1);
        StateDict dict;
        for (const auto& [key, tensor] : r.runner.dict()) dict[key] = tensor * 5;
        const bool rank0 = kind.find("rank0") != std::string::npos;
        for (const StateEntry& entry : optimizer_state(r.source, r.request(1))) {
          if (!entry.held) continue;
          at::Tensor expected = whole(r.source.model, entry.param) * 3;
          for (std::size_t d = 0; entry.sharded && d < entry.local.size(); ++d) {
            expected = expected.narrow(static_cast<std::int64_t>(d), entry.offset[d], entry.local[d]);
          }
          ASSERT_TRUE(dict.contains(entry.key + ".exp_avg_sq")) << what << " " << entry.key;
          EXPECT_TRUE((dict.at(entry.key + ".exp_avg_sq") / 5).allclose(expected)) << what << " " << entry.key;
        }
        if (rank0 && r.plan.runtime == Runtime::Fsdp1) {  // the model's full state is loaded on every rank
          for (const auto& [name, tensor] : weights_) dict.try_emplace(name, tensor * 5);
        }
        r.runner.set_dict(dict);
        r.run(2);
        testing::expect_multiples(
            r.runner.state(), [&](const auto& name) { return weights_.at(name); }, 5, what);
      });
    }
  });
}

TEST_P(ActionRunnerTest, WhatIsNotRunIsRefused) {
  Job job = tiny_llama_job(1);
  job.fsdp.runtime = Runtime::Fsdp1;
  const Model model = tiny_llama(job);
  const auto table = build_units(model, job);
  const StateSource source{model, job, *table};
  const auto backend = make_host_backend();
  job.fsdp.cpu_offload = true;
  for (const char* actions : {"summon:with_grads", "save"}) {
    const auto plan = build_action_plan(model, job, *table, *parse_actions(actions));
    ASSERT_TRUE(plan) << actions << ": " << to_text(plan.error());
    const auto runner = ActionRunner::create({source, *plan, *backend, {}, {}, {}});
    ASSERT_FALSE(runner) << actions;
    EXPECT_EQ(runner.error().code, ErrorCode::Unsupported);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ActionRunnerTest, ::testing::Values(2, 3));

}  // namespace
}  // namespace foreshard::exec
