#include "tests/exec/tiny_llama.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/model/sources/load_model.h"

namespace foreshard::exec {
namespace {

/// Where the test was built, or, on another machine (scripts/gpu-check), where the environment says.
const std::string kModels = [] {
  const char* data = std::getenv("FORESHARD_TEST_DATA");
  return std::string(data != nullptr ? data : FORESHARD_TEST_DATA) + "/exec/";
}();
const std::string kFolder = kModels + "llama_tiny/";
constexpr int kTokens = 16;

NamedTensors read(const std::string& path) {
  auto tensors = read_safetensors(path);
  if (!tensors) throw std::runtime_error(to_text(tensors.error()));
  return *tensors;
}

}  // namespace

Job tiny_llama_job(int world) {
  Job job;
  job.model.source = kFolder + "config.json";
  job.model.batch = kTinyRows / world;
  job.model.seq = kTokens;
  job.model.seq_given = true;
  job.fsdp.mixed_precision = MixedPrecision::none();
  job.train.clip_grad_norm = 0.0;
  job.train.optimizer.lr = 2e-3;
  job.train.optimizer.impl = OptimizerImpl::ForLoop;
  job.cluster.world_size = world;
  job.cluster.ranks_per_node = world;
  return job;
}

Model tiny_llama(const Job& job) {
  auto model = load_model(job.model, program_options(job, ProgramDevice::Cpu));
  if (!model) throw std::runtime_error(to_text(model.error()));
  return *model;
}

NamedTensors tiny_llama_weights() { return read(kFolder + "model.safetensors"); }
NamedTensors tiny_llama_data() { return read(kFolder + "data.safetensors"); }

Job tiny_job(const std::string& name, int world) {
  Job job = tiny_llama_job(world);
  job.model.source = kModels + name + "/config.json";
  return job;
}

NamedTensors tiny_weights(const Job& job) {
  return read((std::filesystem::path(job.model.source).parent_path() / "model.safetensors").string());
}

std::vector<at::Tensor> tiny_llama_inputs(const NamedTensors& data, int step, int rank, int world, int micro_batch) {
  const int share = kTinyRows / world;
  std::vector<at::Tensor> inputs;
  for (const char* name : {"input_ids", "labels"}) {
    inputs.push_back(data.at(name)[step][micro_batch].narrow(0, rank * share, share).to(at::kLong));
  }
  return inputs;
}

std::vector<at::Tensor> tiny_llama_buffers(const Model& model) {
  std::vector<at::Tensor> buffers;
  for (const BufferInfo& buffer : model.buffers) {
    const auto half = buffer.shape.at(0);
    const at::Tensor exponent = at::arange(0, 2 * half, 2, at::kLong).to(at::kFloat).div(static_cast<double>(2 * half));
    buffers.push_back(at::pow(at::Scalar(10000.0), exponent).reciprocal());
  }
  return buffers;
}

RecordedRun recorded_run(const std::string& id, const std::string& model) {
  std::ifstream file(kModels + model + "/rows.json");
  const nlohmann::json document = nlohmann::json::parse(file);
  for (const auto& row : document["rows"]) {
    if (row["id"] != model + "/" + id) continue;
    RecordedRun run{row["loss"], row["grad_norm"], row["lr"], {}};
    for (const auto& [name, sums] : row["final"].items()) run.final_abs_sum[name] = sums[1];
    return run;
  }
  throw std::runtime_error("no such recorded run: " + model + "/" + id);
}

}  // namespace foreshard::exec
