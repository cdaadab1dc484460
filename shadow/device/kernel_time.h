// fakegpu - how long kernels take by the bytes that they move (FAKEGPU_KERNELS=bytes): what a launch says of itself,
// its name, its grid and its first arguments, tells how many elements of which size it reads and writes. Called under
// the shim's lock.
#pragma once

#include <cstdint>
#include <string>

namespace fakegpu {

struct Launch {
  double blocks = 1, threads = 1;  // threads: of one block
  double rows = 1;                 // grid.x; attention: tiles of a sequence
  double others = 1;               // grid.y x grid.z; attention: batch x heads
  void** args = nullptr;           // as cudaLaunchKernel takes them; may be null
};

/// Microseconds. `kernel` is its address, by which what its name says is remembered.
double kernel_us_by_bytes(const void* kernel, const std::string& name, const Launch& launch);

/// Of a product of matrices: the last wave of tiles leaves multiprocessors idle.
double product_us(double m, double n, double k, double batch, double tflops);

}  // namespace fakegpu
