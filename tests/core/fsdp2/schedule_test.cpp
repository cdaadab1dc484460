#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tests/core/fsdp2/chain.h"

namespace foreshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// One line an instruction, in the words of the semantics page's section 19.10; what it leaves out is left out.
std::string token(const Plan& plan, const Instruction& i, std::map<std::int32_t, std::string>& events) {
  const std::string unit = !i.unit.valid()                           ? ""
                           : plan.units[i.unit.index()].name.empty() ? "R"
                                                                     : plan.units[i.unit.index()].name;
  const std::string stream(stream_name(i.stream));
  const auto buffer = [&](const char* name) { return std::string(name) + "(" + unit + ")"; };
  switch (i.kind) {
    case InstructionKind::WaitStream: return stream + "<-" + std::string(stream_name(i.other));
    case InstructionKind::RecordEvent: {
      const std::string what(plan.name_of(i.name));
      events[i.event.value] = (what == "all_gather"       ? "AG "
                               : what == "copy_out"       ? "o "
                               : what == "reduce_scatter" ? "r "
                                                          : "p ") +
                              unit;
      return what == "all_gather" ? "" : ">" + events[i.event.value];
    }
    case InstructionKind::WaitEvent: return stream + "<-" + events[i.event.value];
    case InstructionKind::Alloc:
    case InstructionKind::Free: {
      const std::string sign = i.kind == InstructionKind::Alloc ? stream + ":+" : "-";
      if (i.buffer.what == BufferWhat::AgBuffer) return sign + buffer("AGb");
      if (i.buffer.what == BufferWhat::RsInput) return sign + buffer("rsin");
      if (i.buffer.what == BufferWhat::RsOutput && i.kind == InstructionKind::Alloc) return sign + buffer("rsout");
      return i.buffer.what == BufferWhat::Grad ? "-grad " + plan.param_names[i.buffer.param.index()] : "";
    }
    case InstructionKind::Resize: return (i.bytes > 0 ? "+full " : "-full ") + plan.param_names[i.buffer.param.index()];
    case InstructionKind::AllGather: return stream + ":AG " + unit;
    case InstructionKind::ReduceScatter: return stream + ":RS " + unit;
    case InstructionKind::CopyIn:
    case InstructionKind::CopyOut: return std::string(plan.name_of(i.name));
    case InstructionKind::Forward: return "D:" + plan.segments[i.segment.index()].label;
    case InstructionKind::Backward: return "D:" + plan.segments[i.segment.index()].label + "'";
    default: return "";
  }
}

std::vector<std::string> tokens(const Plan& plan, const PlanIteration& iteration) {
  std::vector<std::string> out;
  std::map<std::int32_t, std::string> events;
  for (const Instruction& i : iteration.instructions) {
    std::string text = token(plan, i, events);
    if (!text.empty()) out.push_back(std::move(text));
  }
  return out;
}

PlanCounts counts(const Job& job) {
  const Result<Plan> plan = plan_chain(job);
  return count_instructions(plan->iterations.back());
}

/// Most buffers of one kind alive at once within a span of phases.
int most_alive(const PlanIteration& iteration, BufferWhat what, bool backward) {
  int live = 0, most = 0;
  bool in_backward = false;
  for (const Instruction& i : iteration.instructions) {
    in_backward = in_backward || i.phase == Phase::PreBackward || i.phase == Phase::Backward;
    if (i.buffer.what != what) continue;
    if (i.kind == InstructionKind::Alloc) ++live;
    if (i.kind == InstructionKind::Free) --live;
    if (in_backward == backward) most = std::max(most, live);
  }
  return most;
}

