// Recurrent networks as ATen runs them on a GPU (RNN.cpp of PyTorch 2.11): where there is cuDNN one operator, else a
// product for the input and one for the hidden state in every step, and a fused cell.
#include <algorithm>
#include <string_view>

#include "core/model/pt2/composites/composite_call.h"

namespace foreshard::pt2 {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

enum class Cell : std::uint8_t { Lstm, Gru, Tanh, Relu };

constexpr std::int64_t kMostSteps = 4096;  // written one by one

struct Weights {
  Tensor input, hidden;
  const Tensor *input_bias = nullptr, *hidden_bias = nullptr;
};

struct State {
  Tensor hidden, cell;
};

class Network {
 public:
  Network(const Call& c, Cell cell) : c_(c), cell_(cell) {}

  CompositeResults write() {
    if (!read()) return std::nullopt;
    Tensor x = batch_first_ ? c_.writer.transpose(input_, 0, 1) : input_;
    if (x.sizes[0] > kMostSteps) return std::nullopt;
    std::vector<State> states = first_states();
    std::vector<State> last;
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      x = run_layer(layer, x, states, last);
      if (dropout_ > 0.0 && train_ && layer + 1 < layers_) x = c_.writer.dropout(x, dropout_);
    }
    std::vector<Tensor> out{x, stack(last, &State::hidden)};
    if (cell_ == Cell::Lstm) out.push_back(stack(last, &State::cell));
    if (batch_first_) out[0] = c_.writer.transpose(out[0], 0, 1);
    return out;
  }

  /// One step by itself: nn.LSTMCell and its like.
  CompositeResults write_step() {
    const Tensor* const x = c_.tensor("input");
    const Tensor* const input = c_.tensor("w_ih");
    const Tensor* const hidden = c_.tensor("w_hh");
    if (const auto all = c_.tensors("hx"))
      given_ = *all;
    else if (const Tensor* one = c_.tensor("hx"))
      given_ = {*one};
    const bool known = x != nullptr && input != nullptr && hidden != nullptr && c_.on_gpu();
    if (!known || x->sizes.rank() != 2 || hidden->sizes.rank() != 2) return std::nullopt;
    if (given_.size() != (cell_ == Cell::Lstm ? 2U : 1U)) return std::nullopt;
    const Weights own{*input, *hidden, c_.tensor("b_ih"), c_.tensor("b_hh")};
    const State state = run_cell(*x, {given_[0], cell_ == Cell::Lstm ? given_[1] : Tensor{}}, own);
    return cell_ == Cell::Lstm ? std::vector<Tensor>{state.hidden, state.cell} : std::vector<Tensor>{state.hidden};
  }

 private:
  bool read() {
    const Tensor* x = c_.tensor("input");
    const auto params = c_.tensors("params");
    if (x == nullptr || !params || x->sizes.rank() != 3 || !c_.on_gpu() || x->sizes.product() == 0) return false;
    input_ = *x;
    params_ = *params;
    if (const auto all = c_.tensors("hx"))
      given_ = *all;
    else if (const Tensor* one = c_.tensor("hx"))
      given_ = {*one};
    biases_ = c_.flag("has_biases", true);
    layers_ = static_cast<std::size_t>(c_.integer("num_layers", 1));
    dropout_ = c_.number("dropout", 0.0);
    train_ = c_.flag("train", true);
    directions_ = c_.flag("bidirectional", false) ? 2 : 1;
    batch_first_ = c_.flag("batch_first", false);
    const std::size_t each = biases_ ? 4 : 2;  // more of them project the hidden state: not written
    return layers_ > 0 && given_.size() == (cell_ == Cell::Lstm ? 2U : 1U) &&
           params_.size() == each * layers_ * directions_ && given_[0].sizes.rank() == 3 &&
           params_[1].sizes.rank() == 2;
  }

  Weights weights(std::size_t number) const {
    const std::size_t each = biases_ ? 4 : 2, at = number * each;
    Weights out{params_[at], params_[at + 1]};
    if (biases_) out.input_bias = &params_[at + 2], out.hidden_bias = &params_[at + 3];
    return out;
  }

