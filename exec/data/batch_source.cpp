#include "exec/data/batch_source.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "core/model/json_input.h"
#include "core/model/starting_values.h"
#include "exec/checkpoint/safetensors.h"
#include "exec/data/byte_pair_encoder.h"
#include "exec/data/input_ranges.h"
#include "exec/data/sample_order.h"
#include "exec/data/script_inputs.h"
#include "exec/data/token_file.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

constexpr Bytes kMostText = 4 * kGiB;      // in memory as ids: a token file has no such limit
constexpr std::int64_t kDefaultRange = 2;  // of integers of which nothing is known

Error data_error(ErrorCode code, std::string place, std::string message) {
  Error error;
  error.code = code;
  error.place = std::move(place);
  error.message = std::move(message);
  error.expected = "data that the model can train on, docs/run.md#data";
  return error;
}

/// One input of the model and what may stand in it.
struct InputSlot {
  ValueInfo info;
  std::int64_t rows = 1;
  Numel row_numel = 1;
  std::optional<std::int64_t> range;  // of integers
};

bool is_integer(const InputSlot& slot) { return slot.info.dtype == DType::Int64 || slot.info.dtype == DType::Int32; }

Result<std::vector<InputSlot>> input_slots(const Model& model) {
  std::vector<InputSlot> slots;
  for (const ValueId id : model.inputs) {
    InputSlot slot{model.values[id.index()], 1, 1, std::nullopt};
    if (!slot.info.shape.empty()) slot.rows = slot.info.shape.front();
    if (slot.rows > 0) slot.row_numel = numel_of(slot.info.shape) / slot.rows;
    if (is_integer(slot)) slot.range = input_range(model, id);
    if (!slots.empty() && slot.rows != slots.front().rows && !slot.info.shape.empty()) {
      return fail(data_error(ErrorCode::Unsupported, "input " + slot.info.name,
                             "the model's inputs do not begin with the same batch dimension"));
    }
    slots.push_back(std::move(slot));
  }
  if (slots.empty()) return fail(data_error(ErrorCode::Unsupported, "model", "the model takes no inputs"));
  return slots;
}

at::Tensor empty_input(const InputSlot& slot) {
  return at::empty(slot.info.shape, at::dtype(is_integer(slot) ? at::kLong : at::kFloat));
}

at::Tensor in_own_type(const InputSlot& slot, const at::Tensor& filled) {
  return filled.to(scalar_type_of(slot.info.dtype));
}

/// Tokens of which each is mostly followed by one that it decides: a language that a model can learn.
void fill_chain(std::span<std::int64_t> ids, std::int64_t range, std::uint64_t language, std::mt19937_64& draw) {
  const auto any = [&] { return static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(range)); };
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool follows = i > 0 && draw() % 4 != 0;
    ids[i] = follows ? static_cast<std::int64_t>(mixed_bits(language + static_cast<std::uint64_t>(ids[i - 1])) %
                                                 static_cast<std::uint64_t>(range))
                     : any();
  }
}

class SyntheticSource final : public BatchSource {
 public:
  /// `language` decides what follows what, `seed` which samples are drawn.
  SyntheticSource(std::vector<InputSlot> slots, ScriptInputs script, std::uint64_t language, std::uint64_t seed)
      : slots_(std::move(slots)), script_(script), language_(language), seed_(seed) {}

  Result<std::vector<at::Tensor>> batch(std::int64_t first) override {
    std::vector<at::Tensor> inputs;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const InputSlot& slot = slots_[i];
      if (script_.follows(i)) {
        inputs.push_back(script_.is_mask(i) ? padding(slot, i, first) : at::Tensor());
        continue;
      }
      const at::Tensor filled = empty_input(slot);
      for (std::int64_t row = 0; row < slot.rows; ++row) fill_row(slot, i, first + row, row, filled);
      inputs.push_back(in_own_type(slot, filled));
    }
    script_.complete(inputs);
    return inputs;
  }

  std::string identity() const override { return "synthetic"; }

 private:
  /// Sequences of three quarters of the length and more, the rest of each row hidden.
  at::Tensor padding(const InputSlot& slot, std::size_t input, std::int64_t first) const {
    at::Tensor mask = at::ones(slot.info.shape, at::kLong);
    for (std::int64_t row = 0; row < slot.rows; ++row) {
      const std::uint64_t draw = mixed_bits(seed_ ^ mixed_bits(static_cast<std::uint64_t>(first + row) * 64 + input));
      const auto hidden = static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(slot.row_numel / 4 + 1));
      mask[row].narrow(0, slot.row_numel - hidden, hidden).zero_();
    }
    return mask.to(scalar_type_of(slot.info.dtype));
  }

  void fill_row(const InputSlot& slot, std::size_t input, std::int64_t sample, std::int64_t row,
                const at::Tensor& filled) const {
    std::mt19937_64 draw(mixed_bits(seed_ ^ mixed_bits(static_cast<std::uint64_t>(sample) * 64 + input)));
    const auto numel = static_cast<std::size_t>(slot.row_numel);
    const auto begin = static_cast<std::size_t>(row) * numel;
    if (is_integer(slot)) {
      const std::span<std::int64_t> ids(filled.data_ptr<std::int64_t>() + begin, numel);
      return fill_chain(ids, slot.range.value_or(kDefaultRange), language_, draw);
    }
    std::normal_distribution<float> normal;
    float* values = filled.data_ptr<float>() + begin;
    std::generate(values, values + numel, [&] { return normal(draw); });
  }

  std::vector<InputSlot> slots_;
  ScriptInputs script_;
  std::uint64_t language_, seed_;
};

