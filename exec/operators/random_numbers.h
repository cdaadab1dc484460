// Random numbers that depend on what they are for, never on who drew before: each use has a generator of its own,
// seeded from names and counters. So a run resumes, recomputes and shards without any generator's state being kept.
//
// Plain functions, usable from any thread.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace foreshard::exec {

/// A seed from a seed and what it is for, in order: {step, micro-batch, rank}. Different lists, different seeds.
std::uint64_t mix_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> path);
std::uint64_t mix_seed(std::uint64_t seed, std::string_view name);

/// A generator of its own, of LibTorch's kind for the device.
at::Generator generator_of(std::uint64_t seed, c10::Device device = c10::kCPU);

}  // namespace foreshard::exec