  std::vector<Tensor> unbind(const Tensor& x) const {
    Dims sizes = x.sizes, strides = x.strides;
    sizes.erase(0);
    strides.erase(0);
    std::vector<ProgramWriter::Described> parts(static_cast<std::size_t>(x.sizes[0]), {sizes, strides, x.dtype});
    return c_.writer.emit("aten.unbind.int", {ProgramWriter::arg(x), Arg{std::int64_t{0}}}, {}, parts);
  }

  std::vector<State> first_states() const {
    std::vector<State> out;
    for (const Tensor& x : unbind(given_[0])) out.push_back({x, {}});
    if (cell_ != Cell::Lstm) return out;
    const std::vector<Tensor> cells = unbind(given_[1]);
    for (std::size_t i = 0; i < out.size(); ++i) out[i].cell = cells[i];
    return out;
  }

  Tensor stack(const std::vector<Tensor>& parts) const {
    ArgList list;
    for (const Tensor& part : parts) list.push_back(ProgramWriter::arg(part));
    Dims sizes = parts[0].sizes;
    sizes.insert(0, static_cast<std::int64_t>(parts.size()));
    return c_.made("aten.stack.default", {Arg{std::move(list)}, Arg{std::int64_t{0}}}, {{sizes, parts[0].dtype}})[0];
  }
  Tensor stack(const std::vector<State>& states, Tensor State::*part) const {
    std::vector<Tensor> parts;
    for (const State& state : states) parts.push_back(state.*part);
    return stack(parts);
  }

  Tensor run_layer(std::size_t layer, const Tensor& x, const std::vector<State>& states, std::vector<State>& last) {
    std::vector<Tensor> steps = unbind(x);
    std::vector<Tensor> sides;
    for (std::size_t d = 0; d < directions_; ++d) {
      const std::size_t number = layer * directions_ + d;
      if (d == 1) std::reverse(steps.begin(), steps.end());
      const Weights own = weights(number);
      State state = states[number];
      std::vector<Tensor> outputs;
      for (const Tensor& step : steps) {
        state = run_cell(step, state, own);
        outputs.push_back(state.hidden);
      }
      last.push_back(state);
      if (d == 1) std::reverse(outputs.begin(), outputs.end());
      sides.push_back(stack(outputs));
      for (const Tensor& output : outputs) c_.writer.hold_until_here(output);
    }
    return sides.size() == 1 ? sides[0] : c_.writer.cat(sides, 2);
  }

  State run_cell(const Tensor& x, const State& state, const Weights& w) {
    const std::int64_t batch = x.sizes[0], hidden = w.hidden.sizes[1];
    const Dims own{batch, hidden};
    if (cell_ == Cell::Tanh || cell_ == Cell::Relu) {
      const Tensor from_hidden = linear(state.hidden, w.hidden, w.hidden_bias);
      const Tensor from_input = linear(x, w.input, w.input_bias);
      c_.in_place("aten.add_.Tensor", from_hidden, {ProgramWriter::arg(from_input)});
      return {c_.one(cell_ == Cell::Tanh ? "aten.tanh.default" : "aten.relu.default", from_hidden), {}};
    }
    const Tensor from_input = c_.writer.mm(x, c_.writer.t(w.input));
    const Tensor from_hidden = c_.writer.mm(state.hidden, c_.writer.t(w.hidden));
    ArgList args{ProgramWriter::arg(from_input), ProgramWriter::arg(from_hidden),
                 ProgramWriter::arg(cell_ == Cell::Lstm ? state.cell : state.hidden)};
    for (const Tensor* bias : {w.input_bias, w.hidden_bias})
      if (bias != nullptr) args.push_back(ProgramWriter::arg(*bias));
    std::vector<Tensor> made;
    if (cell_ == Cell::Lstm)
      made = c_.made("aten._thnn_fused_lstm_cell.default", std::move(args),
                     {{own, x.dtype}, {own, x.dtype}, {Dims{batch, 4 * hidden}, x.dtype}});
    else
      made = c_.made("aten._thnn_fused_gru_cell.default", std::move(args),
                     {{own, x.dtype}, {Dims{batch, 5 * hidden}, x.dtype}});
    c_.writer.hold_until_here(from_input);
    c_.writer.hold_until_here(from_hidden);
    return {made[0], cell_ == Cell::Lstm ? made[1] : Tensor{}};
  }