/// A long row of token ids, from wherever.
struct TokenRow {
  std::string kind, path;
  std::int64_t count = 0;
  std::function<void(std::int64_t begin, std::span<std::int64_t> ids)> read;
};

/// Samples of a file that are used: [begin, begin + count).
struct SampleRange {
  std::int64_t begin = 0, count = 0;
};

class TokenSource final : public BatchSource {
 public:
  TokenSource(std::vector<InputSlot> slots, ScriptInputs script, TokenRow row, SampleRange samples, std::uint64_t seed)
      : slots_(std::move(slots)),
        script_(script),
        row_(std::move(row)),
        samples_(samples),
        order_(samples.count, seed) {}

  Result<std::vector<at::Tensor>> batch(std::int64_t first) override {
    const InputSlot& slot = slots_.front();
    const at::Tensor ids = empty_input(slot);
    for (std::int64_t row = 0; row < slot.rows; ++row) {
      const std::int64_t begin = (samples_.begin + order_.sample_at(first + row)) * slot.row_numel;
      const std::span<std::int64_t> tokens(ids.data_ptr<std::int64_t>() + row * slot.row_numel,
                                           static_cast<std::size_t>(slot.row_numel));
      row_.read(begin, tokens);
      if (auto fits = check(tokens, begin); !fits) return fail(fits.error());
    }
    std::vector<at::Tensor> inputs;
    for (std::size_t i = 0; i < slots_.size(); ++i)
      inputs.push_back(script_.follows(i) ? at::Tensor() : in_own_type(slots_[i], ids).clone());
    script_.complete(inputs);
    return inputs;
  }

  std::string identity() const override {
    const std::string file = std::filesystem::path(row_.path).filename().string();
    const std::int64_t tokens = samples_.count * slots_.front().row_numel;
    const bool whole = samples_.count == row_.count / slots_.front().row_numel;
    return fmt::format("{} {} {}{}", row_.kind, file, whole ? row_.count : tokens, whole ? "" : " of a part");
  }

 private:
  Result<void> check(std::span<const std::int64_t> tokens, std::int64_t begin) const {
    const std::int64_t vocabulary = slots_.front().range.value_or(INT64_MAX);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < vocabulary) continue;
      Error error = data_error(ErrorCode::OutOfRange, fmt::format("token {}", begin + static_cast<std::int64_t>(i)),
                               "the file holds a token that the model does not know");
      error.file = row_.path;
      error.expected = fmt::format("ids below {}", vocabulary);
      error.got = std::to_string(tokens[i]);
      error.hint = "was the file made with this model's tokenizer, and with this width (.u16, .u32)?";
      return fail(std::move(error));
    }
    return {};
  }

  std::vector<InputSlot> slots_;
  ScriptInputs script_;
  TokenRow row_;
  SampleRange samples_;
  SampleOrder order_;
};

/// Rows of tensors that stand in a safetensors file under the names of the model's inputs.
class TensorSource final : public BatchSource {
 public:
  TensorSource(std::vector<at::Tensor> inputs, ScriptInputs script, std::int64_t rows, std::string path,
               SampleRange samples, std::uint64_t seed)
      : inputs_(std::move(inputs)),
        script_(script),
        rows_(rows),
        path_(std::move(path)),
        samples_(samples),
        order_(samples.count, seed) {}

  Result<std::vector<at::Tensor>> batch(std::int64_t first) override {
    const at::Tensor chosen = at::empty({rows_}, at::kLong);
    for (std::int64_t row = 0; row < rows_; ++row)
      chosen.data_ptr<std::int64_t>()[row] = samples_.begin + order_.sample_at(first + row);
    std::vector<at::Tensor> batch;
    for (const at::Tensor& input : inputs_)
      batch.push_back(input.defined() ? input.index_select(0, chosen) : at::Tensor());
    script_.complete(batch);
    return batch;
  }

  std::string identity() const override {
    return fmt::format("tensors {} {}", std::filesystem::path(path_).filename().string(), samples_.count);
  }

