#include "core/model/families/losses.h"

#include "core/model/families/decoder_parts.h"

namespace foreshard::families {
namespace {

using Reduction = ProgramWriter::Reduction;

constexpr std::int64_t kIgnoredLabel = -100;
constexpr std::string_view kPerToken = "per_token";

bool keeps_logits(const ModelOptions& options) { return options.loss == "chunked_logits_cross_entropy"; }

/// F.cross_entropy of rows [n, classes].
Tensor cross_entropy(ProgramWriter& w, const Tensor& rows, const Tensor& targets,
                     Reduction reduction = Reduction::Mean) {
  const Tensor given = w.kernels().wide_autocast ? rows : w.widened(rows);  // a CPU's list has cross_entropy_loss
  const Tensor log = w.softmax("aten._log_softmax.default", given, {Arg{std::int64_t{1}}, Arg{false}});
  return w.nll_loss(log, targets, reduction);
}

/// x.flatten(0, last): a view where the layout allows one.
Tensor flattened(ProgramWriter& w, const Tensor& x, const Dims& sizes) {
  return ProgramWriter::can_view(x, sizes) ? w.view(x, sizes) : w.unsafe_view(w.clone(x), sizes);
}

/// The script's loss of one piece: cross entropy in float32, summed. The function names its float32 logits until it
/// has returned.
Tensor piece_loss(ProgramWriter& w, const Tensor& logits, const Tensor& labels, std::int32_t region = -1) {
  w.enter(ModuleId(0), 0, region);
  const std::int64_t rows = logits.sizes[0] * logits.sizes[1];
  const Tensor wide = w.to(flattened(w, logits, {rows, logits.sizes[2]}), DType::Float32);
  const Tensor targets = flattened(w, labels, {rows});
  const Tensor loss = cross_entropy(w, wide, targets, Reduction::Sum);
  w.hold_until_here(wide);
  return loss;
}

Tensor added(ProgramWriter& w, const std::optional<Tensor>& total, const Tensor& part) {
  return total ? w.add(*total, part) : w.with_scalar("aten.add.Tensor", part, Arg{0.0});
}

/// How many labels carry a loss.
Tensor counted_labels(ProgramWriter& w, const Tensor& labels) {
  const Tensor kept = w.with_scalar("aten.ne.Scalar", labels, Arg{kIgnoredLabel}, DType::Bool);
  return w.emit("aten.sum.default", {ProgramWriter::arg(kept)}, {}, {{{}, {}, DType::Int64}})[0];
}

/// torch.chunk(x, count, 1)
std::vector<Tensor> chunks_of(ProgramWriter& w, const Tensor& x, std::int64_t count) {
  return w.split(x, ceil_div(x.sizes[1], count), 1);
}

void write_chunked_loss(Model& model, ProgramWriter& w, const FamilyInput& input, const TokenInputs& tokens,
                        const LinearModule& head, const Tensor& hidden) {
  w.enter(ModuleId(0));
  w.hold(hidden, Hold::Until::Forward);
  const Tensor& labels = tokens.labels ? *tokens.labels : tokens.ids;
  const std::vector<Tensor> pieces = chunks_of(w, hidden, input.options.loss_chunks);
  const std::vector<Tensor> targets = chunks_of(w, labels, input.options.loss_chunks);
  const Tensor count = counted_labels(w, labels);
  w.hold(count, Hold::Until::Forward);
  std::int32_t call = 0;
  const auto logits_of = [&](const Tensor& piece, std::int32_t region) {
    w.enter(head.module, call++, region);
    return w.linear_as_stored(piece, head.weight, head.bias);
  };
  std::optional<Tensor> total;
  if (keeps_logits(input.options)) {
    std::vector<Tensor> logits;
    for (const Tensor& piece : pieces) {
      logits.push_back(logits_of(piece, -1));
      w.hold(logits.back(), Hold::Until::Forward);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) total = added(w, total, piece_loss(w, logits[i], targets[i]));
  } else {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto region = static_cast<std::int32_t>(model.regions.size());
      model.regions.push_back(
          {Region::Kind::NonReentrant, ModuleId(0), 0, {ValueId(pieces[i].index), ValueId(targets[i].index)}, {}});
      const Tensor part = piece_loss(w, logits_of(pieces[i], region), targets[i], region);
      w.enter(ModuleId(0));
      total = added(w, total, part);
    }
  }
  const Tensor loss = w.binary("aten.div.Tensor", *total, count, DType::Float32);
  w.leave_autocast();
  model.has_loss = true;
  model.outputs = {ValueId(loss.index)};
}

/// What the root's own function and the loss function make has names until they return; but what becomes the logits is
/// one name's, given to one after the other.
void hold_locals(Model& model, std::int32_t loss) {
  const ValueInfo& logits = model.values[model.outputs[1].index()];
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    if (model.ops[i].module.value != 0) continue;
    for (const ValueId id : model.ops[i].out) {
      if (!id.valid() || id == model.outputs[1]) continue;
      ValueInfo& value = model.values[id.index()];
      if (value.held.until == Hold::Until::Autocast) continue;
      const bool becomes =
          static_cast<std::int32_t>(i) < loss && value.shape == logits.shape && value.dtype == logits.dtype;
      if (!becomes) value.held = {Hold::Until::Forward, -1, {}};
    }
  }
}

