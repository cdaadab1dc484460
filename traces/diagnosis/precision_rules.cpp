// Products in float32, and casts up to it: read off the names of kernels and operators.
#include <fmt/format.h>

#include <array>

#include "core/plan.h"
#include "traces/diagnosis/rules.h"
#include "traces/timeline/trace_names.h"

namespace foreshard {
namespace {

enum class Product : std::uint8_t { None, Half, Full };

/// cuBLAS, CUTLASS, rocBLAS and Triton name their operands: "sm90_xmma_gemm_bf16bf16_...", "ampere_sgemm_128x64_tn".
Product product_of(std::string_view name) {
  constexpr std::array<std::string_view, 6> kProducts{"gemm", "Gemm", "GEMM", "cutlass", "nvjet", "Cijk"};
  bool product = false;
  for (const std::string_view word : kProducts) product = product || contains(name, word);
  if (!product) return Product::None;
  constexpr std::array<std::string_view, 14> kHalf{
      "bf16", "f16_", "_f16",     "h16816", "hgemm", "h884", "s16816gemm_f16",
      "fp16", "half", "bfloat16", "hsh",    "hss",   "HB_",  "BB_"};
  for (const std::string_view word : kHalf) {
    if (contains(name, word)) return Product::Half;
  }
  constexpr std::array<std::string_view, 8> kFull{"sgemm", "s1688gemm", "s161616gemm", "f32f32",
                                                  "tf32",  "_fp32",     "s1688",       "float, float, float"};
  for (const std::string_view word : kFull) {
    if (contains(name, word)) return Product::Full;
  }
  return Product::None;
}

bool is_cast(const RecordingFacts& facts, const Span& span) {
  if (span.kind == SpanKind::Cast) return true;
  const std::string_view name = facts.t.name_of(span.name);
  return span.kind == SpanKind::Compute &&
         (contains(name, "LoadWithCast") || contains(name, "float_copy_kernel") ||
          contains(name, "float16_copy_kernel") || contains(name, "bfloat16tofloat32_copy"));
}

/// In the model's own work; FSDP's and the optimizer's casts are theirs.
bool in_model(const Span& span) {
  const auto phase = static_cast<Phase>(span.phase);
  return phase == Phase::Forward || phase == Phase::Backward || phase == Phase::None;
}

std::string place_of(const RecordingFacts& facts, const UseStretch& s) {
  const std::string unit = facts.unit_of(facts.at(s.span));
  const SpanId call = facts.own().accountant->call_of(s.span);
  const std::string op =
      call.valid() ? std::string(facts.name_of(facts.own().accountant->threads().operator_of(call))) : std::string();
  if (unit.empty()) return op.empty() ? std::string(facts.name_of(s.span)) : op;
  return op.empty() ? unit : fmt::format("{} in {}", op, unit);
}

void find_products(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const auto of = [&](Product product) {
    return Collected(
        facts,
        [&facts, product](const UseStretch& s) {
          return s.use == TimeUse::Compute && product_of(facts.name_of(s.span)) == product;
        },
        [&](const UseStretch& s) { return place_of(facts, s); });
  };
  const Collected full = of(Product::Full), half = of(Product::Half);
  if (full.share() < 2 * facts.options.least_share) return;
  const bool everywhere = full.cost() > half.cost();
  DiagnosedCause finding = full.finding(everywhere ? "float32_compute" : "float32_upcast_products");
  finding.saving = full.cost() / 2;  // TF32's rate is half of bfloat16's at best
  finding.cause = fmt::format("products run in float32 for {} of a step ({}); those in half precision for {}",
                              time_words(static_cast<double>(full.cost())), share_words(full.share()),
                              time_words(static_cast<double>(half.cost())));
  finding.remedy = everywhere
                       ? "MixedPrecisionPolicy(param_dtype=torch.bfloat16)"
                       : "a tensor is cast up before a product: keep activations in the parameters' dtype (norms "
                         "that end with .to(x.dtype), no .float() before lm_head)";
  if (everywhere) finding.set = {"fsdp.mixed_precision.param=bfloat16"};
  diagnosis.findings.push_back(std::move(finding));
}

void find_casts(const RecordingFacts& facts, Diagnosis& diagnosis) {
  const Collected found(
      facts,
      [&](const UseStretch& s) {
        return s.use == TimeUse::Compute && is_cast(facts, facts.at(s.span)) && in_model(facts.at(s.span));
      },
      [&](const UseStretch& s) { return place_of(facts, s); });
  if (found.share() < 2 * facts.options.least_share) return;
  DiagnosedCause finding = found.finding("float32_upcasts");
  finding.saving = found.cost();
  finding.cause = fmt::format("the model's own casts between dtypes take {} of a step ({})",
                              time_words(static_cast<double>(found.cost())), share_words(found.share()));
  finding.remedy =
      "no .float() and .to(torch.float32) on activations; torch.compile fuses the casts that must stay; "
      "autocast beside FSDP's mixed precision casts twice: one of them alone";
  diagnosis.findings.push_back(std::move(finding));
}

}  // namespace

void find_precision_causes(const RecordingFacts& facts, Diagnosis& diagnosis) {
  if (!facts.has_steps()) return;
  find_products(facts, diagnosis);
  find_casts(facts, diagnosis);
}

}  // namespace foreshard