TEST(Fsdp2Schedule, IsSection19_10TokenByToken) {
  const Result<Plan> plan = plan_chain(chain_job());
  ASSERT_TRUE(plan) << to_text(plan.error());
  const std::vector<std::string> got = tokens(*plan, plan->iterations.back());
  const std::vector<std::string> forward{"C<-D",
                                         "A<-D",
                                         "C:+AGb(R)",
                                         "fsdp.all_gather_copy_in",
                                         "A<-C",
                                         "A:AG R",
                                         "D<-AG R",
                                         "+full embed.weight",
                                         "+full head.weight",
                                         "fsdp.split_with_sizes_copy",
                                         ">o R",
                                         "D:embed",
                                         "C:+AGb(b0)",
                                         "fsdp.all_gather_copy_in",
                                         "A<-C",
                                         "A:AG b0",
                                         "C<-o R",
                                         "A<-o R",
                                         "D<-AG b0",
                                         "+full b0.weight",
                                         "+full b0.bias",
                                         "fsdp.split_with_sizes_copy",
                                         ">o b0",
                                         "-AGb(R)",
                                         "D:b0",
                                         "-full b0.weight",
                                         "-full b0.bias",
                                         "C:+AGb(b1)",
                                         "fsdp.all_gather_copy_in",
                                         "A<-C",
                                         "A:AG b1",
                                         "C<-o b0",
                                         "A<-o b0",
                                         "D<-AG b1",
                                         "+full b1.weight",
                                         "+full b1.bias",
                                         "fsdp.split_with_sizes_copy",
                                         ">o b1",
                                         "-AGb(b0)",
                                         "D:b1",
                                         "-full b1.weight",
                                         "-full b1.bias",
                                         "C:+AGb(b2)",
                                         "fsdp.all_gather_copy_in",
                                         "A<-C",
                                         "A:AG b2",
                                         "C<-o b1",
                                         "A<-o b1",
                                         "D<-AG b2",
                                         "+full b2.weight",
                                         "+full b2.bias",
                                         "fsdp.split_with_sizes_copy",
                                         ">o b2",
                                         "-AGb(b1)",
                                         "D:b2",
                                         "-full b2.weight",
                                         "-full b2.bias",
                                         "D:head",
                                         "C<-o b2",
                                         "A<-o b2",
                                         "-AGb(b2)"};
  const std::vector<std::string> backward_b2{"C:+AGb(b2)",
                                             "fsdp.all_gather_copy_in",
                                             "A<-C",
                                             "A:AG b2",
                                             "D:head'",
                                             "D<-AG b2",
                                             "+full b2.weight",
                                             "+full b2.bias",
                                             "fsdp.split_with_sizes_copy",
                                             ">o b2",
                                             "C<-o b2",
                                             "A<-o b2",
                                             "-AGb(b2)",
                                             "C:+AGb(b1)",
                                             "fsdp.all_gather_copy_in",
                                             "A<-C",
                                             "A:AG b1",
                                             "D:b2'",
                                             "-full b2.weight",
                                             "-full b2.bias",
                                             "D:+rsin(b2)",
                                             "fsdp.chunk_cat",
                                             "-grad b2.weight",
                                             "S<-D",
                                             "S:+rsout(b2)",
                                             "S:RS b2",
                                             ">r b2",
                                             ">p b2",
                                             "-grad b2.bias"};
  const std::vector<std::string> last{"D:embed'",
                                      "-full embed.weight",
                                      "-full head.weight",
                                      "D<-r b0",
                                      "-rsin(b0)",
                                      "D:+rsin(R)",
                                      "fsdp.chunk_cat",
                                      "-grad embed.weight",
                                      "S<-D",
                                      "S:+rsout(R)",
                                      "S:RS R",
                                      ">r R",
                                      ">p R",
                                      "-grad head.weight",
                                      "D<-p R",
                                      "D<-p b0",
                                      "D<-p b1",
                                      "D<-p b2",
                                      "D<-r R",
                                      "-rsin(R)"};
  ASSERT_GE(got.size(), forward.size() + backward_b2.size() + last.size());
  const auto begin = got.begin();
  const auto middle = begin + static_cast<std::ptrdiff_t>(forward.size());
  EXPECT_EQ(std::vector<std::string>(begin, middle), forward);
  EXPECT_EQ(std::vector<std::string>(middle, middle + static_cast<std::ptrdiff_t>(backward_b2.size())), backward_b2);
  EXPECT_EQ(std::vector<std::string>(got.end() - static_cast<std::ptrdiff_t>(last.size()), got.end()), last);
}

TEST(Fsdp2Schedule, EveryIterationIsAlike) {  // 19.10: backward uses this pass's own order
  const Result<Plan> plan = plan_chain(chain_job());
  EXPECT_TRUE(plan->steady);
  EXPECT_EQ(plan->iterations.size(), 3U);  // the first zeroes nothing
}

TEST(Fsdp2Schedule, CountsAreThoseOfTable19_11) {  // V3
  EXPECT_EQ(counts(chain_job()), (PlanCounts{7, 4, 0, 0, 0, 0, 0}));
  Job alone = chain_job(1);
  EXPECT_EQ(counts(alone), (PlanCounts{0, 0, 0, 0, 0, 0, 0}));  // F2-4
  Job hybrid = chain_job(4);
  hybrid.fsdp.strategy = Strategy::HybridShard;
  hybrid.cluster.shard_group = 2;
  EXPECT_EQ(counts(hybrid), (PlanCounts{7, 4, 4, 0, 0, 0, 0}));  // F2-20
}

