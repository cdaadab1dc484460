#include "exec/operators/random_numbers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace foreshard::exec {
namespace {

/// The finishing steps of splitmix64: every bit of the input reaches every bit of the output.
std::uint64_t scrambled(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t mix_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> path) {
  for (const std::uint64_t part : path) seed = scrambled(seed ^ scrambled(part));
  return seed;
}

std::uint64_t mix_seed(std::uint64_t seed, std::string_view name) {
  seed = scrambled(seed ^ name.size());
  for (const char c : name) seed = scrambled(seed ^ static_cast<unsigned char>(c));
  return seed;
}

at::Generator generator_of(std::uint64_t seed, c10::Device device) {
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

}  // namespace foreshard::exec
