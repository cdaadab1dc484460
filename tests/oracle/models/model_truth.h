// Compares the Model of a config.json with the recorded truth beside it (../shared/models/README.md).
//
// Recordings list `detach` nodes that only the recorder sees: autograd keeps its own result (rsqrt, tanh, softmax,
// fused attention) through one, and arange makes one. Models do not write them; they are expected exactly there and
// skipped.
#pragma once

#include <string>

#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// Parameters, buffers, modules, blocks of structure.json.gz.
RowResult compare_structure(const std::string& folder);

/// Every forward operator of ops.<route>.<dtype>.json.gz: name, module, arguments, results. Skips where it is not
/// recorded.
RowResult compare_route(const std::string& folder, const std::string& route, const std::string& dtype);

/// ops.loss_tail.bf16.json.gz: what labels add.
RowResult compare_loss_tail(const std::string& folder);

/// summary.json: FLOPs per shape and route, forward by operator. The counter refuses grouped heads in fused attention:
/// such entries hold an error and are left out.
RowResult compare_flops(const std::string& folder);

/// memory.json.gz: bytes that autograd keeps, per block and outside, with and without checkpointing.
RowResult compare_memory(const std::string& folder);

}  // namespace foreshard::oracle
