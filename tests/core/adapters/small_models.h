// Two small language models for tests of what scripts put around a model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/job.h"
#include "core/model/families/config_model.h"

namespace foreshard::testing {

inline Job small_job() {
  Job job;
  job.model.batch = 2;
  job.model.seq = 24;
  job.model.seq_given = true;
  job.model.dtype = DType::BFloat16;
  job.cluster.world_size = 4;
  job.cluster.ranks_per_node = 4;
  return job;
}

/// Llama of two blocks: q, k, v, o and three of the gated layer, none with a bias.
inline Model small_llama(const Job& job) {
  const auto config = nlohmann::json::parse(R"({"model_type": "llama", "hidden_size": 48, "intermediate_size": 56,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 101,
    "tie_word_embeddings": false, "max_position_embeddings": 64})");
  ProgramOptions program;
  program.compute_dtype = job.fsdp.mixed_precision.param;
  return model_from_config_json(config, "llama", job.model, program).value();
}

/// GPT-2 of two blocks: its layers are Conv1D with a bias; head and embedding are tied.
inline Model small_gpt2(const Job& job) {
  const auto config = nlohmann::json::parse(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 48, "n_head": 6,
    "vocab_size": 101, "n_positions": 64, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0})");
  ProgramOptions program;
  program.compute_dtype = job.fsdp.mixed_precision.param;
  return model_from_config_json(config, "gpt2", job.model, program).value();
}

}  // namespace foreshard::testing
