// This machine's processor, as LibTorch's CPU kernels will use it: what a host's profile says in host.isa and
// host.l2_bytes. Reads the kernel's list of instructions and the variables that hold oneDNN and ATen back; loads
// nothing.
#pragma once

#include <string>
#include <string_view>

#include "core/cpu/cpu_isa.h"
#include "core/units.h"

namespace foreshard {

struct HostProcessor {
  CpuIsa isa = CpuIsa::Avx2;    // that oneDNN will use
  std::string vectors;          // that ATen will use: "avx512", "avx2", "default"; changes no memory
  Bytes l2_bytes = 512 * kKiB;  // of one core; oneDNN's own guess where the kernel does not say
};

HostProcessor host_processor();

/// The same for tests. `flags`: the line of /proc/cpuinfo; `onednn`: ONEDNN_MAX_CPU_ISA; `aten`: ATEN_CPU_CAPABILITY.
/// Unknown words hold nothing back, as in those libraries.
HostProcessor processor_of(std::string_view flags, std::string_view onednn, std::string_view aten);

}  // namespace foreshard
