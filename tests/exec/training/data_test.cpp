// exec/data: the order of samples, files of tokens, and batches for a model.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/model/sources/load_model.h"
#include "exec/data/batch_source.h"
#include "exec/data/input_ranges.h"
#include "exec/data/sample_order.h"
#include "exec/data/token_file.h"
#include "tests/exec/tiny_llama.h"
#include "tests/support/temporary_path.h"

namespace foreshard::exec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SampleOrder, EachEpochVisitsEverySampleOnce) {
  for (const std::int64_t samples : {1, 2, 3, 7, 64, 100, 1000}) {
    const SampleOrder order(samples, 5);
    for (const std::int64_t epoch : {0, 1, 9}) {
      std::set<std::int64_t> seen;
      for (std::int64_t i = 0; i < samples; ++i) seen.insert(order.sample_at(epoch * samples + i));
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(samples));
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), samples - 1);
    }
  }
}

TEST(SampleOrder, DependsOnSeedAndEpochOnly) {
  const auto epoch_of = [](std::uint64_t seed, std::int64_t epoch) {
    const SampleOrder order(50, seed);
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i < 50; ++i) samples.push_back(order.sample_at(epoch * 50 + i));
    return samples;
  };
  EXPECT_EQ(epoch_of(1, 0), epoch_of(1, 0));
  EXPECT_NE(epoch_of(1, 0), epoch_of(2, 0));
  EXPECT_NE(epoch_of(1, 0), epoch_of(1, 1));
}

template <class T>
std::string token_file(const std::string& name, const std::vector<T>& ids) {
  const std::string path = testing::temporary_path(name);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof(T)));
  return path;
}

TEST(TokenFile, ReadsBothWidths) {
  const auto narrow = TokenFile::open(token_file<std::uint16_t>("a.u16", {1, 65535, 7}), TokenWidth::U16);
  const auto wide = TokenFile::open(token_file<std::uint32_t>("a.u32", {1, 100000, 7}), TokenWidth::U32);
  ASSERT_TRUE(narrow && wide);
  EXPECT_EQ(narrow->count(), 3);
  std::vector<std::int64_t> ids(2);
  narrow->read(1, ids);
  EXPECT_THAT(ids, ElementsAre(65535, 7));
  wide->read(1, ids);
  EXPECT_THAT(ids, ElementsAre(100000, 7));
}

TEST(TokenFile, TheEndingOrElseTheVocabularyDecidesTheWidth) {
  EXPECT_EQ(token_width("x.u16", 200000), TokenWidth::U16);
  EXPECT_EQ(token_width("x.u32", 100), TokenWidth::U32);
  EXPECT_EQ(token_width("x.bin", 65536), TokenWidth::U16);
  EXPECT_EQ(token_width("x.bin", 65537), TokenWidth::U32);
}

TEST(TokenFile, WhatIsNoTokenFileIsAnError) {
  EXPECT_EQ(TokenFile::open("/nowhere", TokenWidth::U16).error().code, ErrorCode::NotFound);
  EXPECT_EQ(TokenFile::open("/tmp", TokenWidth::U16).error().code, ErrorCode::NotFound);
  const std::string odd = token_file<char>("odd.u16", {'a', 'b', 'c'});
  EXPECT_THAT(to_text(TokenFile::open(odd, TokenWidth::U16).error()), HasSubstr("got 3 bytes"));
  EXPECT_FALSE(TokenFile::open(token_file<char>("empty.u16", {}), TokenWidth::U16));
}

/// 4 rows of 16 tokens each, of 96.
Job job_of_rows(std::int64_t rows) {
  Job job = tiny_llama_job(1);
  job.model.batch = rows;
  return job;
}

TEST(InputRange, IsReadOffTheEmbeddingAndTheLoss) {
  const Model model = tiny_llama(job_of_rows(4));
  EXPECT_EQ(input_range(model, model.inputs[0]), 96);
  EXPECT_EQ(input_range(model, model.inputs[1]), 96) << "labels: through pad, slice and views to the loss";
}