/// accelerate casts what the forward has returned: its locals are gone by then.
void return_in_float32(Model& model, ProgramWriter& w, const Tensor& logits) {
  const auto last = static_cast<std::int32_t>(model.ops.size()) - 1;
  for (ValueInfo& value : model.values)
    if (value.held.until == Hold::Until::Forward) value.held = {Hold::Until::Op, last, {}};
  model.outputs[1] = ValueId(w.to(logits, DType::Float32).index);
}

/// Liger's forward of a causal model: the loss's own function takes the head's matrix, and nobody sees logits. The card
/// it is written for has it; elsewhere the same sum over whole logits.
void write_fused_loss(Model& model, ProgramWriter& w, const FamilyInput& input, const Tensor& given,
                      const HeadModules& head, const Tensor& hidden) {
  w.enter(head.root);
  const auto begin = static_cast<std::int32_t>(model.ops.size());
  Tensor labels = given;
  if (head.sliced) {  // the library's: each position predicts the next label
    const Tensor padded = w.pad(labels, {0, 1}, static_cast<double>(kIgnoredLabel));
    labels = w.contiguous(w.slice(padded, 1, 1, kSliceEnd));
  }
  const Tensor kept = head.sliced ? w.alias(hidden) : hidden;
  const std::int64_t rows = hidden.sizes[0] * hidden.sizes[1], width = hidden.sizes[2];
  const Tensor x = flattened(w, kept, {rows, width});
  const Tensor targets = flattened(w, labels, {rows});
  Tensor loss;
  if (input.program.device == ProgramDevice::Cuda) {
    w.enter(head.linear.module);
    const Tensor matrix = w.narrowed(w.param(head.linear.weight));
    ArgList args{ProgramWriter::arg(w.narrowed(x)), ProgramWriter::arg(matrix), ProgramWriter::arg(targets)};
    const auto gradient_of = [](const Tensor& tensor) {
      return ProgramWriter::Described{tensor.sizes, ProgramWriter::contiguous_strides(tensor.sizes), tensor.dtype};
    };
    std::vector<ProgramWriter::Described> made{{{}, {}, DType::Float32}, gradient_of(x), gradient_of(matrix)};
    if (head.linear.bias.valid()) {
      const Tensor bias = w.narrowed(w.param(head.linear.bias));
      args.push_back(ProgramWriter::arg(bias));
      made.push_back(gradient_of(bias));
    }
    loss = w.emit("liger_kernel.fused_linear_cross_entropy.default", std::move(args), {}, made)[0];
    w.enter(head.root);
  } else {
    const Tensor logits = write_output_layer(w, head.linear, x);
    w.enter(head.root);
    loss = cross_entropy(w, w.to(logits, DType::Float32), targets);
  }
  model.has_loss = true;
  model.outputs = {ValueId(loss.index)};
  for (auto i = static_cast<std::size_t>(begin); i < model.ops.size(); ++i)  // names of the function until it returns
    for (const ValueId id : model.ops[i].out)
      if (id.valid() && model.ops[i].module == head.root)
        model.values[id.index()].held = {Hold::Until::Forward, -1, {}};
  w.leave_autocast();
}

}  // namespace

bool fuses_head_with_loss(const ModelOptions& options) { return options.loss == "fused_linear_cross_entropy"; }

bool wraps_for_loss(const ModelOptions& options) {
  return options.loss == "chunked_cross_entropy" || keeps_logits(options);
}

bool is_own_loss(const ModelOptions& options) { return options.loss == "auto" || options.loss == kPerToken; }

