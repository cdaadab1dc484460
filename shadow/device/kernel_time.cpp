#include "shadow/device/kernel_time.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "shadow/device/fakegpu.h"

namespace fakegpu {
namespace {

// What PyTorch's kernels are made of: blocks of lists of tensors, elements a thread takes of a reduction.
constexpr double kListChunk = 65536, kReducedByThread = 32, kBytesByThread = 32;

enum class Kind { Pointwise, Lists, Rows, Columns, Reduction, AttentionForward, AttentionBackward, Other };

struct Rule {
  Kind kind = Kind::Other;
  double item = 4;      // bytes of an element
  double operands = 2;  // tensors of its size that are read or written
  int extent = -1;      // argument that says how many elements (of a row); -1: none does
  bool extent_is_long = false;
  double head = 128, tile = 128;  // attention
  bool causal = true;
};

bool has(const std::string& text, const char* what) { return text.find(what) != std::string::npos; }

double item_in(const std::string& text, std::size_t from) {
  struct Type {
    const char* word;
    double bytes;
  };
  static const Type types[] = {{"BFloat16", 2}, {"Half", 2},  {"bfloat16_t", 2}, {"half_t", 2}, {"OpaqueType<2u>", 2},
                               {"double", 8},   {"float", 4}, {"long", 8},       {"int", 4},    {"unsigned char", 1},
                               {"bool", 1}};
  std::size_t first = std::string::npos;
  double bytes = 4;
  for (const Type& type : types) {
    const std::size_t at = text.find(type.word, from);
    if (at < first) first = at, bytes = type.bytes;
  }
  return bytes;
}

/// The number behind `what`; otherwise if it is not there.
double number_after(const std::string& text, const char* what, double otherwise) {
  const std::size_t at = text.find(what);
  return at == std::string::npos ? otherwise : atof(text.c_str() + at + strlen(what));
}

void read_attention(const std::string& name, bool backward, Rule& rule) {
  const char* traits = backward ? "Flash_bwd_kernel_traits<" : "Flash_fwd_kernel_traits<";
  const std::size_t at = name.find(traits);
  if (at == std::string::npos) return;
  int head = 128, m = 128, n = 64;
  if (sscanf(name.c_str() + at + strlen(traits), "%d, %d, %d", &head, &m, &n) == 3) {
    rule.head = head;
    rule.tile = backward ? n : m;
  }
  const std::size_t end = name.find("> >, ", at);  // the next words: dropout, causal
  if (end != std::string::npos) {
    const std::size_t comma = name.find(", ", end + 5);
    rule.causal = comma != std::string::npos && name.compare(comma + 2, 4, "true") == 0;
  }
}

Rule rule_of(const std::string& name) {
  Rule rule;
  const std::size_t words = name.find('<');
  rule.item = item_in(name, words == std::string::npos ? 0 : words);
  if (has(name, "flash_fwd_kernel")) {
    rule.kind = Kind::AttentionForward;
    read_attention(name, false, rule);
  } else if (has(name, "flash_bwd_dq_dk_dv")) {
    rule.kind = Kind::AttentionBackward;
    read_attention(name, true, rule);
  } else if (has(name, "multi_tensor_apply_kernel")) {
    rule.kind = Kind::Lists;
    double depth = number_after(name, "TensorListMetadata<", 0);
    if (depth == 0) depth = number_after(name, "ScalarListMetadata<float, ", 2);
    // One list is read and written; of several the last is often the result: Adam's are all but one written too.
    rule.operands = depth <= 1 ? 2 : has(name, "FusedAdam") ? 2 * depth - 1 : depth;
    const std::size_t functor = name.find("Functor<");
    if (functor != std::string::npos) rule.item = item_in(name, functor);
  } else if (has(name, "elementwise_kernel<") || has(name, "elementwise_kernel_with_index<")) {
    if (has(name, ">(int, ")) rule.kind = Kind::Pointwise, rule.extent = 0;
    rule.operands = number_after(name, "std::array<char*, ", 2);
    // A copy between kinds of elements says one of them; the lambda's argument is what is computed on.
    const std::size_t lambda = name.rfind("{lambda(", name.find("std::array"));
    if (lambda != std::string::npos && name.compare(lambda, 9, "{lambda()") != 0) rule.item = item_in(name, lambda);
    if (has(name, "bfloat16_copy_kernel") || has(name, "float16_copy_kernel")) rule.item = 3;  // float32 to half
  } else if (has(name, "layer_norm_grad_input")) {
    rule.kind = Kind::Rows, rule.operands = 3, rule.extent = 6;
  } else if (has(name, "vectorized_layer_norm_kernel")) {
    rule.kind = Kind::Rows, rule.extent = 0;
  } else if (has(name, "GammaBetaBackwardCUDAKernel")) {
    rule.kind = Kind::Columns, rule.extent = 0, rule.extent_is_long = true;
  } else if (has(name, "cunn_SoftMaxForward")) {
    rule.kind = Kind::Rows, rule.extent = 2, rule.extent_is_long = has(name, ", long)");
  } else if (has(name, "cunn_SoftMaxBackward")) {
    rule.kind = Kind::Rows, rule.operands = 3, rule.extent = 3, rule.extent_is_long = has(name, ", long)");
  } else if (has(name, "reduce_kernel<")) {
    rule.kind = Kind::Reduction;
  }
  return rule;
}

double extent_of(const Rule& rule, void** args, int more = 0) {
  if (!args || rule.extent < 0 || !args[rule.extent + more]) return -1;
  if (rule.extent_is_long) return static_cast<double>(*static_cast<const std::int64_t*>(args[rule.extent + more]));
  return *static_cast<const int*>(args[rule.extent + more]);
}

double bytes_of(const Rule& rule, const Launch& launch) {
  const double threads = launch.blocks * launch.threads, extent = extent_of(rule, launch.args);
  switch (rule.kind) {
    case Kind::Pointwise:
      if (extent >= 0) return extent * rule.operands * rule.item;
      break;
    case Kind::Lists: return launch.blocks * kListChunk * rule.operands * rule.item;
    case Kind::Rows:
      if (extent >= 0) return launch.rows * extent * rule.operands * rule.item;
      break;
    case Kind::Columns:
      if (extent >= 0) return extent * extent_of(rule, launch.args, 1) * rule.operands * rule.item;
      break;
    case Kind::Reduction: return threads * kReducedByThread * rule.item;
    default: break;
  }
  return threads * kBytesByThread;
}

}  // namespace

double kernel_us_by_bytes(const void* kernel, const std::string& name, const Launch& launch) {
  static auto* rules = new std::unordered_map<const void*, Rule>;
  const auto [known, fresh] = rules->try_emplace(kernel);
  if (fresh) known->second = rule_of(name);
  const Rule& rule = known->second;
  const bool backward = rule.kind == Kind::AttentionBackward;
  if (backward || rule.kind == Kind::AttentionForward) {
    const double length = launch.rows * rule.tile;
    const double flops = 4 * length * length * rule.head * launch.others * (backward ? 2.5 : 1) / (rule.causal ? 2 : 1);
    return cfg().kernel_us + flops / (cfg().attention_tflops * 1e6);
  }
  return cfg().kernel_us + bytes_of(rule, launch) / (cfg().hbm_gbps * 1e3);
}

double product_us(double m, double n, double k, double batch, double tflops) {
  double us = 2 * m * n * k * batch / (tflops * 1e6);
  const double waves = std::ceil(m / 128) * std::ceil(n / 128) * std::max(batch, 1.0) / cfg().sms;
  if (waves > 1) us *= std::ceil(waves) / waves;
  return cfg().kernel_us + us;
}

}  // namespace fakegpu
