#include "core/job/job_file.h"
#include "core/job/model_defaults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>

#include "core/job/job_keys.h"
#include "core/job/key_meaning.h"
#include "core/job/located_error.h"
#include "core/job/not_built.h"

namespace foreshard {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

const std::vector<std::string> kNoSets;

std::string read_data(const std::string& name) {
  std::ifstream stream(name, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

Result<LoadedJob> parse(const std::string& text, const std::vector<std::string>& sets = {}) {
  return parse_job("model.source = \"m.json\"\n" + text, "job.toml", sets);
}

Error error_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  const Result<LoadedJob> loaded = parse(text, sets);
  EXPECT_FALSE(loaded.has_value()) << text.substr(0, 200);
  return loaded ? Error{} : loaded.error();
}

const EffectiveValue& value_of(const LoadedJob& loaded, const std::string& key) {
  return *std::find_if(loaded.values.begin(), loaded.values.end(), [&](const auto& v) { return v.key == key; });
}

TEST(JobFile, TakesEveryDefaultFromTheJob) {
  const LoadedJob loaded = parse("").value();
  Job expected;
  expected.model.source = "m.json";
  EXPECT_EQ(loaded.job, expected);
  EXPECT_EQ(value_of(loaded, "model.source").origin, "job.toml:1");
  EXPECT_EQ(value_of(loaded, "model.batch"), (EffectiveValue{"model.batch", "1", "default"}));
  EXPECT_EQ(loaded.values.size(), job_keys().size());
  EXPECT_TRUE(loaded.warnings.empty());
}

TEST(JobFile, PartsOfOptimizersNameTheirParameters) {
  const auto read = [](const std::string& parts) {
    return parse_job("[model]\nsource = \"m\"\n[train.optimizer]\nparts = " + parts + "\n", "", kNoSets);
  };
  const Job job =
      read("[{params = [\"a.*\"], name = \"sgd\", momentum = 0.9}, {params = [\"b\"], name = \"none\"}]")->job;
  ASSERT_EQ(job.train.optimizer_parts.size(), 2U);
  EXPECT_EQ(job.train.optimizer_parts[0].options.name, OptimizerKind::Sgd);
  EXPECT_TRUE(job.train.optimizer_parts[0].steps);
  EXPECT_FALSE(job.train.optimizer_parts[1].steps);
  EXPECT_EQ(read("[{name = \"sgd\"}]").error().code, ErrorCode::MissingKey);
  EXPECT_EQ(read("[{params = [\"a\"], rate = 1.0}]").error().code, ErrorCode::UnknownKey);
}

TEST(JobFile, PartsStandBesideNoOptimizerInBackwardAndNoMuon) {
  Job job;
  job.train.optimizer_parts = {{{"a.*"}, true, {.name = OptimizerKind::Sgd}}};
  EXPECT_TRUE(check_built(job));
  const auto place = [](const Job& asked) {
    const Result<void> checked = check_built(asked);
    return checked ? std::string("none") : checked.error().place;
  };
  for (const bool part : {false, true}) {
    Job backward = job, muon = job, eight = job;
    (part ? backward.train.optimizer_parts[0].options : backward.train.optimizer).impl = OptimizerImpl::InBackward;
    (part ? muon.train.optimizer_parts[0].options : muon.train.optimizer).name = OptimizerKind::Muon;
    (part ? eight.train.optimizer_parts[0].options : eight.train.optimizer).name = OptimizerKind::AdamW8bit;
    eight.fsdp.cpu_offload = true;
    EXPECT_EQ(place(backward), "train.optimizer.parts");
    EXPECT_EQ(place(muon), "train.optimizer.parts");
    EXPECT_EQ(place(eight), "train.optimizer.name");
    muon.train.optimizer_parts[0].steps = false;  // its options are nobody's
    EXPECT_EQ(place(muon), part ? "none" : "train.optimizer.parts");
  }
}

TEST(JobFile, ReadsEveryTableOfTheFormat) {
  const LoadedJob loaded = load_job(FORESHARD_TEST_DATA "/plan_io/full.toml", kNoSets).value();
  const Job& job = loaded.job;
  const std::string folder = FORESHARD_TEST_DATA "/plan_io/";
  EXPECT_EQ(job.model.source, folder + "toy/config.json");
  EXPECT_EQ(job.model.seq, 512);
  EXPECT_TRUE(job.model.seq_given);
  EXPECT_EQ(job.model.dtype, std::nullopt);
  EXPECT_EQ(job.fsdp.strategy, Strategy::HybridShard);
  ASSERT_EQ(job.fsdp.overrides.size(), 2U);
  const UnitOverride& first = job.fsdp.overrides[0];
  EXPECT_EQ(first.units, std::vector<std::string>{"layers.0*"});
  EXPECT_EQ(first.reshard_after_forward, (ReshardAfterForward{ReshardAfterForward::Kind::GroupSize, 2}));
  ASSERT_TRUE(first.mixed_precision.has_value());
  EXPECT_EQ(first.mixed_precision->param, DType::Float16);
  EXPECT_EQ(first.mixed_precision->reduce, std::nullopt) << "fields not given are those of fsdp.mixed_precision";
  EXPECT_EQ(first.mixed_precision->cast_forward_inputs, false);
  EXPECT_EQ(first.shard_dim.at("*.weight"), 1);
  EXPECT_EQ(job.fsdp.overrides[1].mixed_precision, MixedPrecision::none());
  EXPECT_EQ(job.fsdp.reshard_after_forward.kind, ReshardAfterForward::Kind::False);
  EXPECT_EQ(job.fsdp.prefetch.forward.at("layers.0"), (std::vector<std::string>{"layers.1", "layers.2"}));
  EXPECT_EQ(job.fsdp.allow_traps, (std::vector<std::int64_t>{9, 12}));
  EXPECT_EQ(job.fsdp.wrap.units, (std::vector<std::vector<std::string>>{{"layers.*"}, {"norm", "head"}}));
  EXPECT_EQ(job.fsdp.mixed_precision.param, DType::BFloat16);
  EXPECT_TRUE(job.checkpointing.outside);
  EXPECT_EQ(job.train.optimizer.name, OptimizerKind::Sgd);
  EXPECT_EQ(job.train.optimizer.lr, 1.0);
  EXPECT_EQ(job.train.optimizer.impl, OptimizerImpl::Fused);
  EXPECT_EQ(job.train.clip_grad_norm, 0.0);
  EXPECT_EQ(job.train.data.file, FORESHARD_TEST_DATA "/ids.bin");
  EXPECT_EQ(job.train.checkpoint.dir, folder + "checkpoints");
  EXPECT_EQ(job.train.script, (std::vector<std::vector<std::string>>{{"zero", "fwd", "bwd", "step"}, {"fwd"}}));
  EXPECT_EQ(job.cluster.profile, folder + "mine.toml");
  EXPECT_EQ(job.cluster.memory, 159 * kGiB / 2);
  EXPECT_TRUE(job.allocator.expandable_segments);
}

TEST(JobFile, RoundTripsThroughItsText) {
  const Job job = load_job(FORESHARD_TEST_DATA "/plan_io/full.toml", kNoSets).value().job;
  const std::string text = job_to_toml(job);
  const Result<LoadedJob> again = parse_job(text, "", kNoSets);
  ASSERT_TRUE(again.has_value()) << to_text(again.error()) << "\n" << text;
  EXPECT_EQ(again->job, job) << text;
  EXPECT_EQ(job_to_toml(again->job), text);
}

TEST(JobFile, TakesTorchsElementwiseOptimizersWithTheirArguments) {
  const std::map<std::string, OptimizerKind> kinds = {{"adagrad", OptimizerKind::Adagrad},
                                                      {"rmsprop", OptimizerKind::RMSprop},
                                                      {"nadam", OptimizerKind::NAdam},
                                                      {"radam", OptimizerKind::RAdam},
                                                      {"adamax", OptimizerKind::Adamax}};
  for (const auto& [name, kind] : kinds) {
    const auto read = parse("train.optimizer = {name = \"" + name +
                            "\", alpha = 0.9, centered = true, decoupled_weight_decay = true}");
    ASSERT_TRUE(read) << to_text(read.error());
    const OptimizerOptions& optimizer = read->job.train.optimizer;
    EXPECT_EQ(optimizer.name, kind);
    EXPECT_EQ(optimizer.alpha, 0.9);
    EXPECT_TRUE(optimizer.centered && optimizer.decoupled_weight_decay);
    const bool root = kind == OptimizerKind::RMSprop;
    EXPECT_EQ(has_meaning("train.optimizer.alpha", read->job), root) << name;
    EXPECT_EQ(has_meaning("train.optimizer.momentum", read->job), root) << name;
    EXPECT_EQ(has_meaning("train.optimizer.betas", read->job), !root && kind != OptimizerKind::Adagrad) << name;
    const bool may = kind == OptimizerKind::NAdam || kind == OptimizerKind::RAdam;
    EXPECT_EQ(has_meaning("train.optimizer.decoupled_weight_decay", read->job), may) << name;
    EXPECT_EQ(parse_job(job_to_toml(read->job), "", kNoSets)->job, read->job);
    Job job = read->job;
    EXPECT_TRUE(check_built(job));
    job.train.optimizer.impl = OptimizerImpl::InBackward;
    const Result<void> backward = check_built(job);
    ASSERT_FALSE(backward) << name;
    EXPECT_EQ(backward.error().expected, "adamw or sgd in backward");
  }
  const auto no = parse("train.optimizer.name = \"adagrda\"");
  ASSERT_FALSE(no);
  EXPECT_THAT(to_text(no.error()), ::testing::HasSubstr("adagrad"));
}

TEST(JobFile, RoundTripsRandomJobs) {
  std::mt19937 random(7);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const std::vector<std::string> texts{"", "a\"b\\c", "layers.*", "tab\tnew\nline", "\xc3\xa9t\xc3\xa9", "\x01"};
  for (int round = 0; round < 300; ++round) {
    Job job;
    job.model.source = "m" + texts[static_cast<std::size_t>(pick(6))];
    job.model.seq_given = pick(2) == 1;
    if (job.model.seq_given) job.model.seq = 1 + pick(10000);
    if (pick(3) == 0) job.model.dtype.reset();
    job.fsdp.runtime = pick(2) ? Runtime::Fsdp1 : Runtime::None;
    job.fsdp.strategy = static_cast<Strategy>(pick(5));
    job.fsdp.backward_prefetch = static_cast<BackwardPrefetch>(pick(3));
    job.fsdp.full_precision_in_eval = pick(2) == 1;
    for (int i = pick(3); i > 0; --i) {
      UnitOverride& o = job.fsdp.overrides.emplace_back();
      o.units = {texts[static_cast<std::size_t>(pick(6))]};
      if (pick(2)) o.strategy = static_cast<Strategy>(pick(5));
      if (pick(2)) o.reshard_after_forward = ReshardAfterForward{ReshardAfterForward::Kind::GroupSize, 1 + pick(5)};
      if (pick(2)) o.mixed_precision = MixedPrecision::none();
      if (pick(2)) o.backward_prefetch = static_cast<BackwardPrefetch>(pick(3));
      if (pick(2)) o.shard_dim[texts[static_cast<std::size_t>(pick(6))]] = pick(3);
    }
    if (pick(2)) job.fsdp.prefetch.forward["layers.0"] = {texts[2], texts[1]};
    job.fsdp.wrap.policy = static_cast<WrapPolicyKind>(pick(7));
    if (pick(2)) job.fsdp.wrap.units = {{"a"}, {"b", "c"}};
    job.fsdp.mixed_precision.cast_forward_inputs = pick(2) ? std::optional<bool>(pick(2) == 1) : std::nullopt;
    job.train.optimizer.amsgrad = pick(2) == 1;
    for (int i = pick(3); i > 0; --i) {
      OptimizerPart& part = job.train.optimizer_parts.emplace_back();
      part.params = {texts[static_cast<std::size_t>(pick(6))], "a"};
      part.options.name = static_cast<OptimizerKind>(pick(10));
      if (part.options.name == OptimizerKind::Muon) part.options.name = OptimizerKind::Sgd;  // is no part
      part.options.impl = static_cast<OptimizerImpl>(pick(3));
      part.options.library = static_cast<OptimizerLibrary>(pick(3));
      if (part.options.library == OptimizerLibrary::Transformers) part.options.impl = OptimizerImpl::ForLoop;
      part.options.weight_decay = pick(3) * 0.05;
      part.options.momentum = pick(2) * 0.5;
      part.options.centered = pick(2) == 1;
      part.options.amsgrad = pick(2) == 1;
      part.options.decoupled_weight_decay = pick(2) == 1;
    }
    if (pick(2)) job.train.optimizer_parts.push_back({{texts[1], "b.*"}, false, {}});
    job.train.optimizer.lr = static_cast<double>(random()) / 1e13;
    job.train.optimizer.beta2 = 0.999;
    job.cluster.memory = static_cast<Bytes>(random());
    const std::string text = job_to_toml(job);
    const Result<LoadedJob> again = parse_job(text, "", kNoSets);
    ASSERT_TRUE(again.has_value()) << to_text(again.error()) << "\n" << text;
    ASSERT_EQ(again->job, job) << text;
  }
}

TEST(JobFile, OverridesWinAndSayWhereTheyCameFrom) {
  const JobOverrides overrides{{"model.batch=7", "fsdp.prefetch.forward_depth=2", "fsdp.strategy=FULL_SHARD",
                                "train.optimizer={name = \"sgd\", lr = 0.5}", "train.data.file=2024",
                                "cluster.memory=80GB", "fsdp.mixed_precision=none"},
                               {"model.batch=5", "model.loss=none"}};
  const LoadedJob loaded = parse_job("[model]\nsource = \"m\"\nbatch = 2\n", "d/job.toml", overrides).value();
  EXPECT_EQ(loaded.job.model.source, "d/m");
  EXPECT_EQ(loaded.job.model.batch, 7);
  EXPECT_EQ(value_of(loaded, "model.batch").origin, "--set");
  EXPECT_EQ(loaded.job.model.loss, "none");
  EXPECT_EQ(value_of(loaded, "model.loss").origin, "environment");
  EXPECT_EQ(value_of(loaded, "model.source").origin, "d/job.toml:2");
  EXPECT_EQ(loaded.job.fsdp.prefetch.forward_depth, 2);
  EXPECT_EQ(loaded.job.train.optimizer.lr, 0.5);
  EXPECT_EQ(loaded.job.train.optimizer.weight_decay, 0.1);
  EXPECT_EQ(loaded.job.train.data.file, "2024") << "relative to the working directory, and a text";
  EXPECT_EQ(loaded.job.cluster.memory, 80'000'000'000);
  EXPECT_EQ(value_of(loaded, "cluster.memory").value, "\"78125000KiB\"");
  EXPECT_EQ(loaded.job.fsdp.mixed_precision, MixedPrecision::none());
}

TEST(JobFile, AModelsWordsAreBelowAllOthers) {
  std::string asked;
  const auto words = [&](const std::string& source) {
    asked = source;
    return std::vector<std::string>{"model.batch=4", "train.micro_batches=2", "train.steps=9",
                                    "fsdp.mixed_precision.param=none"};
  };
  const JobOverrides overrides{{"train.micro_batches=3"}, {}};
  const std::string file = "[model]\nsource = \"m\"\nbatch = 2\n";
  const LoadedJob loaded = parse_job(file, "d/job.toml", overrides, words).value();
  EXPECT_EQ(asked, "d/m");
  EXPECT_EQ(loaded.job.model.batch, 2);
  EXPECT_EQ(loaded.job.train.micro_batches, 3);
  EXPECT_EQ(loaded.job.train.steps, 9);
  EXPECT_EQ(value_of(loaded, "train.steps").origin, "the model");
  EXPECT_FALSE(loaded.job.fsdp.mixed_precision.param);
  const auto wrong = parse_job(file, "d/job.toml", overrides,
                               [](const std::string&) { return std::vector<std::string>{"train.stops=9"}; });
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().place, "the model train.stops");
}

TEST(JobFile, SplitsTheEnvironmentVariable) {
  EXPECT_EQ(environment_overrides("a.b=1; c.d=x;;"), (std::vector<std::string>{"a.b=1", "c.d=x"}));
  EXPECT_TRUE(environment_overrides("").empty());
}

TEST(JobFile, TakesAModelInItsPlace) {
  const LoadedJob loaded = load_job(FORESHARD_TEST_DATA "/plan_io", kNoSets).value();
  EXPECT_EQ(loaded.job.model.source, FORESHARD_TEST_DATA "/plan_io");
  EXPECT_EQ(loaded.file, "");
  EXPECT_EQ(value_of(loaded, "model.source").origin, "command line");
}

TEST(JobFile, TakesOverridesBesideAModelInItsPlace) {
  EXPECT_EQ(load_job(FORESHARD_TEST_DATA "/plan_io", {"model.batch=9"}).value().job.model.batch, 9);
}

TEST(JobFile, NamesTheNearestKnownKey) {
  const Error error = error_of("[fsdp]\nstrategi = \"FULL_SHARD\"\n");
  EXPECT_EQ(error.code, ErrorCode::UnknownKey);
  EXPECT_EQ(error.file, "job.toml");
  EXPECT_EQ(error.place, "fsdp.strategi (line 3, column 1)");
  EXPECT_EQ(error.hint, "did you mean \"fsdp.strategy\"?");
  EXPECT_THAT(error_of("[fsdp]\nbatch = 1\n").hint, HasSubstr("\"model.batch\""));
  EXPECT_THAT(error_of("[clutser]\nrank = 1\n").hint, HasSubstr("\"cluster\""));
  EXPECT_THAT(error_of("fsdp.overrides = [{units = [\"a\"], stategy = \"NO_SHARD\"}]").hint, HasSubstr("\"strategy\""));
  EXPECT_THAT(error_of("", {"model.bach=2"}).place, HasSubstr("--set model.bach"));
  EXPECT_THAT(error_of("[mesh]\npipeline = 2\n").hint, HasSubstr("pipeline parallelism is not planned"));
}

TEST(JobFile, NamesWrongTypesWithTheirPlace) {
  const Error error = error_of("[train]\nsteps = \"4\"\n");
  EXPECT_EQ(error.code, ErrorCode::WrongType);
  EXPECT_EQ(error.place, "train.steps (line 3, column 1)");
  EXPECT_EQ(error.expected, "an integer from 1 to 1000000000000");
  EXPECT_EQ(error.got, "the text \"4\"");
  EXPECT_EQ(error_of("fsdp = 3").code, ErrorCode::WrongType);
  EXPECT_EQ(error_of("fsdp.wrap.units = [3]").code, ErrorCode::WrongType);
  EXPECT_EQ(error_of("fsdp.wrap.classes = \"Block\"").code, ErrorCode::WrongType);
  EXPECT_EQ(error_of("model.batch = 1979-05-27").code, ErrorCode::WrongType);
  EXPECT_EQ(error_of("fsdp.overrides = [{units = [\"a\"], shard_dim = 3}]").code, ErrorCode::WrongType);
}

TEST(JobFile, RefusesImpossibleNumbers) {
  const std::vector<std::pair<std::string, ErrorCode>> cases{
      {"model.batch = 0", ErrorCode::OutOfRange},
      {"model.batch = -3", ErrorCode::OutOfRange},
      {"model.seq = 1000000000000", ErrorCode::TooLarge},
      {"cluster.world_size = 9223372036854775807", ErrorCode::TooLarge},
      {"cluster.rank = 8", ErrorCode::OutOfRange},
      {"cluster.world_size = 12", ErrorCode::Inconsistent},
      {"cluster.shard_group = 3", ErrorCode::Inconsistent},
      {"train.optimizer.lr = nan", ErrorCode::OutOfRange},
      {"train.clip_grad_norm = -1", ErrorCode::OutOfRange},
      {"train.optimizer.betas = [0.9]", ErrorCode::WrongType},
      {"train.optimizer.betas = [0.9, 1.0]", ErrorCode::OutOfRange},
      {"train.micro_batches = 1000000", ErrorCode::TooLarge},
      {"cluster.memory = \"80 parsecs\"", ErrorCode::OutOfRange},
      {"fsdp.reshard_after_forward = 3", ErrorCode::Inconsistent},
      {"fsdp.allow_traps = [65]", ErrorCode::TooLarge},
      {"model.dtype = \"bf17\"", ErrorCode::OutOfRange},
      {"model.dtype = \"int8\"", ErrorCode::OutOfRange},
      {"fsdp.overrides = [{strategy = \"FULL_SHARD\"}]", ErrorCode::MissingKey},
      {"fsdp.strategy = \"SHARD_GRAD_OP\"", ErrorCode::Inconsistent},
      {"fsdp.overrides = [{units = [\"\"], strategy = \"NO_SHARD\"}]", ErrorCode::Inconsistent},
      {"fsdp.prefetch = {forward_depth = 1, backward = {a = [\"b\"]}}", ErrorCode::Inconsistent},
  };
  for (const auto& [text, code] : cases) {
    const Error error = error_of(text);
    EXPECT_EQ(error.code, code) << text << ": " << to_text(error);
    EXPECT_THAT(error.place, testing::Not(testing::IsEmpty())) << text;
    EXPECT_THAT(error.expected, testing::Not(testing::IsEmpty())) << text;
    EXPECT_THAT(error.got, testing::Not(testing::IsEmpty())) << text;
  }
}

TEST(JobFile, RefusesPartlyFilledNodes) {
  EXPECT_EQ(error_of("cluster.world_size = 12").place, "cluster.world_size (line 2, column 9)");
}

TEST(JobFile, AcceptsOnePartlyFilledNode) { EXPECT_TRUE(parse("cluster.world_size = 6").has_value()); }

TEST(JobFile, SuggestsWords) {
  EXPECT_THAT(error_of("fsdp.strategy = \"FULL_SHARDS\"").hint, HasSubstr("\"FULL_SHARD\""));
  EXPECT_THAT(error_of("model.attention = \"sdpa_flsh\"").expected, HasSubstr("sdpa_flash"));
}

TEST(JobFile, ShowsWhereSyntaxBreaks) {
  const Error error = error_of("[fsdp\nruntime = 1");
  EXPECT_EQ(error.code, ErrorCode::BadSyntax);
  EXPECT_THAT(error.place, HasSubstr("line 2"));
  EXPECT_EQ(error_of("[model]\nbatch = \xff\xfe").code, ErrorCode::BadSyntax);
  const Error twice = error_of("[train]\nsteps = 1\nsteps = 2");
  EXPECT_EQ(twice.message, "a key is given twice");
  EXPECT_THAT(twice.place, HasSubstr("line 4"));
}

TEST(JobFile, BoundsDepthAndSize) {
  EXPECT_EQ(error_of("x = " + std::string(100'000, '[')).code, ErrorCode::TooDeep);
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) dotted += ".a";
  EXPECT_EQ(error_of(dotted + " = 1").code, ErrorCode::TooDeep);
  EXPECT_EQ(error_of("# " + std::string(kMaxJobFileBytes, 'x')).code, ErrorCode::TooLarge);
  EXPECT_EQ(error_of(std::string(100'000, 'k') + " = 1").code, ErrorCode::UnknownKey);
}

TEST(JobFile, MissingModelAndMissingFileAreNamed) {
  EXPECT_EQ(parse_job("", "job.toml", kNoSets).error().code, ErrorCode::MissingKey);
  EXPECT_EQ(parse_job("", "job.toml", kNoSets).error().place, "model.source");
  const Error error = load_job("/nowhere/job.toml", kNoSets).error();
  EXPECT_EQ(error.code, ErrorCode::NotFound);
  EXPECT_EQ(error.file, "/nowhere/job.toml");
  EXPECT_EQ(error_of("", {"model.batch"}).code, ErrorCode::Usage);
}

TEST(JobFile, WarnsOfKeysOfTheOtherRuntime) {
  EXPECT_THAT(parse("fsdp.limit_all_gathers = true").value().warnings, Contains(HasSubstr("fsdp.limit_all_gathers")));
  const std::string fsdp1 = "fsdp.runtime = \"fsdp1\"\n";
  EXPECT_TRUE(parse(fsdp1 + "fsdp.limit_all_gathers = true").value().warnings.empty());
  EXPECT_THAT(parse(fsdp1 + "fsdp.prefetch.forward_depth = 2").value().warnings, Contains(HasSubstr("fsdp2 only")));
  EXPECT_THAT(parse("adapters.rank = 8").value().warnings, Contains(HasSubstr("adapters.kind")));
  EXPECT_TRUE(parse("adapters.kind = \"lora\"\nadapters.rank = 8").value().warnings.empty());
  EXPECT_THAT(parse("cluster.shard_group = 4").value().warnings, Contains(HasSubstr("hybrid")));
  EXPECT_THAT(parse("mesh.loss_parallel = false").value().warnings, Contains(HasSubstr("mesh.tensor above 1")));
  EXPECT_THAT(parse("mesh.plan = {\"a\" = \"colwise\"}").value().warnings, Contains(HasSubstr("mesh.plan")));
  EXPECT_TRUE(parse("mesh.tensor = 2\nmesh.loss_parallel = false").value().warnings.empty());
}

TEST(JobFile, SurvivesTruncationAndGarbage) {
  const std::string text = read_data(FORESHARD_TEST_DATA "/plan_io/full.toml");
  for (std::size_t length = 0; length < text.size(); length += 3) {
    const Result<LoadedJob> loaded = parse_job(text.substr(0, length), "job.toml", kNoSets);
    if (!loaded) {
      EXPECT_FALSE(loaded.error().message.empty());
    }
  }
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::string garbled = text;
    for (int i = 0; i < 5; ++i) garbled[random() % garbled.size()] = static_cast<char>(random() % 256);
    const Result<LoadedJob> loaded = parse_job(garbled, "job.toml", kNoSets);
    if (!loaded) {
      EXPECT_FALSE(loaded.error().message.empty());
    }
  }
}

TEST(JobKeys, ThePageHoldsTheTable) {
  const std::string page = read_data(FORESHARD_SOURCE_DIR "/docs/formats/job.md");
  EXPECT_THAT(page, HasSubstr(job_keys_markdown())) << "docs/formats/job.md, section keys, must be:\n"
                                                    << job_keys_markdown();
}

TEST(JobKeys, EveryWordOfAChoiceIsAccepted) {
  for (std::size_t i = 0; i < job_keys().size(); ++i) {
    if (job_keys()[i].type != "word") continue;
    for (const std::string& word : job_keys()[i].choices) {
      Job job;
      JobValue value;
      value.kind = JobValue::Kind::Text;
      value.text = word;
      EXPECT_EQ(read_job_key(i, value, job), std::nullopt) << job_keys()[i].name << " " << word;
      EXPECT_EQ(write_job_key(i, job), "\"" + word + "\"");
    }
  }
}

TEST(JobFile, KeysThatNothingPlansYetAreRefusedByName) {
  for (const char* set : {"checkpointing.reentrant=true", "model.compile=true", "mesh.tensor=2"}) {
    const auto job = parse_job(
        "", "", std::vector<std::string>{"model.source=config.json", "checkpointing.offload_activations=true", set});
    ASSERT_FALSE(job) << set;
    EXPECT_EQ(job.error().code, ErrorCode::Unsupported) << set;
    EXPECT_THAT(job.error().place, HasSubstr("checkpointing.offload_activations")) << set;
    EXPECT_THAT(job.error().expected, HasSubstr(std::string(set).substr(0, std::string(set).find('.')))) << set;
  }
}

TEST(JobFile, AMeshPlanAndABudgetAreReadAndWritten) {
  const auto job = parse_job("", "",
                             std::vector<std::string>{"model.source=config.json", "schedule.budget=72GiB",
                                                      "mesh.plan={\"layers.*.wq\" = \"colwise\"}"});
  ASSERT_TRUE(job) << to_text(job.error());
  EXPECT_EQ(job->job.schedule.budget, 72 * kGiB);
  EXPECT_EQ(job->job.mesh.plan.at("layers.*.wq"), "colwise");
  const auto again = parse_job(job_to_toml(job->job), "", std::vector<std::string>{});
  ASSERT_TRUE(again) << to_text(again.error());
  EXPECT_EQ(again->job, job->job);
}

/// What planning says of a key, or of a module, is said of the file that the job came from.
TEST(JobFile, ErrorsOfPlanningAreLocatedWhereTheirKeyWasSet) {
  const auto loaded = parse("mesh.tensor = 2\n", {"mesh.context=2"});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto at = [&](const char* place, const char* file = "") {
    Error error;
    error.place = place;
    error.file = file;
    error = located(error, *loaded);
    return error.file + "|" + error.place;
  };
  EXPECT_EQ(at("mesh.tensor"), "job.toml|mesh.tensor (line 2)");
  EXPECT_EQ(at("mesh.context"), "|--set mesh.context");
  EXPECT_EQ(at("mesh.context[0].x"), "|--set mesh.context[0].x");
  EXPECT_EQ(at("mesh.sequence_parallel"), "job.toml|mesh.sequence_parallel");
  EXPECT_EQ(at("layers.0.attention"), "job.toml|layers.0.attention");
  EXPECT_EQ(at("mesh.tensor", "other"), "other|mesh.tensor");
}

TEST(JobFile, AnInitialisationNobodyKnowsIsRefused) {
  for (const char* word : {"normal", "normal:", "normal:-1", "normal:0.02x", "ones"}) {
    const auto job =
        parse_job("", "", std::vector<std::string>{"model.source=c.json", std::string("train.init=") + word});
    ASSERT_FALSE(job) << word;
    EXPECT_THAT(to_text(job.error()), HasSubstr("normal:STD")) << word;
  }
}

TEST(JobKeys, SizesKeepMibAndMbApart) {
  EXPECT_EQ(parse_size("80GiB"), 80 * kGiB);
  EXPECT_EQ(parse_size("80 GB"), 80'000'000'000);
  EXPECT_EQ(parse_size("512"), 512);
  EXPECT_EQ(parse_size("1.5KiB"), 1536);
  EXPECT_EQ(parse_size("80G"), std::nullopt);
  EXPECT_EQ(parse_size("-1GiB"), std::nullopt);
  EXPECT_EQ(parse_size("1e300"), std::nullopt);
  EXPECT_EQ(size_text(80 * kGiB), "80GiB");
  EXPECT_EQ(size_text(1500), "1500B");
}

}  // namespace
}  // namespace foreshard