TokenInputs write_token_inputs(ProgramWriter& w, const FamilyInput& input, std::int64_t seq) {
  const ModelOptions& options = input.options;
  const Dims sizes{options.batch, seq};
  TokenInputs tokens;
  tokens.ids = w.input("input_ids", sizes, DType::Int64);
  const bool masked = input.program.masked_labels;
  if (is_own_loss(options) || masked || wraps_for_loss(options) || fuses_head_with_loss(options))
    tokens.labels = w.input("labels", sizes, DType::Int64, masked ? nullptr : &tokens.ids);
  if (options.loss == kPerToken) tokens.counted = w.input("num_items_in_batch", {}, DType::Int64);
  if (options.attention_mask) tokens.mask = w.input("attention_mask", sizes, DType::Int64);
  if (options.packed) tokens.positions = w.input("position_ids", sizes, DType::Int64);
  return tokens;
}

void finish_with_loss(Model& model, ProgramWriter& w, const FamilyInput& input, const TokenInputs& tokens,
                      const Tensor& returned) {
  w.enter(ModuleId(0));
  const std::string& kind = input.options.loss;
  const Tensor& labels = tokens.labels ? *tokens.labels : tokens.ids;
  const bool own = is_own_loss(input.options);
  const Tensor logits = !own && input.options.float32_outputs ? w.to(returned, DType::Float32) : returned;
  const auto begin = static_cast<std::int32_t>(model.ops.size());
  if (!own) model.loss_begin = begin;  // the model returns logits, the script does the rest
  if (!own) w.leave_autocast();
  const std::int64_t vocabulary = logits.sizes[-1];
  Tensor loss;
  if (kind == "none") {
    loss = w.sum(logits);
  } else if (own && !tokens.shifted) {  // CrossEntropyLoss of the library, in the dtype of the logits
    const Tensor rows = w.view(logits, {-1, vocabulary});
    const Tensor targets = w.view(*tokens.labels, {-1});
    loss = cross_entropy(w, rows, targets);
  } else if (own) {  // ForCausalLMLoss: labels shifted by one, logits in float32
    const Tensor wide = w.to(logits, DType::Float32);
    const Tensor padded = w.pad(*tokens.labels, {0, 1}, -100.0);
    const Tensor shifted = w.contiguous(w.slice(padded, 1, 1, kSliceEnd));
    const Tensor rows = w.view(wide, {-1, vocabulary});
    const Tensor targets = w.view(shifted, {-1});
    loss = cross_entropy(w, rows, targets, tokens.counted ? Reduction::Sum : Reduction::Mean);
    if (tokens.counted) loss = w.binary("aten.div.Tensor", loss, *tokens.counted, loss.dtype);
  } else if (kind == "cross_entropy_flat") {  // torchtitan's: logits.flatten(0, 1).float()
    const Tensor rows = w.to(w.view(logits, {-1, vocabulary}), DType::Float32);
    const Tensor targets = w.view(labels, {-1});
    loss = cross_entropy(w, rows, targets);
  } else {  // F.cross_entropy(logits.view(-1, n), ids.view(-1)) of the training script
    const Tensor wide = kind == "cross_entropy_fp32" ? w.to(logits, DType::Float32) : logits;
    if (wide.index != logits.index) w.hold_until_here(logits);  // `logits = model(...).logits.float()`
    const Tensor rows = w.view(wide, {-1, vocabulary});
    const Tensor targets = w.view(labels, {-1});
    loss = cross_entropy(w, rows, targets);
  }
  model.has_loss = true;
  model.outputs = {ValueId(loss.index), ValueId(logits.index)};
  hold_locals(model, begin);
  if (!own) return;
  w.leave_autocast();
  if (input.options.float32_outputs) return_in_float32(model, w, logits);
}

void finish_with_head(Model& model, ProgramWriter& w, const FamilyInput& input, const TokenInputs& tokens,
                      const HeadModules& head, const Tensor& hidden) {
  if (wraps_for_loss(input.options)) return write_chunked_loss(model, w, input, tokens, head.linear, hidden);
  if (fuses_head_with_loss(input.options)) {
    return write_fused_loss(model, w, input, tokens.labels ? *tokens.labels : tokens.ids, head, hidden);
  }
  const Tensor logits =
      head.sliced ? write_language_head(w, head.root, head.linear, hidden) : write_output_layer(w, head.linear, hidden);
  finish_with_loss(model, w, input, tokens, logits);
}

}  // namespace foreshard::families
