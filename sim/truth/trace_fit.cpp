#include "sim/truth/trace_fit.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "sim/device/kernel_cost.h"

namespace foreshard {
namespace {

constexpr int kRounds = 20;
constexpr double kCloseEnough = 1e-4;
constexpr Bytes kLargeCopy = kMiB;

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

template <std::size_t N>
bool has_any(const std::string& text, const std::array<std::string_view, N>& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

WorkClass class_of(const Kernel& kernel) {
  switch (kernel.kind) {
    case KernelClass::Gemm: return WorkClass::Gemm;
    case KernelClass::Attention: return WorkClass::Attention;
    default: return WorkClass::MemoryBound;
  }
}

SimDuration predicted(const HardwareProfile& profile, const std::vector<const Kernel*>& kernels, WorkClass work) {
  const auto cost = kernel_cost_of(profile);
  SimDuration sum = 0;
  for (const Kernel* kernel : kernels) {
    if (class_of(*kernel) == work) sum += cost->device(*kernel);
  }
  return sum;
}

struct Product {
  DType dtype = DType::Float32;
  bool tf32 = false;
  auto operator<=>(const Product&) const = default;
};

/// How most operations of products run.
Product main_product(const std::vector<const Kernel*>& kernels, const HardwareProfile& profile) {
  const bool has_tf32 = profile.extra.contains(kTf32Peak);
  std::map<Product, double> flops;
  for (const Kernel* kernel : kernels) {
    if (class_of(*kernel) != WorkClass::Gemm) continue;
    const bool tf32 = has_tf32 && kernel->convolution && kernel->dtype == DType::Float32;
    flops[{kernel->dtype, tf32}] += static_cast<double>(kernel->flops);
  }
  const auto most =
      std::max_element(flops.begin(), flops.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == flops.end() ? Product{} : most->first;
}

/// Moves `rate` until the class's kernels take as long as recorded.
FittedRate fit_one(HardwareProfile& profile, const std::vector<const Kernel*>& kernels, WorkClass work, double& rate,
                   double most, std::string key, SimDuration recorded) {
  FittedRate fitted{std::move(key), rate, rate, 0, recorded};
  for (int round = 0; round < kRounds; ++round) {
    const double ratio = static_cast<double>(predicted(profile, kernels, work)) /
                         static_cast<double>(std::max<SimDuration>(recorded, 1));
    fitted.residual = ratio - 1;
    if (std::abs(fitted.residual) < kCloseEnough || ratio <= 0) break;
    const double next = std::min(most, rate * ratio);
    if (next == rate) break;  // as fast as it can be
    rate = next;
  }
  fitted.residual = static_cast<double>(predicted(profile, kernels, work)) / static_cast<double>(recorded) - 1;
  fitted.after = rate;
  return fitted;
}

bool is_of_rank(const Timeline& timeline, const Span& span, std::int32_t rank) {
  return timeline.lanes[span.lane.index()].rank == rank;
}

const char* curve_kind(SpanKind kind) {
  switch (kind) {
    case SpanKind::AllGather: return "all_gather";
    case SpanKind::ReduceScatter: return "reduce_scatter";
    case SpanKind::AllReduce: return "all_reduce";
    default: return nullptr;
  }
}

}  // namespace

std::string_view work_class_name(WorkClass work) {
  constexpr std::array<std::string_view, 3> kNames{"gemm", "attention", "memory_bound"};
  return kNames[static_cast<std::size_t>(work)];
}

std::optional<WorkClass> work_class_of(std::string_view kernel_name) {
  constexpr std::array<std::string_view, 9> kForeign{
      "multi_tensor", "foreach", "adam", "split_with_sizes", "chunk_cat", "catarray", "memcpy", "memset", "nccl"};
  constexpr std::array<std::string_view, 4> kAttention{"flash", "fmha", "attention", "sdpa"};
  constexpr std::array<std::string_view, 11> kGemm{"gemm",  "cutlass", "xmma", "nvjet",       "cublas", "matmul",
                                                   "addmm", "aten.mm", "bmm",  "aten.linear", "wgmma"};
  const std::string name = lower_case(kernel_name);
  if (has_any(name, kForeign)) return std::nullopt;
  if (has_any(name, kAttention)) return WorkClass::Attention;
  if (has_any(name, kGemm) || name == "mm" || name == "aten::mm" || name == "linear" || name == "aten::linear")
    return WorkClass::Gemm;
  return WorkClass::MemoryBound;
}

std::vector<const Kernel*> steady_kernels(const Plan& plan, const LoweredProgram& lowered) {
  std::vector<const Kernel*> kernels;
  if (plan.iterations.empty()) return kernels;
  for (const Instruction& i : plan.iterations.back().instructions) {
    if (!i.segment.valid() || i.segment.index() >= lowered.instances.size()) continue;
    const SegmentTemplate& segment =
        lowered.templates[static_cast<std::size_t>(lowered.instances[i.segment.index()].lowered)];
    const KernelList* list = i.kind == InstructionKind::Forward     ? &segment.forward
                             : i.kind == InstructionKind::Recompute ? &segment.recompute
                             : i.kind == InstructionKind::Backward  ? &segment.backward
                                                                    : nullptr;
    if (list == nullptr) continue;
    for (const Kernel& kernel : list->kernels) {
      if (kernel.launches > 0) kernels.push_back(&kernel);
    }
  }
  return kernels;
}

RecordedWork recorded_work(const Timeline& timeline, std::int32_t rank, SimTime begin, SimTime end) {
  RecordedWork work;
  for (const Span& span : timeline.spans) {
    if (span.kind != SpanKind::Compute || span.start < begin || span.start >= end) continue;
    if (!is_of_rank(timeline, span, rank) || timeline.lanes[span.lane.index()].stream != "D") continue;
    const auto what = work_class_of(timeline.name_of(span.name));
    if (!what) continue;
    ++work.kernels;
    SimDuration& sum = *what == WorkClass::Gemm        ? work.gemm
                       : *what == WorkClass::Attention ? work.attention
                                                       : work.memory_bound;
    sum += span.duration;
  }
  return work;
}

std::vector<FittedRate> fit_rates(HardwareProfile& profile, const std::vector<const Kernel*>& kernels,
                                  const RecordedWork& recorded) {
  std::vector<FittedRate> fitted;
  const auto known = [&](WorkClass work, SimDuration sum) { return sum > 0 && predicted(profile, kernels, work) > 0; };
  // Memory first: a product or an attention may be bound by it.
  if (known(WorkClass::MemoryBound, recorded.memory_bound)) {
    fitted.push_back(fit_one(profile, kernels, WorkClass::MemoryBound, profile.hbm_share, 1.0, "device.hbm_share",
                             recorded.memory_bound));
  }
  const auto peak = [&](DType dtype) {
    const auto at = profile.peak_tflops.find(dtype);
    return at == profile.peak_tflops.end() ? 1e9 : at->second;
  };
  if (known(WorkClass::Gemm, recorded.gemm)) {
    const auto [dtype, tf32] = main_product(kernels, profile);
    const double most = tf32 ? profile.extra.at(kTf32Peak) : peak(dtype);
    double& rate = tf32 ? profile.extra.try_emplace(kTf32Reached, tf32_gemm_tflops(profile)).first->second
                        : profile.gemm_tflops.try_emplace(dtype, peak(dtype)).first->second;
    const std::string key =
        tf32 ? std::string("extra.") + kTf32Reached : "gemm_tflops." + std::string(dtype_name(dtype));
    fitted.push_back(fit_one(profile, kernels, WorkClass::Gemm, rate, most, key, recorded.gemm));
  }
  if (known(WorkClass::Attention, recorded.attention)) {
    fitted.push_back(fit_one(profile, kernels, WorkClass::Attention, profile.attention_share, 1.0,
                             "device.attention_share", recorded.attention));
  }
  return fitted;
}

std::vector<MeasuredCollective> recorded_collectives(const Timeline& timeline, std::int32_t rank, int group_ranks) {
  std::map<std::string, std::map<Bytes, std::vector<SimDuration>>> times;
  for (const Span& span : timeline.spans) {
    const char* kind = curve_kind(span.kind);
    if (kind == nullptr || span.bytes <= 0 || span.duration <= 0 || !is_of_rank(timeline, span, rank)) continue;
    times[kind][span.bytes].push_back(span.duration);
  }
  std::vector<MeasuredCollective> curves;
  for (auto& [kind, sizes] : times) {
    MeasuredCollective curve{kind, group_ranks, {}, {}};
    for (auto& [bytes, all] : sizes) {
      const auto quarter = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 4);
      std::nth_element(all.begin(), quarter, all.end());
      curve.bytes.push_back(bytes);
      curve.ns.push_back(*quarter);
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

double recorded_host_link(const Timeline& timeline, std::int32_t rank) {
  double bytes = 0, ns = 0;
  for (const Span& span : timeline.spans) {
    if (span.kind != SpanKind::Copy || span.bytes < kLargeCopy || !is_of_rank(timeline, span, rank)) continue;
    const std::string name = lower_case(timeline.name_of(span.name));
    if (!has_any(name, std::array<std::string_view, 4>{"htod", "dtoh", "h2d", "d2h"})) continue;
    bytes += static_cast<double>(span.bytes);
    ns += static_cast<double>(span.duration);
  }
  return ns > 0 ? bytes / ns : 0;
}

namespace {

bool is_launch(const Timeline& timeline, const Span& span) {
  return span.kind == SpanKind::HostIssue &&
         lower_case(timeline.name_of(span.name)).find("launchkernel") != std::string::npos;
}

/// The element in the middle; `all` is not empty.
SimDuration median(std::vector<SimDuration>& all) {
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

}  // namespace

SimDuration recorded_launch(const Timeline& timeline, std::int32_t rank) {
  std::vector<SimDuration> all;
  for (const Span& span : timeline.spans) {
    if (is_of_rank(timeline, span, rank) && is_launch(timeline, span)) all.push_back(span.duration);
  }
  return all.empty() ? 0 : median(all);
}

SimDuration recorded_dispatch(const Timeline& timeline, std::int32_t rank) {
  constexpr SimDuration kSomethingElse = 20;
  struct Call {
    SimTime start, end;
    bool launch;
  };
  std::map<LaneId, std::vector<Call>> threads;
  for (const Span& span : timeline.spans) {
    if (!is_of_rank(timeline, span, rank)) continue;
    const bool launch = is_launch(timeline, span);
    if (launch || span.kind == SpanKind::HostWait)
      threads[span.lane].push_back({span.start, span.start + span.duration, launch});
  }
  std::vector<SimDuration> gaps;
  for (auto& [lane, calls] : threads) {
    std::sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.start < b.start; });
    SimTime from = -1;
    SimDuration waited = 0;
    for (const Call& call : calls) {
      if (!call.launch) {
        waited += call.end - call.start;
        continue;
      }
      if (from >= 0 && call.start - from >= waited) gaps.push_back(call.start - from - waited);
      from = call.end;
      waited = 0;
    }
  }
  if (gaps.empty()) return 0;
  const SimDuration most = kSomethingElse * median(gaps);
  std::erase_if(gaps, [&](SimDuration gap) { return gap > most; });
  return std::accumulate(gaps.begin(), gaps.end(), SimDuration{0}) / static_cast<SimDuration>(gaps.size());
}

}  // namespace foreshard
