// Whatever the bytes of the file are, the reader answers with tensors inside it or an Error.
#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "exec/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string path = "/tmp/foreshard_fuzz_" + std::to_string(getpid()) + ".safetensors";
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto tensors = foreshard::exec::read_safetensors(path);
  unlink(path.c_str());
  if (!tensors) return 0;
  for (const auto& [name, tensor] : *tensors) {  // the first and the last byte are in the mapping
    const auto* bytes = static_cast<const volatile std::uint8_t*>(tensor.const_data_ptr());
    if (tensor.nbytes() > 0) static_cast<void>(bytes[0] + bytes[tensor.nbytes() - 1]);
  }
  return 0;
}
