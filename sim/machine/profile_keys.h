// The numbers of a profile that are a key of a table each: what the reader asks for and the writer writes.
#pragma once

#include <array>

#include "sim/machine/profile.h"

namespace foreshard {

struct NumberKey {
  const char* table;
  const char* key;
  double low;  // smallest value that makes sense
  double HardwareProfile::*number = nullptr;
  SimDuration HardwareProfile::*integer = nullptr;
  int HardwareProfile::*small = nullptr;
};

inline const std::array<NumberKey, 15> kNumbers{{
    {"device", "attention_share", 1e-3, &HardwareProfile::attention_share},
    {"device", "hbm_gb_per_s", 1e-3, &HardwareProfile::hbm_gb_per_s},
    {"device", "hbm_share", 1e-3, &HardwareProfile::hbm_share},
    {"device", "memory_bytes", 1, nullptr, &HardwareProfile::memory_bytes},
    {"device", "sm_count", 1, nullptr, nullptr, &HardwareProfile::sm_count},
    {"device", "min_kernel_ns", 0, nullptr, &HardwareProfile::min_kernel_ns},
    {"host", "launch_ns", 0, nullptr, &HardwareProfile::launch_ns},
    {"host", "op_ns", 0, nullptr, &HardwareProfile::op_ns},
    {"host", "call_ns", 0, nullptr, &HardwareProfile::call_ns},
    {"host", "driver_alloc_ns", 0, nullptr, &HardwareProfile::driver_alloc_ns},
    {"host", "host_link_gb_per_s", 1e-3, &HardwareProfile::host_link_gb_per_s},
    {"host", "host_copy_gb_per_s", 1e-3, &HardwareProfile::host_copy_gb_per_s},
    {"links", "scale_up_gb_per_s", 1e-3, &HardwareProfile::scale_up_gb_per_s},
    {"links", "scale_out_gb_per_s", 1e-3, &HardwareProfile::scale_out_gb_per_s},
    {"links", "channel_gb_per_s", 1e-3, &HardwareProfile::channel_gb_per_s},
}};

}  // namespace foreshard
