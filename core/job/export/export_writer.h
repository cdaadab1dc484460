// What the tools of `foreshard export` share. Internal to core/job/export.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/job/export/export_job.h"
#include "core/job/export/export_tree.h"

namespace foreshard::exporting {

/// Nodes of the job: those of torchrun's --nnodes.
std::int64_t nodes_of(const Job& job);

/// The word of the other program, by the job's.
template <class E>
std::string_view word_of(const std::vector<std::pair<E, std::string_view>>& words, E value) {
  for (const auto& [ours, theirs] : words)
    if (ours == value) return theirs;
  return {};
}

/// What param, reduce and buffers (output) are cast to where one word says all of them: bf16, fp16, no.
std::string_view one_precision(const Job& job);

/// The keys of an FSDP plugin that accelerate spells with and Transformers without the prefix "fsdp_".
void put_plugin(const Job& job, const std::string& prefix, JobValue& tree);

JobValue torchtitan_tree(const Job& job);
JobValue accelerate_tree(const Job& job);
JobValue transformers_tree(const Job& job);
JobValue trl_tree(const Job& job);

}  // namespace foreshard::exporting
