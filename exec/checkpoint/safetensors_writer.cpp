#include "exec/checkpoint/safetensors_writer.h"

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace foreshard::exec {

std::string_view safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::Float32: return "F32";
    case DType::Float64: return "F64";
    case DType::Float16: return "F16";
    case DType::BFloat16: return "BF16";
    case DType::Float8E4M3: return "F8_E4M3";
    case DType::Float8E5M2: return "F8_E5M2";
    case DType::Int8: return "I8";
    case DType::UInt8: return "U8";
    case DType::Int16: return "I16";
    case DType::Int32: return "I32";
    case DType::Int64: return "I64";
    case DType::Bool: return "BOOL";
    case DType::Complex64: return "C64";
    case DType::Complex128: return "C128";
  }
  FORESHARD_CHECK(false, "an element type without a name in safetensors");
}

std::string safetensors_header(std::span<const SafetensorsEntry> entries,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  Bytes begin = 0;
  for (const SafetensorsEntry& entry : entries) {
    const Bytes end = begin + entry.bytes();
    header[entry.name] = {
        {"dtype", safetensors_dtype(entry.dtype)}, {"shape", entry.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();  // little endian, as every machine that LibTorch runs on
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, std::vector<SafetensorsEntry> entries,
                                                    const std::map<std::string, std::string>& metadata) {
  auto file = DurableFile::create(path);
  if (!file) return fail(file.error());
  const std::string header = safetensors_header(entries, metadata);
  if (const auto written = file->write(header); !written) return fail(written.error());
  std::vector<Bytes> begins;
  auto begin = static_cast<Bytes>(header.size());
  Bytes left = 0;
  for (const SafetensorsEntry& entry : entries) {
    begins.push_back(begin + left);
    left += entry.bytes();
  }
  return SafetensorsWriter(std::move(*file), std::move(begins), left);
}

Result<void> SafetensorsWriter::write(std::span<const std::byte> bytes) {
  left_ -= static_cast<Bytes>(bytes.size());
  FORESHARD_CHECK(left_ >= 0, "more bytes than the header has");
  return file_.write(bytes);
}

Result<WrittenFile> SafetensorsWriter::close() {
  FORESHARD_CHECK(left_ == 0, "fewer bytes than the header has");
  return file_.close();
}

}  // namespace foreshard::exec
