// Where a training step's inputs come from: synthetic samples, files of tokens, text, tensors.
//
// A sample is one row of a batch (a sequence, an image). Samples have a position in one endless order that depends on
// the seed alone, never on the number of ranks: rank r of W with batches of b rows takes positions
// [p + r b, p + (r + 1) b) of a micro-batch that begins at p, as the rows of one global batch would be dealt out. So a
// run resumes at its position with any number of ranks. One source a rank; not for two threads at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model/model.h"
#include "core/result.h"

namespace foreshard::exec {

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Rows [first, first + rows of the model's inputs), in the order of Model::inputs. Errors: what a file holds there.
  virtual Result<std::vector<at::Tensor>> batch(std::int64_t first) = 0;

  /// Says which data this is, for whoever resumes: kind, file and number of samples.
  virtual std::string identity() const = 0;
};

/// By train.data.kind. Errors: a missing file, too few tokens for one sample, a model whose inputs this data cannot
/// fill.
///   synthetic  integers below what the model's embedding or loss takes: from each token a fixed one follows three
///   times
///              out of four, so that there is something to learn; floating inputs are standard normal
///   tokens     samples of model.seq ids each, one after another in the file; labels are the ids themselves
///              (Transformers' models shift them; exec/data/script_inputs.h has what other losses take)
///   text       the same, of a text file and a tokenizer.json
///   tensors    rows of a safetensors file's tensors, which are named as the model's inputs: [samples, ...]
/// Where the job evaluates on a held-out share of it (train.eval.share), that share is left out: the file's last
/// samples.
Result<std::unique_ptr<BatchSource>> open_batch_source(const Model& model, const Job& job);

/// What evaluations read: train.eval.file, else the share held out; of synthetic data other samples of the same
/// language. REQUIRES train.eval.every > 0.
Result<std::unique_ptr<BatchSource>> open_evaluation_source(const Model& model, const Job& job);

}  // namespace foreshard::exec