std::vector<std::vector<at::Tensor>> batches_of(const Job& job, std::int64_t first, int count) {
  const Model model = tiny_llama(job);
  const auto source = open_batch_source(model, job).value();
  std::vector<std::vector<at::Tensor>> batches;
  for (int i = 0; i < count; ++i) batches.push_back(source->batch(first + i * job.model.batch).value());
  return batches;
}

at::Tensor ids_of(const std::vector<std::vector<at::Tensor>>& batches) {
  std::vector<at::Tensor> ids;
  for (const auto& batch : batches) ids.push_back(batch[0]);
  return at::cat(ids);
}

TEST(BatchSource, RanksTogetherReadWhatOneRankReads) {
  const at::Tensor whole = ids_of(batches_of(job_of_rows(8), 16, 1));
  EXPECT_TRUE(whole.equal(ids_of(batches_of(job_of_rows(2), 16, 4)))) << "four ranks, or four steps of one";
  EXPECT_FALSE(whole.equal(ids_of(batches_of(job_of_rows(8), 24, 1)))) << "and other rows elsewhere";
}

TEST(BatchSource, SyntheticTokensAreKnownToTheModelAndTheSeedDecides) {
  Job job = job_of_rows(4);
  const auto batch = batches_of(job, 0, 1).front();
  EXPECT_EQ(batch[0].sizes(), (std::vector<std::int64_t>{4, 16}));
  EXPECT_GE(batch[0].min().item<std::int64_t>(), 0);
  EXPECT_LT(batch[0].max().item<std::int64_t>(), 96);
  EXPECT_TRUE(batch[0].equal(batch[1])) << "labels: the model shifts them itself";
  EXPECT_TRUE(batch[0].equal(batches_of(job, 0, 1).front()[0]));
  job.train.seed = 1;
  EXPECT_FALSE(batch[0].equal(batches_of(job, 0, 1).front()[0]));
}

Job job_of_tokens(const std::string& file, std::int64_t rows) {
  Job job = job_of_rows(rows);
  job.train.data = {"tokens", file, ""};
  return job;
}

TEST(BatchSource, TokensAreReadInPiecesOfOneSampleEachOnceAnEpoch) {
  std::vector<std::uint16_t> ids(6 * 16 + 5);  // six samples and a rest that is left out
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i % 96);
  const Job job = job_of_tokens(token_file("six.u16", ids), 2);
  const at::Tensor rows = ids_of(batches_of(job, 0, 3));
  std::set<std::int64_t> starts;
  for (int row = 0; row < 6; ++row) {
    const auto first = rows[row][0].item<std::int64_t>();
    starts.insert(first);
    EXPECT_EQ(first % 16, 0);
    EXPECT_EQ(rows[row][15].item<std::int64_t>(), first + 15);
  }
  EXPECT_EQ(starts, (std::set<std::int64_t>{0, 16, 32, 48, 64, 80}));
}

TEST(BatchSource, TheHeldOutShareIsTheEndOfTheFileAndNotTrainedOn) {
  std::vector<std::uint16_t> ids(6 * 16);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i % 96);
  Job job = job_of_tokens(token_file("shared.u16", ids), 1);
  job.train.eval.every = 1;
  job.train.eval.share = 0.3;  // two of six
  const Model model = tiny_llama(job);
  const auto starts_of = [&](BatchSource& source, int count) {
    std::set<std::int64_t> starts;
    for (int i = 0; i < count; ++i) starts.insert(source.batch(i).value()[0][0][0].item<std::int64_t>());
    return starts;
  };
  EXPECT_THAT(starts_of(*open_batch_source(model, job).value(), 8), ElementsAre(0, 16, 32, 48));
  EXPECT_THAT(starts_of(*open_evaluation_source(model, job).value(), 4), ElementsAre(64, 80));
  job.train.eval.file = job.train.data.file;
  EXPECT_EQ(starts_of(*open_batch_source(model, job).value(), 6).size(), 6u) << "a file of its own holds nothing out";
}

