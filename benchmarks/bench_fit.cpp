// `fit` beside the whole grid that it searches: how near its first choice is to the best job, and what both cost.
// Prints the table of docs/measurements; the exit code is 1 where a first choice is more than 2 % slower.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "sim/fit/every_job.h"
#include "sim/fit/fit.h"
#include "sim/fit/gpus.h"

namespace foreshard {
namespace {

struct Dims {
  const char* name;
  const char* type;
  int hidden, intermediate, layers, heads, kv_heads, vocab;
};

constexpr Dims kModels[] = {{"1B", "llama", 2048, 8192, 16, 32, 8, 128256},
                            {"3B", "llama", 3072, 8192, 28, 24, 8, 128256},
                            {"7B", "mistral", 4096, 14336, 32, 32, 8, 32000},
                            {"8B", "llama", 4096, 14336, 32, 32, 8, 128256},
                            {"14B", "qwen2", 5120, 13824, 48, 40, 8, 152064}};

struct Row {
  int model;
  const char* gpus;
  std::int64_t seq, tokens_per_step;
};

constexpr Row kRows[] = {{0, "8xh100-sxm-80", 4096, 0},
                         {0, "4xrtx-4090", 2048, 0},
                         {0, "8xa100-sxm-40", 8192, 524288},
                         {0, "2x8xh100-sxm-80", 8192, 0},
                         {1, "8xh100-sxm-80", 8192, 0},
                         {1, "4xa100-sxm-80", 4096, 0},
                         {1, "8xl40s", 2048, 0},
                         {1, "2x8xa100-sxm-40", 4096, 1048576},
                         {2, "8xa100-sxm-80", 4096, 0},
                         {2, "16xh100-sxm-80", 8192, 0},
                         {2, "8xh200-sxm-141", 16384, 0},
                         {2, "8xmi300x", 8192, 0},
                         {3, "8xh100-sxm-80", 8192, 0},
                         {3, "8xh100-sxm-80", 2048, 1048576},
                         {3, "64xh100-sxm-80", 8192, 0},
                         {3, "8xb200", 8192, 0},
                         {3, "2x8xa100-sxm-80", 4096, 0},
                         {4, "16xh100-sxm-80", 4096, 0},
                         {4, "8xh200-sxm-141", 8192, 0},
                         {4, "64xa100-sxm-80", 4096, 0}};

std::string write_config(const Dims& dims) {
  std::string path = "/tmp/foreshard_bench_fit_" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << R"({"model_type": ")" << dims.type << R"(", "hidden_size": )" << dims.hidden
                      << R"(, "intermediate_size": )" << dims.intermediate << R"(, "num_hidden_layers": )"
                      << dims.layers << R"(, "num_attention_heads": )" << dims.heads << R"(, "num_key_value_heads": )"
                      << dims.kv_heads << R"(, "vocab_size": )" << dims.vocab
                      << R"(, "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "max_position_embeddings": 131072})";
  return path;
}

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s\n", to_text(result.error()).c_str());
  std::exit(1);
}

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

/// How much slower than the best the first choice is, relative; prints the row.
double compare(const Row& row) {
  const Dims& dims = kModels[row.model];
  const Gpus gpus = must(parse_gpus(row.gpus));
  FitRequest request;
  request.job.model.source = write_config(dims);
  request.job.model.seq = row.seq;
  request.job.model.seq_given = true;
  request.job.cluster.profile = gpus.profile;
  request.job.cluster.world_size = gpus.world_size;
  request.job.cluster.ranks_per_node = gpus.ranks_per_node;
  request.job.train.optimizer.impl = OptimizerImpl::Fused;
  request.tokens_per_step = row.tokens_per_step;
  const FitAnswer found = must(fit(request));
  const auto begun = std::chrono::steady_clock::now();
  const EveryJob all = must(try_every_job(request));
  const double seconds = seconds_since(begun);
  std::remove(request.job.model.source.c_str());
  const FitMethod& method = found.methods.front();
  const bool fits = !method.choices.empty();
  double slower = 0;
  if (all.best)
    slower = fits ? 1e9 / method.choices.front().prediction.tokens_per_s.value / all.best->ns_per_token - 1 : 1;
  std::printf(
      "| %s | %s | %lld | %lld | %.2f %% | %zu | %.2f | %zu | %.2f | %s |\n", dims.name, row.gpus,
      static_cast<long long>(row.seq), static_cast<long long>(row.tokens_per_step), 100 * slower, method.simulated,
      found.seconds, all.simulated, seconds,
      fits ? (method.choices.front().layout + "; " + method.choices.front().recomputation).c_str() : "nothing fits");
  std::fflush(stdout);
  return slower;
}

}  // namespace
}  // namespace foreshard

int main(int argc, char** argv) {
  // One row by its number, or all of them.
  const int only = argc > 1 ? std::atoi(argv[1]) : -1;
  std::puts(
      "| model | GPUs | tokens in a sequence | tokens a step | slower than the best | jobs of fit | s | jobs of the "
      "grid "
      "| s | first choice |\n|---|---|---|---|---|---|---|---|---|---|");
  double worst = 0;
  int number = 0;
  for (const auto& row : foreshard::kRows) {
    if (only < 0 || only == number) worst = std::max(worst, foreshard::compare(row));
    ++number;
  }
  return worst > 0.02 ? 1 : 0;
}
