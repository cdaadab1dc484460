#include "exec/checkpoint/safetensors.h"

#include <ATen/MapAllocator.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/model/json_input.h"
#include "core/text/utf8.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr Bytes kMaxHeader = 64 * kMiB;

Error file_error(ErrorCode code, const std::string& path, std::string place, std::string message) {
  Error error;
  error.code = code;
  error.file = path;
  error.place = std::move(place);
  error.message = std::move(message);
  error.expected = "a whole safetensors file";
  return error;
}

std::optional<DType> dtype_of(std::string_view word) {
  if (word == "F64") return DType::Float64;
  if (word == "F32") return DType::Float32;
  if (word == "F16") return DType::Float16;
  if (word == "BF16") return DType::BFloat16;
  if (word == "I64") return DType::Int64;
  if (word == "I32") return DType::Int32;
  if (word == "I16") return DType::Int16;
  if (word == "I8") return DType::Int8;
  if (word == "U8") return DType::UInt8;
  if (word == "BOOL") return DType::Bool;
  if (word == "F8_E4M3") return DType::Float8E4M3;
  if (word == "F8_E5M2") return DType::Float8E5M2;
  if (word == "C64") return DType::Complex64;
  if (word == "C128") return DType::Complex128;
  return std::nullopt;
}

struct Mapping {
  std::shared_ptr<at::DataPtr> memory;
  std::size_t bytes = 0;
  const char* text() const { return static_cast<const char*>(memory->get()); }
};

Result<Mapping> map_file(const std::string& path) {
  std::error_code code;
  const auto bytes = std::filesystem::file_size(path, code);
  if (code) return fail(file_error(ErrorCode::NotFound, path, "", code.message()));
  if (bytes <= kLengthBytes) return fail(file_error(ErrorCode::BadSyntax, path, "", "the file is cut off"));
  try {
    return Mapping{std::make_shared<at::DataPtr>(at::MapAllocator::makeDataPtr(path, 0, bytes, nullptr)), bytes};
  } catch (const std::exception& error) {
    return fail(file_error(ErrorCode::NotFound, path, "", first_line(error.what())));
  }
}

/// One entry of the header: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}.
Result<at::Tensor> tensor_of(const nlohmann::json& entry, const std::string& name, const std::string& path,
                             const Mapping& file, std::size_t data_begin) {
  const auto bad = [&](std::string message) {
    return fail(file_error(ErrorCode::Inconsistent, path, name, std::move(message)));
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    return bad("a tensor has dtype, shape and data_offsets");
  }
  const auto dtype = entry["dtype"].is_string() ? dtype_of(entry["dtype"].get_ref<const std::string&>()) : std::nullopt;
  if (!dtype) return bad("an element type that is not known");
  const auto& sizes = entry["shape"];
  const auto& offsets = entry["data_offsets"];
  if (!sizes.is_array() || sizes.size() > 8 || !offsets.is_array() || offsets.size() != 2 ||
      !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return bad("shape or data_offsets are no lists of numbers");
  }
  const std::size_t data_bytes = file.bytes - data_begin;
  Shape shape;
  std::size_t bytes = static_cast<std::size_t>(itemsize(*dtype));
  for (const auto& size : sizes) {
    if (!size.is_number_unsigned()) return bad("shape holds something else than sizes");
    const auto count = size.get<std::uint64_t>();
    if (count != 0 && bytes > data_bytes / count) return bad("the tensor is larger than the file");
    bytes *= count;
    shape.push_back(static_cast<std::int64_t>(count));
  }
  const auto begin = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > data_bytes || end - begin != bytes) return bad("data_offsets do not fit shape and file");
  void* data = const_cast<char*>(file.text()) + data_begin + begin;
  return at::from_blob(
      data, shape, [keep = file.memory](void*) {}, at::dtype(scalar_type_of(*dtype)));
}

}  // namespace

Result<NamedTensors> read_safetensors(const std::string& path) {
  const auto file = map_file(path);
  if (!file) return fail(file.error());
  std::uint64_t header_bytes = 0;  // little endian, as every machine that LibTorch runs on
  std::memcpy(&header_bytes, file->text(), kLengthBytes);
  if (header_bytes > static_cast<std::uint64_t>(kMaxHeader) || header_bytes > file->bytes - kLengthBytes) {
    return fail(file_error(ErrorCode::BadSyntax, path, "header", "the header is longer than the file"));
  }
  const auto header = parse_json({file->text() + kLengthBytes, header_bytes}, path);
  if (!header) return fail(header.error());
  if (!header->is_object()) return fail(file_error(ErrorCode::WrongType, path, "header", "the header is no object"));
  NamedTensors tensors;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    auto tensor = tensor_of(entry, name, path, *file, kLengthBytes + header_bytes);
    if (!tensor) return fail(tensor.error());
    tensors.emplace(name, std::move(*tensor));
  }
  return tensors;
}

namespace {

/// {"weight_map": {"name": "file"}}: only the tensors that are listed, from the file that is named.
Result<NamedTensors> read_index(const std::string& path) {
  const auto index = read_json_file(path);
  if (!index) return fail(index.error());
  const auto map = index->is_object() ? index->find("weight_map") : index->end();
  if (!index->is_object() || map == index->end() || !map->is_object()) {
    return fail(file_error(ErrorCode::MissingKey, path, "weight_map", "the index has no object weight_map"));
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::map<std::string, NamedTensors, std::less<>> files;
  NamedTensors tensors;
  for (const auto& [name, entry] : map->items()) {
    const std::string file = entry.is_string() ? entry.get<std::string>() : std::string();
    if (file.empty() || file.find('/') != std::string::npos) {
      return fail(file_error(ErrorCode::WrongType, path, name, "the index names no file beside it"));
    }
    auto read = files.find(file);
    if (read == files.end()) {
      auto opened = read_safetensors(folder / file);
      if (!opened) return fail(opened.error());
      read = files.emplace(file, std::move(*opened)).first;
    }
    const auto found = read->second.find(name);
    if (found == read->second.end()) {
      return fail(file_error(ErrorCode::MissingKey, folder / file, name, "the index has a tensor that the file lacks"));
    }
    tensors.insert(*found);
  }
  return tensors;
}

}  // namespace

Result<NamedTensors> read_weights(const std::string& source) {
  std::error_code code;
  if (!std::filesystem::is_directory(source, code)) {
    return source.ends_with(".json") ? read_index(source) : read_safetensors(source);
  }
  const std::filesystem::path folder = source;
  if (std::filesystem::exists(folder / "model.safetensors", code))
    return read_safetensors(folder / "model.safetensors");
  const std::string index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(index, code)) return read_index(index);
  return fail(file_error(ErrorCode::NotFound, source, "",
                         "the folder has neither model.safetensors nor model.safetensors.index.json"));
}

}  // namespace foreshard::exec