TEST(Fsdp2Schedule, KeepsTwoGatherBuffersInForwardAndOneInBackward) {  // V11, F2-8
  const Result<Plan> plan = plan_chain(chain_job());
  EXPECT_EQ(most_alive(plan->iterations.back(), BufferWhat::AgBuffer, false), 2);
  EXPECT_EQ(most_alive(plan->iterations.back(), BufferWhat::AgBuffer, true), 1);
  EXPECT_EQ(most_alive(plan->iterations.back(), BufferWhat::RsInput, true), 1);
}

TEST(Fsdp2Schedule, ExplicitListsOfTwoKeepThreeAndTwoBuffers) {  // F2-16
  Job job = chain_job();
  job.fsdp.prefetch.forward_depth = 2;
  job.fsdp.prefetch.backward_depth = 2;
  const Result<Plan> plan = plan_chain(job);
  EXPECT_EQ(most_alive(plan->iterations.back(), BufferWhat::AgBuffer, false), 3);
  EXPECT_EQ(most_alive(plan->iterations.back(), BufferWhat::AgBuffer, true), 2);
  EXPECT_EQ(count_instructions(plan->iterations.back()).all_gather, 7);
}

/// Units in the order in which backward enters them.
std::vector<std::string> entered(const Job& job) {
  const Result<Plan> plan = plan_chain(job);
  if (!plan) return {plan.error().message};
  std::vector<std::string> units;
  for (const Instruction& i : plan->iterations.back().instructions)
    if (plan->name_of(i.name) == "begin pre_backward") units.push_back(plan->units[i.unit.index()].name);
  return units;
}

TEST(Fsdp2Schedule, AHookOnACastOutputFiresBeforeThatOfWhatWasCast) {  // F2-14: the head's output is the root's
  Job job = chain_job();
  job.fsdp.wrap.units = {{"b0"}, {"b1"}, {"b2"}, {"head"}};
  job.fsdp.mixed_precision.param = DType::BFloat16;
  EXPECT_THAT(entered(job), ElementsAre("head", "", "b2", "b1", "b0"));
  job.fsdp.mixed_precision.output = DType::Float32;
  EXPECT_THAT(entered(job), ElementsAre("", "head", "b2", "b1", "b0"));
  job.fsdp.mixed_precision.output = DType::BFloat16;
  EXPECT_THAT(entered(job), ElementsAre("head", "", "b2", "b1", "b0")) << "nothing is cast";
}

TEST(Fsdp2Schedule, AMatrixAndItsBiasOfTwoDtypesAreRefused) {  // F2-27: an ignored parameter keeps its own
  Job job = chain_job();
  job.fsdp.mixed_precision.param = DType::BFloat16;
  job.fsdp.ignored = {"b1.weight"};
  const Result<Plan> plan = plan_chain(job);
  ASSERT_FALSE(plan.has_value());
  EXPECT_THAT(plan.error().message, HasSubstr("operands of two dtypes"));
  EXPECT_EQ(plan.error().place, "module \"b1\"");
  job.fsdp.mixed_precision = MixedPrecision::none();
  EXPECT_TRUE(plan_chain(job).has_value());
}

TEST(Fsdp2Schedule, NeverBlocksTheHostWithoutOffload) {  // F2-10
  const Result<Plan> plan = plan_chain(chain_job());
  for (const Instruction& i : plan->iterations.back().instructions) {
    EXPECT_NE(i.kind, InstructionKind::HostWait);
    EXPECT_NE(i.kind, InstructionKind::NoteUse);
  }
}

TEST(Fsdp2Schedule, OffloadWaitsOncePerParameterAndOnlyInTheFinalCallback) {  // F2-26
  Job job = chain_job();
  job.fsdp.cpu_offload = true;
  const Result<Plan> plan = plan_chain(job);
  const PlanIteration& iteration = plan->iterations.back();
  EXPECT_EQ(count_instructions(iteration).h2d, 8 + 6);
  EXPECT_EQ(count_instructions(iteration).d2h, 8);
  int waits = 0;
  for (const Instruction& i : iteration.instructions) {
    if (i.kind != InstructionKind::HostWait) continue;
    ++waits;
    EXPECT_EQ(i.phase, Phase::Final);
  }
  EXPECT_EQ(waits, 8);
}