 private:
  std::vector<at::Tensor> inputs_;  // [samples, ...], mapped; undefined: it follows from others
  ScriptInputs script_;
  std::int64_t rows_;
  std::string path_;
  SampleRange samples_;
  SampleOrder order_;
};

bool is_of_tokens(const InputSlot& slot) {
  const InputRole role = input_role(slot.info);
  return role == InputRole::Ids || role == InputRole::Labels;
}

/// Ids, and what follows from them: what a decoder's training takes.
Result<void> takes_tokens(const std::vector<InputSlot>& slots, const ScriptInputs& script) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const InputSlot& slot = slots[i];
    const bool ids = is_integer(slot) && slot.info.shape == slots.front().info.shape && slot.info.shape.size() == 2;
    if (script.follows(i) || (ids && is_of_tokens(slot))) continue;
    Error error = data_error(ErrorCode::Unsupported, "input " + slot.info.name,
                             "files of tokens do not say what this input of the model should be");
    error.expected = "a model of input_ids and labels, [batch, seq] each";
    error.hint = "train.data.kind = \"tensors\" takes every input from a file, \"synthetic\" fills any";
    return fail(std::move(error));
  }
  return {};
}

Error no_file(const char* key, const std::string& kind) {
  Error error = data_error(ErrorCode::MissingKey, key, fmt::format("data of kind {} come from a file", kind));
  error.hint = kind == "tensors" ? "train.data = {kind = \"tensors\", file = \"batches.safetensors\"}"
               : kind == "text"
                   ? "train.data = {kind = \"text\", file = \"corpus.txt\", tokenizer = \"tokenizer.json\"}"
                   : "train.data = {kind = \"tokens\", file = \"corpus.u16\"}";
  return error;
}

Result<TokenRow> tokens_of_file(const DataOptions& data, std::int64_t vocabulary) {
  auto file = TokenFile::open(data.file, token_width(data.file, vocabulary));
  if (!file) return fail(file.error());
  const std::int64_t count = file->count();
  return TokenRow{
      data.kind, data.file, count,
      [file = std::move(*file)](std::int64_t begin, std::span<std::int64_t> ids) { file.read(begin, ids); }};
}

/// Encoded once, held in memory. Every rank does so: nothing has to be sent, and nothing is written beside the text.
Result<TokenRow> tokens_of_text(const DataOptions& data) {
  if (data.tokenizer.empty()) return fail(no_file("train.data.tokenizer", data.kind));
  const auto encoder = BytePairEncoder::read(data.tokenizer);
  if (!encoder) return fail(encoder.error());
  const auto text = read_text_file(data.file, kMostText);
  if (!text) return fail(text.error());
  auto encoded = encoder->encode(*text);
  if (!encoded) {
    Error error = std::move(encoded.error());
    error.file = data.file;
    return fail(std::move(error));
  }
  auto tokens = std::make_shared<const std::vector<std::uint32_t>>(encoded->begin(), encoded->end());
  return TokenRow{data.kind, data.file, static_cast<std::int64_t>(tokens->size()),
                  [tokens](std::int64_t begin, std::span<std::int64_t> ids) {
                    std::copy_n(tokens->begin() + begin, ids.size(), ids.begin());
                  }};
}

enum class Use : std::uint8_t { Train, Evaluate };

/// The last samples of the file are held out for evaluations that have no file of their own: at least one.
Result<SampleRange> samples_for(Use use, const Job& job, std::int64_t samples) {
  const EvalOptions& eval = job.train.eval;
  if (eval.every <= 0 || !eval.file.empty()) return SampleRange{0, samples};
  const auto held = std::max<std::int64_t>(1, std::llround(eval.share * static_cast<double>(samples)));
  if (held < samples) return use == Use::Train ? SampleRange{0, samples - held} : SampleRange{samples - held, held};
  Error error = data_error(ErrorCode::OutOfRange, "train.eval.share", "nothing is left of the data to train on");
  error.file = job.train.data.file;
  error.expected = "a share that leaves samples on both sides, or train.eval.file";
  error.got = fmt::format("{} of {} samples held out", held, samples);
  return fail(std::move(error));
}

Result<std::unique_ptr<BatchSource>> open_tokens(std::vector<InputSlot> slots, const ScriptInputs& script,
                                                 const Job& job, Use use) {
  if (auto fits = takes_tokens(slots, script); !fits) return fail(fits.error());
  DataOptions data = job.train.data;
  if (use == Use::Evaluate && !job.train.eval.file.empty()) data.file = job.train.eval.file;
  if (data.file.empty()) return fail(no_file("train.data.file", data.kind));
  auto row = data.kind == "text" ? tokens_of_text(data) : tokens_of_file(data, slots.front().range.value_or(0));
  if (!row) return fail(row.error());
  if (row->count < slots.front().row_numel) {
    Error error = data_error(ErrorCode::OutOfRange, "train.data.file", "the file holds less than one sample");
    error.file = data.file;
    error.expected = fmt::format("at least model.seq = {} tokens", slots.front().row_numel);
    error.got = std::to_string(row->count);
    return fail(std::move(error));
  }
  const auto samples = samples_for(use, job, row->count / slots.front().row_numel);
  if (!samples) return fail(samples.error());
  return std::make_unique<TokenSource>(std::move(slots), script, std::move(*row), *samples,
                                       static_cast<std::uint64_t>(job.train.seed));
}

