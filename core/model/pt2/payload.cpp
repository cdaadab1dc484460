#include "core/model/pt2/payload.h"

#include <zip.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/model/json_input.h"
#include "core/model/pt2/archive.h"
#include "core/model/pt2/zip_handles.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;
using Payloads = std::map<std::string, Pt2Payload, std::less<>>;

Error payload_error(ErrorCode code, const std::string& file, std::string place, std::string message,
                    std::string expected, std::string got) {
  return {code, std::move(message), file, std::move(place), std::move(expected), std::move(got), {}};
}

/// The archive's own numbers (spec of the format, section 1), not c10's.
std::optional<DType> dtype_of(const Json& value) {
  constexpr std::array<std::pair<int, DType>, 14> kKnown{{{1, DType::UInt8},
                                                          {2, DType::Int8},
                                                          {3, DType::Int16},
                                                          {4, DType::Int32},
                                                          {5, DType::Int64},
                                                          {6, DType::Float16},
                                                          {7, DType::Float32},
                                                          {8, DType::Float64},
                                                          {10, DType::Complex64},
                                                          {11, DType::Complex128},
                                                          {12, DType::Bool},
                                                          {13, DType::BFloat16},
                                                          {29, DType::Float8E4M3},
                                                          {30, DType::Float8E5M2}}};
  if (!value.is_number_integer()) return std::nullopt;
  for (const auto& [number, dtype] : kKnown) {
    if (value == number) return dtype;
  }
  return std::nullopt;
}

bool read_sizes(const Json& meta, const char* key, std::vector<std::int64_t>& out) {
  const auto list = meta.find(key);
  if (list == meta.end() || !list->is_array() || list->size() > 16) return false;
  for (const Json& size : *list) {
    if (!size.is_object() || !size.contains("as_int") || !size["as_int"].is_number_integer()) return false;
    out.push_back(size["as_int"].get<std::int64_t>());
    if (out.back() < 0) return false;
  }
  return true;
}

/// 0 if there is no such member.
Bytes member_bytes(zip_t* zip, const std::string& member) {
  zip_stat_t stat;
  zip_stat_init(&stat);
  const bool known = zip_stat(zip, member.c_str(), ZIP_FL_ENC_RAW, &stat) == 0 && (stat.valid & ZIP_STAT_SIZE) != 0;
  return known ? static_cast<Bytes>(stat.size) : 0;
}