TEST(Fsdp2Schedule, KeepingParametersSavesTheBackwardGathers) {  // F2-12
  Job job = chain_job();
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::False, 0};
  EXPECT_EQ(counts(job).all_gather, 4);
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::True, 0};
  UnitOverride root;
  root.units = {""};
  root.reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::True, 0};
  job.fsdp.overrides = {root};
  EXPECT_EQ(counts(job).all_gather, 8);
}

TEST(Fsdp2Schedule, PartialReshardGathersFromTheSmallerMesh) {  // F2-13
  Job job = chain_job(4);
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::GroupSize, 2};
  const Result<Plan> plan = plan_chain(job);
  std::vector<int> groups;
  for (const Instruction& i : plan->iterations.back().instructions) {
    if (i.kind == InstructionKind::AllGather) groups.push_back(plan->group_size(i));
  }
  EXPECT_THAT(groups, ElementsAre(4, 4, 4, 4, 2, 2, 2));
  // Every unit makes a group of its own for that, when its backward first gathers.
  const auto own = [](const char* unit) {
    return PlanCommunicator{std::string("post_forward:") + unit, "shard", {0, 1}};
  };
  EXPECT_THAT(plan->communicators,
              ElementsAre(PlanCommunicator{"world", "shard", {0, 1, 2, 3}}, own("b2"), own("b1"), own("b0")));
}

TEST(Fsdp2Schedule, AnUnusedPartialReshardIsReplacedByTheNext) {  // F2-13: a frozen unit that no backward reaches
  Job job = chain_job(4);
  job.fsdp.reshard_after_forward = {ReshardAfterForward::Kind::GroupSize, 2};
  job.fsdp.frozen = {"embed", "b0"};
  job.train.script.assign(5, {"fwd", "bwd", "step", "zero"});
  const Plan plan = plan_chain(job).value();
  std::map<std::pair<ParamId, std::int32_t>, int> alive;
  std::map<ParamId, int> most;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (i.buffer.what != BufferWhat::PostForwardShard) continue;
      int& here = alive[{i.buffer.param, i.arg}];
      if (i.kind == InstructionKind::Alloc) EXPECT_EQ(++here, 1) << "an instance that is there already";
      if (i.kind == InstructionKind::Free) EXPECT_EQ(--here, 0) << "an instance that is not there";
      int& all = most[i.buffer.param];
      all = std::max(all, alive[{i.buffer.param, 0}] + alive[{i.buffer.param, 1}]);
    }
  }
  EXPECT_FALSE(most.empty());
  for (const auto& [param, count] : most) EXPECT_LE(count, 2) << param.value;
}

TEST(Fsdp2Schedule, HeldGradientsAreReducedOnce) {  // F2-22
  Job job = chain_job();
  job.train.micro_batches = 3;
  EXPECT_EQ(counts(job).reduce_scatter, 12);
  job.train.no_sync = true;
  EXPECT_EQ(counts(job).reduce_scatter, 4);
}

TEST(Fsdp2Schedule, FrozenMiddleUnitReshardsAndReducesNothing) {  // F2-17
  Job job = chain_job();
  job.fsdp.frozen = {"b1"};
  EXPECT_EQ(counts(job).reduce_scatter, 3);
}

TEST(Fsdp2Schedule, NamesTheTrapsThatTheScriptDecides) {  // section 24: 7 and 10
  Job job = chain_job();
  job.train.script = {{"nograd_fwd"}, {"fwd", "bwd", "step", "zero"}};
  ASSERT_EQ(plan_chain(job)->traps.back().number, 7);
  const Result<Plan> evaluated = plan_chain(job);
  EXPECT_EQ(count_instructions(evaluated->iterations[1]).all_gather, 6);  // the root was still gathered
  Job low = chain_job();
  low.fsdp.mixed_precision.reduce = DType::BFloat16;
  low.train.micro_batches = 2;
  low.train.no_sync = true;
  ASSERT_EQ(plan_chain(low)->traps.back().number, 10);
}

TEST(Fsdp2Schedule, OutputsDieWithTheirIteration) {
  Job job = chain_job();
  job.train.script = {{"fwd"}, {"fwd", "fwd", "bwd_all", "step", "zero"}};
  const Plan plan = plan_chain(job).value();
  // The forward without a backward takes no part in the next iteration's: every unit reduces once.
  const auto& made = plan.iterations[1].instructions;
  EXPECT_EQ(std::count_if(made.begin(), made.end(),
                          [](const Instruction& i) { return i.kind == InstructionKind::ReduceScatter; }),
            4);
}