/// The file's tensor for one input: [samples, ...] of the input's own rows and type.
Result<at::Tensor> tensor_for(const InputSlot& slot, const NamedTensors& tensors, const std::string& file) {
  const auto found = tensors.find(slot.info.name);
  Shape row = slot.info.shape;
  if (!row.empty()) row.erase(row.begin());
  const auto wrong = [&](ErrorCode code, std::string message, std::string got) {
    Error error = data_error(code, "input " + slot.info.name, std::move(message));
    error.file = file;
    error.expected =
        fmt::format("[samples{}{}], {}", row.empty() ? "" : ", ", fmt::join(row, ", "), dtype_name(slot.info.dtype));
    error.got = std::move(got);
    return fail(std::move(error));
  };
  if (found == tensors.end()) return wrong(ErrorCode::MissingKey, "the file holds no tensor for this input", "none");
  const at::Tensor& tensor = found->second;
  const std::vector<std::int64_t> sizes = tensor.sizes().vec();
  if (sizes.size() != row.size() + 1 || !std::equal(row.begin(), row.end(), sizes.begin() + 1) || sizes[0] == 0)
    return wrong(ErrorCode::Inconsistent, "the samples have another shape than the model's input",
                 fmt::format("[{}]", fmt::join(sizes, ", ")));
  const auto type = scalar_type_of(slot.info.dtype);
  if (tensor.is_floating_point() != at::isFloatingType(type))
    return wrong(ErrorCode::WrongType, "the samples have another type than the model's input",
                 at::toString(tensor.scalar_type()));
  return tensor.to(type);
}

Result<std::unique_ptr<BatchSource>> open_tensors(const std::vector<InputSlot>& slots, const ScriptInputs& script,
                                                  const Job& job, Use use) {
  std::string file = job.train.data.file;
  if (use == Use::Evaluate && !job.train.eval.file.empty()) file = job.train.eval.file;
  if (file.empty()) return fail(no_file("train.data.file", job.train.data.kind));
  const auto tensors = read_safetensors(file);
  if (!tensors) return fail(tensors.error());
  std::vector<at::Tensor> inputs;
  for (const InputSlot& slot : slots) {
    if (script.is_count(inputs.size())) {  // counted anew for each step
      inputs.emplace_back();
      continue;
    }
    auto tensor = tensor_for(slot, *tensors, file);
    if (!tensor) return fail(tensor.error());
    if (!inputs.empty() && tensor->size(0) != inputs.front().size(0)) {
      Error error = data_error(ErrorCode::Inconsistent, "input " + slot.info.name,
                               "the file holds another number of samples for this input");
      error.file = file;
      error.expected = std::to_string(inputs.front().size(0));
      error.got = std::to_string(tensor->size(0));
      return fail(std::move(error));
    }
    inputs.push_back(std::move(*tensor));
  }
  const auto samples = samples_for(use, job, inputs.front().size(0));
  if (!samples) return fail(samples.error());
  return std::make_unique<TensorSource>(std::move(inputs), script, slots.front().rows, file, *samples,
                                        static_cast<std::uint64_t>(job.train.seed));
}

Result<std::unique_ptr<BatchSource>> open_source(const Model& model, const Job& job, Use use) {
  auto slots = input_slots(model);
  if (!slots) return fail(slots.error());
  const ScriptInputs script(model, job);
  if (job.train.data.kind == "tensors") return open_tensors(*slots, script, job, use);
  if (job.train.data.kind != "synthetic") return open_tokens(std::move(*slots), script, job, use);
  const auto seed = static_cast<std::uint64_t>(job.train.seed);
  const std::uint64_t language = mixed_bits(seed + 1);
  const std::uint64_t draws = use == Use::Train ? language : mixed_bits(mixed_bits(seed) + 2);
  return std::make_unique<SyntheticSource>(std::move(*slots), script, language, draws);
}

}  // namespace

Result<std::unique_ptr<BatchSource>> open_batch_source(const Model& model, const Job& job) {
  return open_source(model, job, Use::Train);
}

Result<std::unique_ptr<BatchSource>> open_evaluation_source(const Model& model, const Job& job) {
  return open_source(model, job, Use::Evaluate);
}

}  // namespace foreshard::exec