  Tensor linear(const Tensor& x, const Tensor& weight, const Tensor* bias) {
    const Tensor turned = c_.writer.t(weight);
    return bias != nullptr ? c_.writer.addmm(*bias, x, turned) : c_.writer.mm(x, turned);
  }

  const Call& c_;
  Cell cell_;
  Tensor input_;
  std::vector<Tensor> params_, given_;
  std::size_t layers_ = 1, directions_ = 1;
  bool biases_ = true, train_ = true, batch_first_ = false;
  double dropout_ = 0.0;
};

/// One operator, which keeps what its backward reads (the reserve) and its weights side by side in a buffer of its own,
/// for FSDP's views of a flat parameter do not lie as cuDNN wants them. How large the reserve is only cuDNN says; it is
/// taken for the gates, the cell and its tanh of every step, and what lies between the layers.
CompositeResults by_cudnn(const Call& c, Cell cell) {
  const Tensor* x = c.tensor("input");
  const auto params = c.tensors("params");
  if (x == nullptr || !params || params->size() < 2 || x->sizes.rank() != 3 || c.results.size() < 2)
    return std::nullopt;
  std::vector<Tensor> given;
  if (const auto all = c.tensors("hx"))
    given = *all;
  else if (const Tensor* one = c.tensor("hx"))
    given = {*one};
  if (given.size() != (cell == Cell::Lstm ? 2U : 1U)) return std::nullopt;
  const std::int64_t layers = c.integer("num_layers", 1), directions = c.flag("bidirectional", false) ? 2 : 1;
  const std::int64_t hidden = (*params)[1].sizes[1], places = x->sizes[0] * x->sizes[1];
  const std::int64_t gates = cell == Cell::Lstm ? 6 : cell == Cell::Gru ? 5 : 1;
  const std::int64_t numel = places * hidden * directions * (layers * gates + (layers - 1));
  std::int64_t weights = 0;
  ArgList list;
  for (const Tensor& param : *params) {
    weights += param.sizes.product();
    list.push_back(ProgramWriter::arg(param));
  }
  ArgList args{ProgramWriter::arg(*x)};
  for (const Tensor& state : given) args.push_back(ProgramWriter::arg(state));
  args.push_back(Arg{std::move(list)});
  const Tensor& y = c.results[0];
  const bool train = c.flag("train", true);
  std::vector<Tensor> made =
      c.made(cell == Cell::Lstm ? "aten._cudnn_rnn.lstm" : "aten._cudnn_rnn.default", std::move(args),
             {{y.sizes, x->dtype},
              {given[0].sizes, x->dtype},
              {cell == Cell::Lstm ? given[1].sizes : Dims{0}, x->dtype},
              {Dims{train ? numel * itemsize(x->dtype) : 0}, DType::UInt8},
              {Dims{weights}, x->dtype}});
  made.resize(c.results.size());
  return made;
}

template <Cell kCell>
CompositeResults recurrent(const Call& c) {
  return c.on_gpu() && c.options.cudnn ? by_cudnn(c, kCell) : Network(c, kCell).write();
}

template <Cell kCell>
CompositeResults step(const Call& c) {
  return Network(c, kCell).write_step();
}

constexpr CompositeRow kRecurrentRows[] = {
    {"aten.lstm_cell.default", &step<Cell::Lstm>},     {"aten.gru_cell.default", &step<Cell::Gru>},
    {"aten.rnn_tanh_cell.default", &step<Cell::Tanh>}, {"aten.rnn_relu_cell.default", &step<Cell::Relu>},
    {"aten.lstm.input", &recurrent<Cell::Lstm>},       {"aten.gru.input", &recurrent<Cell::Gru>},
    {"aten.rnn_tanh.input", &recurrent<Cell::Tanh>},   {"aten.rnn_relu.input", &recurrent<Cell::Relu>},
};

}  // namespace

std::span<const CompositeRow> recurrent_composites() { return kRecurrentRows; }

}  // namespace foreshard::pt2