TEST(Fsdp2Schedule, TheReducedOutputLivesUntilItsAllReduceWasWaitedFor) {  // F2-19, F2-20
  const auto freed_by_zero = [](bool last) {
    Job job = chain_job(4);
    job.cluster.shard_group = 2;
    job.fsdp.strategy = Strategy::HybridShard;
    job.train.script = {
        {std::string("call::set_is_last_backward:") + (last ? "true" : "false"), "fwd", "bwd", "step", "zero"}};
    const Plan plan = plan_chain(job).value();
    int freed = 0;
    for (const Instruction& i : plan.iterations[0].instructions) {
      freed += i.kind == InstructionKind::Free && i.buffer.what == BufferWhat::RsOutput && i.phase == Phase::Optimizer;
    }
    return freed;
  };
  EXPECT_EQ(freed_by_zero(true), 4);
  EXPECT_EQ(freed_by_zero(false), 0);
}

TEST(Fsdp2Schedule, WhatAUnitSetsInItsOwnContextBeforeTheFirstForwardIsLost) {  // F2-3
  const auto waits_for_the_user = [](const char* unit) {
    Job job = chain_job();
    job.train.script = {{std::string("call:") + unit + ":set_post_optim_event", "fwd", "bwd", "step", "zero"}};
    const Plan plan = plan_chain(job).value();
    const auto& made = plan.iterations[0].instructions;
    const EventId user = std::find_if(made.begin(), made.end(), [](const Instruction& i) {
                           return i.kind == InstructionKind::RecordEvent;
                         })->event;
    return std::count_if(made.begin(), made.end(),
                         [&](const Instruction& i) { return i.kind == InstructionKind::WaitEvent && i.event == user; });
  };
  EXPECT_EQ(waits_for_the_user(""), 2);
  EXPECT_EQ(waits_for_the_user("b1"), 0);
}

TEST(Fsdp2Schedule, UnknownMethodsAreRefused) {  // F2-23
  Job job = chain_job();
  job.train.script = {{"call:b0:set_foo:true", "fwd", "bwd"}};
  EXPECT_THAT(plan_chain(job).error().message, HasSubstr("no such method"));
  job.train.script = {{"call:b9:unshard", "fwd", "bwd"}};
  EXPECT_EQ(plan_chain(job).error().code, ErrorCode::NotFound);
  job.train.script = {{"bwd"}};
  EXPECT_FALSE(plan_chain(job));
}

TEST(Fsdp2Schedule, CheckpointingAddsNoGather) {  // F2-15
  Model model = chain_model();
  for (CallStep& step : model.calls[0].steps) step.checkpoint = CheckpointKind::NonReentrant;
  const Result<Plan> plan = plan_chain(chain_job(), model);
  ASSERT_TRUE(plan) << to_text(plan.error());
  EXPECT_EQ(count_instructions(plan->iterations.back()).all_gather, 7);
  int recomputed = 0;
  for (const Instruction& i : plan->iterations.back().instructions) {
    if (i.kind == InstructionKind::Recompute) ++recomputed;
  }
  EXPECT_EQ(recomputed, 5);
}

TEST(Fsdp2Schedule, AReentrantCheckpointAroundAUnitHooksItsSecondRun) {  // F2-15
  Model model = chain_model();
  bool first = true;  // without a checkpoint: what comes into the others requires a gradient
  for (CallStep& step : model.calls[0].steps)
    step.checkpoint = std::exchange(first, false) ? CheckpointKind::None : CheckpointKind::Reentrant;
  const Result<Plan> plan = plan_chain(chain_job(), model);
  ASSERT_TRUE(plan) << to_text(plan.error());
  EXPECT_EQ(count_instructions(plan->iterations.back()).all_gather, 7) << "what it runs with again, its backward has";
  std::vector<std::string> order;
  for (const Instruction& i : plan->iterations.back().instructions) {
    const bool enters = i.kind == InstructionKind::Mark && plan->name_of(i.name) == "begin pre_backward";
    if (!i.unit.valid() || (!enters && i.kind != InstructionKind::Recompute)) continue;
    const std::string& unit = plan->units[i.unit.index()].name;
    if (!unit.empty())
      order.push_back((enters ? "enter " : "again ") + unit);  // a region of the root's has no unit in it
  }
  std::int64_t again = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (!order[k].starts_with("again ")) continue;
    ++again;
    ASSERT_LT(k + 1, order.size());
    EXPECT_EQ(order[k + 1], "enter " + order[k].substr(6)) << "its forward runs first, then its backward begins";
  }
  EXPECT_GT(again, 2);
}

