// The code that a published run ran: which model classes, and what its trainer did at that time. A row's source names
// a pull request or a month; torchtitan's history says what held then. Pure functions of text.
#pragma once

#include <map>
#include <string>

namespace foreshard::cli {

/// What of a trainer's code decides memory and time.
struct TrainingCode {
  std::string name;          // for people: "torchtitan since 2025-07", "Transformers"
  bool titan_model = false;  // torchtitan's Llama, not the class of Transformers
  bool fused_norm = false;   // its RMSNorm is one kernel
  bool norm_open = false;    // its configuration offers that kernel and the norm written out: the source says neither
  bool casts_in_model = false;                     // the model returns float32 logits; else the loss casts them
  bool drops_logits = true;                        // before backward
  std::map<std::string, std::string> tensor_plan;  // MeshOptions::plan over tensor ranks; empty: torchtitan's
  bool expandable_segments = false;
  bool early_fsdp2 = false;  // FSDP2 copied gradients in on the reduction's stream (fsdp.quirks = "torch-2.4")
  bool notes_uses = false;   // collectives of tensor ranks keep blocks until the device has passed them (record_stream)
  bool head_unit = false;    // embedding and head are units; not the last block but the head stays gathered
  bool chunked_loss = false;    // the configuration's own, where the row says no more than "chunked"
  bool old_kernels = false;     // products and attention as cuBLAS and FlashAttention had them before mid-2024
  bool boards_of_four = false;  // of its machine: four cards, joined pair by pair
  bool operator==(const TrainingCode&) const = default;
};

/// `source` as the table's column; `decoder`: a plain decoder with a head of its own, which torchtitan's Llama is.
TrainingCode training_code(const std::string& source, bool decoder);

}  // namespace foreshard::cli
