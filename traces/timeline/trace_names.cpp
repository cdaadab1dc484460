#include "traces/timeline/trace_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

namespace foreshard {
namespace {

/// "AllGather", "_all_gather_base" and "allgather" are one word.
std::string folded(std::string_view name) {
  std::string word;
  for (const char c : name.substr(0, 96)) {
    if (c >= 'A' && c <= 'Z') word.push_back(static_cast<char>(c - 'A' + 'a'));
    if (c >= 'a' && c <= 'z') word.push_back(c);
  }
  return word;
}

struct RangePhase {
  std::string_view what;
  Phase phase;
  bool copies;
};

// FSDP2: torch/distributed/fsdp/_fully_shard; of what stands in another range, that range gives the phase.
constexpr std::array<RangePhase, 10> kFsdp2Ranges{{{"pre_forward", Phase::PreForward, false},
                                                   {"post_forward", Phase::PostForward, false},
                                                   {"pre_backward", Phase::PreBackward, false},
                                                   {"backward_prefetch", Phase::PreBackward, false},
                                                   {"post_backward_accumulate", Phase::PostBackward, false},
                                                   {"post_backward_reshard", Phase::PostBackward, false},
                                                   {"post_backward_reduce", Phase::PostBackward, true},
                                                   {"root_post_backward_callback", Phase::Final, false},
                                                   {"all_gather_copy_out", Phase::None, true},
                                                   {"all_gather", Phase::None, true}}};
// FSDP1: torch/distributed/fsdp/_runtime_utils.py, fully_sharded_data_parallel.py.
constexpr std::array<RangePhase, 10> kFsdp1Ranges{{{"forward", Phase::Forward, false},
                                                   {"_root_pre_forward", Phase::RootPreForward, false},
                                                   {"_pre_forward", Phase::PreForward, false},
                                                   {"_pre_unshard", Phase::None, true},
                                                   {"_post_forward", Phase::PostForward, false},
                                                   {"_pre_backward_hook", Phase::PreBackward, false},
                                                   {"_pre_backward_prefetch", Phase::PreBackward, false},
                                                   {"_post_backward_hook", Phase::PostBackward, true},
                                                   {"_post_backward_final_callback", Phase::Final, false},
                                                   {"rate_limiter", Phase::None, false}}};

template <std::size_t N>
const RangePhase* find_range(const std::array<RangePhase, N>& ranges, std::string_view what) {
  const auto found = std::find_if(ranges.begin(), ranges.end(), [&](const RangePhase& r) { return r.what == what; });
  return found == ranges.end() ? nullptr : &*found;
}

}  // namespace

bool is_nccl_kernel(std::string_view name) {
  return name.starts_with("nccl") || name.starts_with("rccl") || name.starts_with("void nccl") ||
         name.starts_with("msccl");
}

std::optional<SpanKind> collective_kind(std::string_view name) {
  const std::string word = folded(name);
  const auto has = [&](std::string_view part) { return contains(word, part); };
  if (has("allgather")) return SpanKind::AllGather;
  if (has("reducescatter")) return SpanKind::ReduceScatter;
  if (has("allreduce")) return SpanKind::AllReduce;
  if (has("broadcast")) return SpanKind::Broadcast;
  if (has("sendrecv") || has("alltoall") || word == "send" || word == "recv" || word.starts_with("ncclsend") ||
      word.starts_with("ncclrecv") || has("ncclkernelsend") || has("gather") || has("scatter") || has("reduce"))
    return SpanKind::SendRecv;
  return std::nullopt;
}

SpanKind device_work_kind(std::string_view name) {
  if (is_nccl_kernel(name)) return collective_kind(name).value_or(SpanKind::SendRecv);
  if (name.starts_with("Memset")) return SpanKind::Memset;
  if (name.starts_with("Memcpy")) return SpanKind::Copy;
  return SpanKind::Compute;
}

bool is_waiting_call(std::string_view name) {
  return contains(name, "Synchronize") && (name.starts_with("cu") || name.starts_with("hip"));
}

bool is_launching_call(std::string_view name) {
  return contains(name, "Launch") || contains(name, "Memcpy") || contains(name, "Memset");
}

Bytes recorded_dtype_bytes(std::string_view name) {
  const std::string word = folded(name);
  if (word == "float" && contains(name, "8")) return 1;
  if (word == "double" || word == "long" || (word == "int" && contains(name, "64"))) return 8;
  if (word == "float" || word == "int") return contains(name, "16") ? 2 : contains(name, "8") ? 1 : 4;
  if (word == "bfloat" || word == "half" || word == "short") return 2;
  if (word == "byte" || word == "char" || word == "bool" || word == "uint" || word.starts_with("floate")) return 1;
  return 0;
}

std::optional<FsdpRange> fsdp_range(std::string_view name) {
  constexpr std::string_view kTwo = "FSDP::", kOne = "FullyShardedDataParallel.";
  FsdpRange range;
  if (name.starts_with(kTwo)) {
    name.remove_prefix(kTwo.size());
    const std::size_t word = std::min(name.size(), name.find(' '));
    range.what = name.substr(0, word);
    const std::size_t open = name.find('('), close = name.rfind(')');
    if (open != std::string_view::npos && close != std::string_view::npos && close > open)
      range.unit = name.substr(open + 1, close - open - 1);
    else if (const std::size_t of = name.find(" for "); of != std::string_view::npos)
      range.unit = name.substr(of + 5);
    const RangePhase* known = find_range(kFsdp2Ranges, range.what);
    if (known != nullptr) range.phase = known->phase, range.copies = known->copies;
    return range;
  }
  if (!name.starts_with(kOne)) return std::nullopt;
  name.remove_prefix(kOne.size());
  range.runtime = FsdpRange::Runtime::Fsdp1;
  range.what = name;
  const RangePhase* known = find_range(kFsdp1Ranges, name);
  if (known != nullptr) range.phase = known->phase, range.copies = known->copies;
  return range;
}

std::optional<std::int32_t> profiler_step(std::string_view name) {
  constexpr std::string_view kStep = "ProfilerStep#";
  if (!name.starts_with(kStep)) return std::nullopt;
  name.remove_prefix(kStep.size());
  std::int32_t index = 0;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), index);
  if (code != std::errc() || end != name.data() + name.size() || index < 0) return std::nullopt;
  return index;
}

}  // namespace foreshard