/// What a gradient scaler adds, in order: "kind stream".
std::vector<std::string> scaler_calls(const Plan& plan) {
  std::vector<std::string> calls;
  for (const Instruction& i : plan.iterations.back().instructions) {
    const bool reduces = i.kind == InstructionKind::AllReduce && i.phase == Phase::Clip && i.numel == 1;
    const bool reads = i.kind == InstructionKind::D2h && i.blocking;
    const bool own = i.kind == InstructionKind::ScaleLoss || i.kind == InstructionKind::Unscale ||
                     i.kind == InstructionKind::UpdateScale || i.kind == InstructionKind::OptimizerStep;
    if (reduces || reads || own) {
      calls.push_back(std::string(instruction_kind_name(i.kind)) + " " + std::string(stream_name(i.stream)));
    }
  }
  return calls;
}

TEST(Fsdp2Schedule, AGradientScalerReadsWhatItFoundUnlessTheStepIsFused) {
  Job job = chain_job();
  job.train.grad_scaler.enabled = true;
  EXPECT_THAT(scaler_calls(plan_chain(job).value()),
              ElementsAre("scale_loss D", "unscale D", "all_reduce D", "d2h D", "optimizer_step D", "update_scale D"));
  job.train.optimizer.impl = OptimizerImpl::Fused;
  EXPECT_THAT(scaler_calls(plan_chain(job).value()),
              ElementsAre("scale_loss D", "unscale D", "all_reduce D", "optimizer_step D", "update_scale D"));
  job.fsdp.cpu_offload = true;
  for (const OptimizerImpl impl : {OptimizerImpl::Fused, OptimizerImpl::Foreach}) {
    job.train.optimizer.impl = impl;
    EXPECT_THAT(scaler_calls(plan_chain(job).value()),
                ElementsAre("scale_loss D", "unscale host", "all_reduce D", "optimizer_step D", "update_scale D"))
        << "what is found on the host is there";
  }
  job.fsdp.cpu_offload = false;
  job.train.optimizer.impl = OptimizerImpl::Fused;
  job.fsdp.runtime = Runtime::None;
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  EXPECT_THAT(scaler_calls(plan_chain(job).value()),
              ElementsAre("scale_loss D", "unscale D", "optimizer_step D", "update_scale D"));
  job.train.script = {{"fwd", "bwd", "unscale", "unscale", "step"}};
  EXPECT_THAT(plan_chain(job).error().message, HasSubstr("already been called"));
}

/// reduce_output.copy_(reduce_scatter_input / factor): a third tensor of the unit's size, while it is copied.
TEST(Fsdp2, AUnitOfOneRankDividesIntoATensorOfItsOwn) {
  Job job = chain_job(1);
  job.train.script = {{"call:b1:set_gradient_divide_factor:2", "fwd", "bwd", "step"}};
  const Result<Plan> plan = plan_chain(job);
  ASSERT_TRUE(plan) << plan.error().message;
  std::map<std::string, Bytes> made;
  for (const Instruction& i : plan->iterations.back().instructions) {
    if (i.buffer.what == BufferWhat::GradCast && i.kind == InstructionKind::Alloc)
      made[plan->units[i.unit.index()].name] += i.bytes;
  }
  EXPECT_EQ(made, (std::map<std::string, Bytes>{{"b1", (6 * 5 + 6) * 4}}));
}

TEST(Unsharded, OneRankHasNoCommunicationAndManyReduceEveryBucket) {
  Job job = chain_job(1);
  job.fsdp.runtime = Runtime::None;
  job.fsdp.wrap.policy = WrapPolicyKind::None;
  EXPECT_EQ(counts(job), PlanCounts{});
  job.cluster.world_size = 4;
  const Result<Plan> plan = plan_chain(job);
  EXPECT_EQ(count_instructions(plan->iterations.back()).all_reduce, 1);  // 0.6 KB: one bucket
  EXPECT_TRUE(plan->steady);
  EXPECT_EQ(plan->runtime, Runtime::None);
}

}  // namespace
}  // namespace foreshard