Result<Zip> open_zip(const std::string& path) {
  int code = 0;
  Zip zip(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (zip) return zip;
  return fail(payload_error(ErrorCode::BadSyntax, path, {}, "the archive cannot be opened", "a zip archive",
                            "code " + std::to_string(code)));
}

/// The last element that the view reaches lies in the storage.
bool fits(const Pt2Payload& payload) {
  if (payload.sizes.size() != payload.strides.size() || payload.offset < 0) return false;
  std::int64_t last = payload.offset;
  for (std::size_t i = 0; i < payload.sizes.size(); ++i) {
    if (payload.sizes[i] == 0) return true;
    std::int64_t reach = 0;
    if (payload.strides[i] < 0 || __builtin_mul_overflow(payload.sizes[i] - 1, payload.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return false;
  }
  return last < payload.bytes / itemsize(payload.dtype);
}

Result<void> read_config(const std::string& text, const std::string& name, const std::string& folder,
                         const std::string& file, zip_t* zip, Payloads& payloads) {
  if (text.empty()) return {};
  const Result<Json> document = parse_json(text, file);
  if (!document) return fail(document.error());
  const auto config = document->find("config");
  if (!document->is_object() || config == document->end()) return {};
  for (const auto& item : config->items()) {
    const std::string& fqn = item.key();
    const Json& entry = item.value();
    const auto bad = [&](std::string message, std::string expected, std::string got) {
      return fail(payload_error(ErrorCode::Inconsistent, file, name + " " + in_quotes(fqn), std::move(message),
                                std::move(expected), std::move(got)));
    };
    if (!entry.is_object() || !entry.contains("path_name") || !entry["path_name"].is_string())
      return bad("a weight has no path_name", "the name of a member", "none");
    Pt2Payload payload;
    const auto path = entry["path_name"].get<std::string>();
    if (path.find_first_of("/\\:") != path.npos)
      return bad("the path of a weight leads out of the archive", "a plain name", in_quotes(path));
    payload.member = folder + path;
    payload.pickled = entry.value("use_pickle", false);
    const auto meta = entry.find("tensor_meta");
    if (payload.pickled || meta == entry.end() || !meta->is_object()) {
      payload.pickled = true;
      payloads.emplace(fqn, std::move(payload));
      continue;
    }
    const auto dtype = meta->contains("dtype") ? dtype_of((*meta)["dtype"]) : std::nullopt;
    if (!dtype || !read_sizes(*meta, "sizes", payload.sizes) || !read_sizes(*meta, "strides", payload.strides))
      return bad("the description of a weight cannot be read", "dtype, sizes and strides", "others");
    payload.dtype = *dtype;
    if (const auto offset = meta->find("storage_offset"); offset != meta->end() && offset->is_object() &&
                                                          offset->contains("as_int") &&
                                                          (*offset)["as_int"].is_number_integer())
      payload.offset = (*offset)["as_int"].get<std::int64_t>();
    payload.bytes = member_bytes(zip, payload.member);
    if (payload.bytes > 0 && !fits(payload))
      return bad("a weight reaches beyond its storage", std::to_string(payload.bytes) + " bytes", "more");
    payloads.emplace(fqn, std::move(payload));
  }
  return {};
}

}  // namespace

Result<Payloads> list_pt2_payloads(const std::string& path, std::string_view program) {
  const Result<Pt2Members> members = read_pt2_archive(path, program);
  if (!members) return fail(members.error());
  if (members->weights_name.empty()) {
    Error error = payload_error(ErrorCode::Unsupported, path, "serialized_state_dict.pt",
                                "an archive of PyTorch 2.7 or before keeps its weights as pickles, which are not read",
                                "an archive of PyTorch 2.8 or later", "an older one");
    error.hint = "save it again with a newer PyTorch, or give the weights as safetensors";
    return fail(std::move(error));
  }
  const Result<Zip> zip = open_zip(path);
  if (!zip) return fail(zip.error());
  Payloads payloads;
  for (const auto* config : {&members->weights_name, &members->constants_name}) {
    const bool weights = config == &members->weights_name;
    const std::string folder = config->substr(0, config->rfind('/') + 1);
    auto read =
        read_config(weights ? members->weights : members->constants, *config, folder, path, zip->get(), payloads);
    if (!read) return fail(std::move(read.error()));
  }
  return payloads;
}

Result<std::string> read_pt2_payload(const std::string& path, const std::string& member, Bytes bytes) {
  const auto bad = [&](std::string message, std::string expected, std::string got) {
    return fail(
        payload_error(ErrorCode::BadSyntax, path, member, std::move(message), std::move(expected), std::move(got)));
  };
  const Result<Zip> zip = open_zip(path);
  if (!zip) return fail(zip.error());
  const ZipFile file(zip_fopen(zip->get(), member.c_str(), ZIP_FL_ENC_RAW));
  if (!file) return bad("the member of the archive cannot be opened", "a readable member", zip_strerror(zip->get()));
  std::string data(static_cast<std::size_t>(bytes), '\0');
  std::size_t done = 0;
  for (;;) {  // until the end is seen: only then is the checksum compared
    char beyond = 0;
    const bool full = done == data.size();
    const zip_int64_t n =
        full ? zip_fread(file.get(), &beyond, 1) : zip_fread(file.get(), data.data() + done, data.size() - done);
    if (n < 0)
      return bad("the member of the archive is damaged", "data with the checksum that is noted",
                 zip_error_strerror(zip_file_get_error(file.get())));
    if (n == 0) break;
    if (full) return bad("the member is larger than its size says", std::to_string(bytes) + " bytes", "more");
    done += static_cast<std::size_t>(n);
  }
  if (done != data.size())
    return bad("the member of the archive is truncated", std::to_string(bytes) + " bytes", std::to_string(done));
  return data;
}

}  // namespace foreshard