TEST(BatchSource, SyntheticEvaluationsAreOtherSamples) {
  Job job = job_of_rows(4);
  job.train.eval.every = 1;
  const Model model = tiny_llama(job);
  const at::Tensor trained = open_batch_source(model, job).value()->batch(0).value()[0];
  const at::Tensor evaluated = open_evaluation_source(model, job).value()->batch(0).value()[0];
  EXPECT_FALSE(trained.equal(evaluated));
  job.train.eval.every = 0;
  EXPECT_TRUE(trained.equal(open_batch_source(model, job).value()->batch(0).value()[0]));
}

TEST(BatchSource, ATokenThatTheModelDoesNotKnowIsNamedWithItsPlace) {
  std::vector<std::uint16_t> ids(16, 1);
  ids[9] = 96;
  const Job job = job_of_tokens(token_file("unknown.u16", ids), 1);
  const Model model = tiny_llama(job);
  const auto batch = open_batch_source(model, job).value()->batch(0);
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().place, "token 9");
  EXPECT_EQ(batch.error().got, "96");
}

/// A safetensors file by hand: every tensor int64, one after another.
std::string tensor_file(const std::string& name, const std::map<std::string, at::Tensor>& tensors) {
  std::string header = "{", data;
  for (const auto& [key, tensor] : tensors) {
    const std::size_t begin = data.size();
    data.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
    header += (header.size() > 1 ? "," : "") + ("\"" + key + "\":{\"dtype\":\"I64\",\"shape\":[") +
              std::to_string(tensor.size(0)) + "," + std::to_string(tensor.size(1)) + "],\"data_offsets\":[" +
              std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
  }
  header += "}";
  const std::string path = testing::temporary_path(name);
  std::ofstream file(path, std::ios::binary);
  const std::uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header << data;
  return path;
}

TEST(BatchSource, TensorsGiveEveryInputItsOwnRows) {
  const at::Tensor ids = at::arange(6 * 16).view({6, 16}).remainder(96), labels = ids + 1;
  Job job = job_of_rows(2);
  job.train.data = {"tensors", tensor_file("six.safetensors", {{"input_ids", ids}, {"labels", labels}}), ""};
  std::set<std::int64_t> starts;
  for (int step = 0; step < 3; ++step) {
    const auto batch = batches_of(job, step * 2, 1).front();
    EXPECT_TRUE(batch[1].equal(batch[0] + 1)) << "rows stay together";
    for (int row = 0; row < 2; ++row) starts.insert(batch[0][row][0].item<std::int64_t>());
  }
  EXPECT_EQ(starts.size(), 6u) << "every sample once an epoch";
  const Model model = tiny_llama(job);
  const auto place_of = [&](const std::map<std::string, at::Tensor>& tensors) {
    job.train.data.file = tensor_file("wrong.safetensors", tensors);
    const auto source = open_batch_source(model, job);
    return source ? std::string("none") : source.error().place + ": " + source.error().got;
  };
  EXPECT_EQ(place_of({{"input_ids", ids}}), "input labels: none");
  EXPECT_EQ(place_of({{"input_ids", ids}, {"labels", at::zeros({6, 15}, at::kLong)}}), "input labels: [6, 15]");
  EXPECT_EQ(place_of({{"input_ids", ids}, {"labels", at::zeros({5, 16}, at::kLong)}}), "input labels: 5");
  job.train.data.file = "";
  EXPECT_EQ(open_batch_source(model, job).error().place, "train.data.file");
}

TEST(BatchSource, DataThatCannotBeIsRefused) {
  const auto error_of = [](const Job& job) {
    const Model model = tiny_llama(job);
    const auto source = open_batch_source(model, job);
    return source ? std::string("none") : to_text(source.error());
  };
  EXPECT_THAT(error_of(job_of_tokens("", 1)), HasSubstr("train.data.file"));
  EXPECT_THAT(error_of(job_of_tokens("/nowhere.u16", 1)), HasSubstr("/nowhere.u16"));
  EXPECT_THAT(error_of(job_of_tokens(token_file<std::uint16_t>("short.u16", {1, 2, 3}), 1)), HasSubstr("16 tokens"));
}

}  // namespace
}  // namespace foreshard::exec
