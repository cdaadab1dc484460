#include "exec/operators/ring_attention.h"

#include <ATen/ATen.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <utility>
#include <vector>

namespace foreshard::exec {
namespace {

constexpr std::int64_t kSequence = 2;  // of [batch, heads, sequence, head]

std::int64_t ranks_of(const RingAttention& ring) { return ring.group == nullptr ? 1 : ring.group->size(); }
std::int64_t place_in(const RingAttention& ring) { return ring.group == nullptr ? 0 : ring.group->rank(); }

/// As bytes: whatever the type is.
at::Tensor passed_on(const RingAttention& ring, const at::Tensor& x) {
  const auto ranks = static_cast<std::size_t>(ranks_of(ring)), place = static_cast<std::size_t>(place_in(ring));
  if (ranks == 1) return x;
  const at::Tensor got = at::empty_like(x);
  std::vector<Numel> send(ranks, 0), receive(ranks, 0);
  send[(place + 1) % ranks] = receive[(place + ranks - 1) % ranks] = static_cast<Numel>(x.nbytes());
  ring.group->all_to_all(got.data_ptr(), x.data_ptr(), send, receive, DType::UInt8);
  return got;
}

/// Keys and values as the turns read them: this rank's own, then those of the ranks before it.
class KeysAndValues {
 public:
  KeysAndValues(const RingAttention& ring, const at::Tensor& k, const at::Tensor& v)
      : ring_(ring), shape_(k.sizes().vec()), flat_(at::cat({k.flatten(), v.flatten()})) {
    if (!ring.gathers || ring.group == nullptr) return;
    all_ = flat_.new_empty({ranks_of(ring), flat_.numel()});
    ring.group->all_gather(all_.data_ptr(), flat_.data_ptr(), static_cast<Numel>(flat_.nbytes()), DType::UInt8);
  }

  std::pair<at::Tensor, at::Tensor> of_turn(std::int64_t turn) {
    if (all_.defined()) {
      const std::int64_t ranks = ranks_of(ring_);
      flat_ = all_[(place_in(ring_) - turn + ranks) % ranks];
    } else if (turn > 0) {
      flat_ = passed_on(ring_, flat_);
    }
    const auto both = flat_.chunk(2);
    return {both[0].view(shape_), both[1].view(shape_)};
  }

 private:
  const RingAttention& ring_;
  std::vector<std::int64_t> shape_;
  at::Tensor flat_, all_;
};

at::Tensor half(const at::Tensor& x, std::int64_t which) {
  return x.chunk(2, kSequence)[static_cast<std::size_t>(which)];
}

/// Of a causal mask over pieces of head and tail: a rank before this one has only a first piece to be seen, to one
/// behind it only the second piece of the queries looks back.
struct Turn {
  Turn(std::int64_t turn, std::int64_t place)
      : causal(turn == 0), half_keys(turn > 0 && turn <= place), half_queries(turn > place) {}
  bool causal, half_keys, half_queries;
};

/// _SDPAMerger, in fp32. `x`: what is there; `part` goes into its second half, or into all of it.
at::Tensor merged(const at::Tensor& x, const at::Tensor& part, bool second_half) {
  return second_half ? at::cat({half(x, 0), part}, kSequence) : part;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> ring_attention(const RingAttention& ring, const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v) {
  KeysAndValues others(ring, k, v);
  at::Tensor out, sums;
  for (std::int64_t i = 0; i < ranks_of(ring); ++i) {
    const Turn turn(i, place_in(ring));
    const auto [key, value] = others.of_turn(i);
    const auto [made, logs] = at::_scaled_dot_product_flash_attention_for_cpu(
        turn.half_queries ? half(q, 1) : q, turn.half_keys ? half(key, 0) : key,
        turn.half_keys ? half(value, 0) : value, 0.0, turn.causal, std::nullopt, ring.scale);
    const at::Tensor block = made.to(at::kFloat), block_sums = logs.unsqueeze(-1);
    if (i == 0) {
      out = block;
      sums = block_sums;
      continue;
    }
    const at::Tensor own = turn.half_queries ? half(out, 1) : out, own_sums = turn.half_queries ? half(sums, 1) : sums;
    const at::Tensor joined = own - at::sigmoid(block_sums - own_sums) * (own - block);
    const at::Tensor joined_sums = own_sums - at::log_sigmoid(own_sums - block_sums);
    out = merged(out, joined, turn.half_queries);
    sums = merged(sums, joined_sums, turn.half_queries);
  }
  out = out.to(q.scalar_type()).transpose(1, 2).contiguous().transpose(1, 2);
  return {out, sums.squeeze(-1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ring_attention_backward(const RingAttention& ring,
                                                                       const at::Tensor& gradient, const at::Tensor& q,
                                                                       const at::Tensor& k, const at::Tensor& v,
                                                                       const at::Tensor& out, const at::Tensor& sums) {
  KeysAndValues others(ring, k, v);
  const auto options = q.options().dtype(at::kFloat);
  const at::Tensor of_q = at::zeros(q.sizes(), options);
  at::Tensor of_others =
      at::zeros({2, k.numel()}, options);  // of the keys and values of this turn; goes round with them
  for (std::int64_t i = 0; i < ranks_of(ring); ++i) {
    const Turn turn(i, place_in(ring));
    const auto [key, value] = others.of_turn(i);
    const auto queries = [&](const at::Tensor& x) { return turn.half_queries ? half(x, 1).contiguous() : x; };
    const auto keys = [&](const at::Tensor& x) { return turn.half_keys ? half(x, 0) : x; };
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        queries(gradient), queries(q), keys(key), keys(value), queries(out), queries(sums), 0.0, turn.causal,
        std::nullopt, ring.scale);
    if (i > 0) of_others = passed_on(ring, of_others);
    keys(of_others[0].view(k.sizes())).add_(dk);
    keys(of_others[1].view(v.sizes())).add_(dv);
    (turn.half_queries ? half(of_q, 1) : of_q).add_(dq);
  }
  of_others = passed_on(ring, of_others);
  return {of_q.to(q.scalar_type()), of_others[0].view(k.sizes()).to(k.scalar_type()),
          of_others[1].view(v.sizes()).to(v.scalar_type())};
}

}  // namespace foreshard::exec
