#include "exec/checkpoint/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/model/json_input.h"

namespace foreshard::exec {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "foreshard.checkpoint/1";
constexpr std::string_view kFolderPrefix = "step-";
constexpr JsonLimits kLimits{8, 1024 * kMiB, 8192 * kMiB};

std::string sums_text(const std::vector<std::uint32_t>& sums) {
  std::string text;
  for (const std::uint32_t sum : sums) text += fmt::format("{:08x}", sum);
  return text;
}

json written_json(const WrittenFile& written) { return {{"bytes", written.bytes}, {"crc32", sums_text(written.sums)}}; }

json tensor_json(const CheckpointTensor& tensor) {
  json parts = json::array();
  for (const CheckpointPart& part : tensor.parts) {
    json runs = json::array();
    for (const PieceRun& run : part.runs) {
      json fields = json::array({run.offset, run.numel});
      if (run.count > 1) fields.insert(fields.end(), {run.count, run.stride});
      runs.push_back(std::move(fields));
    }
    parts.push_back({{"file", part.file}, {"begin", part.begin}, {"runs", std::move(runs)}});
  }
  json entry = {{"name", tensor.fqn},
                {"slot", tensor.slot},
                {"dtype", dtype_name(tensor.dtype)},
                {"shape", tensor.shape},
                {"parts", std::move(parts)}};
  if (!tensor.persistent) entry["persistent"] = false;
  return entry;
}

json documents_json(const std::map<std::string, WrittenFile>& documents) {
  json texts = json::object();
  for (const auto& [name, written] : documents) texts[name] = written_json(written);
  return texts;
}

/// null: a run without one.
json scaler_json(const std::optional<ScalerState>& scaler) {
  if (!scaler) return {};
  return {{"scale", scaler->scale}, {"growth_tracker", scaler->growth_tracker}};
}

json manifest_json(const CheckpointManifest& m) {
  json files = json::array();
  for (const CheckpointFile& file : m.files) {
    json entry = written_json(file.written);
    entry["name"] = file.name;
    if (file.rng.numel > 0) entry["rng"] = json::array({file.rng.offset, file.rng.numel});
    files.push_back(std::move(entry));
  }
  json tensors = json::array();
  for (const CheckpointTensor& tensor : m.tensors) tensors.push_back(tensor_json(tensor));
  json manifest = {{"format", kFormat},
                   {"block_bytes", kBlockBytes},
                   {"model", m.model},
                   {"architecture", m.architecture},
                   {"step", m.progress.step},
                   {"samples", m.progress.samples},
                   {"seed", m.progress.seed},
                   {"data", m.progress.data},
                   {"optimizer_steps", m.optimizer_steps},
                   {"world_size", m.world_size},
                   {"files", std::move(files)},
                   {"tensors", std::move(tensors)},
                   {"shared", m.shared},
                   {"documents", documents_json(m.documents)}};
  if (m.scaler) manifest["grad_scaler"] = scaler_json(m.scaler);
  return manifest;
}

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string own_sum(const json& value) {
  const std::string text = dumped(value);
  return fmt::format("{:08x}", crc32_of(std::as_bytes(std::span(text))));
}

/// Reads the fields of the document; the first thing that does not fit is thrown as an Error and caught in
/// parse_manifest: the document has many fields, and none of them is read elsewhere.
class ManifestReader {
 public:
  explicit ManifestReader(std::string file) : file_(std::move(file)) {}

  CheckpointManifest read(const json& document) {
    CheckpointManifest m;
    m.model = text(document, "model");
    m.architecture = text(document, "architecture");
    m.progress.step = number(document, "step");
    m.progress.samples = number(document, "samples");
    m.progress.seed = number(document, "seed", std::numeric_limits<std::int64_t>::min());
    m.progress.data = text(document, "data");
    m.optimizer_steps = number(document, "optimizer_steps");
    if (document.contains("grad_scaler")) m.scaler = scaler(object(document, "grad_scaler"));
    const auto world_size = number(document, "world_size", 1);
    const json& files = list(document, "files");
    if (world_size != static_cast<std::int64_t>(files.size())) bad("files", "one file a rank");
    m.world_size = static_cast<int>(world_size);
    for (const json& entry : files) m.files.push_back(file(entry));
    for (const json& entry : list(document, "tensors")) {
      m.tensors.push_back(tensor(entry, m.files));
    }
    for (const auto& [name, owner] : object(document, "shared").items()) {
      if (!owner.is_string()) bad("shared", "names");
      m.shared[name] = owner.get<std::string>();
    }
    for (const auto& [name, entry] : object(document, "documents").items()) m.documents[plain(name)] = written(entry);
    check_together(m);
    check_nothing_else(document, m);
    return m;
  }

  [[noreturn]] void bad(std::string place, std::string expected, std::string got = "something else") const {
    Error error;
    error.file = file_;
    error.place = std::move(place);
    error.message = "the manifest is damaged";
    error.expected = std::move(expected);
    error.got = std::move(got);
    error.hint = "use an older checkpoint";
    throw error;
  }

 private:
  /// Numbers that are right by themselves and wrong beside each other.
  void check_together(const CheckpointManifest& m) const {
    if (m.scaler && !(std::isfinite(m.scaler->scale) && m.scaler->scale > 0))
      bad("grad_scaler.scale", "a number above 0", fmt::format("{}", m.scaler->scale));
    for (int rank = 0; rank < m.world_size; ++rank) {
      const std::string& name = m.files[static_cast<std::size_t>(rank)].name;
      if (name != rank_file_name(rank, m.world_size))
        bad(fmt::format("files[{}].name", rank), rank_file_name(rank, m.world_size), name);
    }
    std::map<std::pair<std::string_view, std::string_view>, const CheckpointTensor*> by_name;
    for (const CheckpointTensor& tensor : m.tensors) {
      if (!by_name.try_emplace({tensor.slot, tensor.fqn}, &tensor).second)
        bad(entry_name(tensor), "each tensor once", "twice");
    }
    for (const CheckpointTensor& tensor : m.tensors) {
      if (tensor.slot == "param" || tensor.slot == "buffer") continue;
      const auto param = by_name.find({"param", tensor.fqn});
      if (param == by_name.end()) bad(entry_name(tensor), "a parameter of that name", "none");
      if (param->second->shape != tensor.shape) bad(entry_name(tensor), "the shape of its parameter", "another");
    }
    for (const auto& [name, owner] : m.shared) {
      if (!by_name.contains({"param", owner})) bad("shared." + name, "the name of a parameter", owner);
    }
    check_bytes(m);
  }

  /// What is written of the value is the document: nothing in it was passed over.
  void check_nothing_else(const json& document, const CheckpointManifest& m) const {
    const json differs = json::diff(manifest_json(m), document);
    if (differs.empty()) return;
    const json& first = differs.front();
    bad(first["path"].get<std::string>().substr(1), first["op"] == "remove" ? "the key" : "what a writer writes",
        first.contains("value") ? dumped(first["value"]) : "none");
  }

  /// No byte of a file belongs to two tensors.
  void check_bytes(const CheckpointManifest& m) const {
    struct Range {
      std::int32_t file;
      Bytes begin, end;
      std::string_view fqn;
    };
    std::vector<Range> ranges;
    for (std::size_t file = 0; file < m.files.size(); ++file) {
      const Extent& rng = m.files[file].rng;
      if (rng.numel > 0) ranges.push_back({static_cast<std::int32_t>(file), rng.offset, rng.end(), "rng"});
    }
    for (const CheckpointTensor& tensor : m.tensors) {
      for (const CheckpointPart& part : tensor.parts) {
        Numel numel = 0;
        for (const PieceRun& run : part.runs) numel += run.numel * run.count;
        ranges.push_back({part.file, part.begin, part.begin + numel * itemsize(tensor.dtype), tensor.fqn});
      }
    }
    std::ranges::sort(ranges, [](const Range& a, const Range& b) {
      return std::tie(a.file, a.begin, a.end) < std::tie(b.file, b.begin, b.end);
    });
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      const Range &before = ranges[i - 1], &range = ranges[i];
      if (before.file == range.file && range.begin < before.end)
        bad(std::string(range.fqn), fmt::format("bytes behind those of {}, from {}", before.fqn, before.end),
            fmt::format("byte {} of file {}", range.begin, range.file));
    }
  }

  static std::string entry_name(const CheckpointTensor& tensor) { return tensor.slot + "/" + tensor.fqn; }

  const json& field(const json& from, const char* key) const {
    if (!from.is_object()) bad(key, "an object");
    const auto found = from.find(key);
    if (found == from.end()) bad(key, "the key");
    return *found;
  }
  std::string text(const json& from, const char* key) const {
    const json& value = field(from, key);
    if (!value.is_string()) bad(key, "text");
    return value.get<std::string>();
  }
  const json& list(const json& from, const char* key) const {
    const json& value = field(from, key);
    if (!value.is_array()) bad(key, "a list");
    return value;
  }
  const json& object(const json& from, const char* key) const {
    const json& value = field(from, key);
    if (!value.is_object()) bad(key, "an object");
    return value;
  }
  std::int64_t integer(const json& value, const char* key, std::int64_t least = 0) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) ||
        value.get<std::int64_t>() < least) {
      bad(key, "a number");
    }
    return value.get<std::int64_t>();
  }
  ScalerState scaler(const json& from) const {
    const auto scale = from.find("scale");
    if (scale == from.end() || !scale->is_number()) bad("grad_scaler.scale", "a number");
    return {scale->get<double>(), number(from, "growth_tracker")};
  }

  std::int64_t number(const json& from, const char* key, std::int64_t least = 0) const {
    return integer(field(from, key), key, least);
  }

  /// A file beside the manifest and nowhere else.
  std::string plain(const std::string& name) const {
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      bad("files", "names without folders");
    }
    return name;
  }

  WrittenFile written(const json& entry) const {
    WrittenFile file;
    file.bytes = number(entry, "bytes");
    const std::string sums = text(entry, "crc32");
    const auto blocks =
        static_cast<std::uint64_t>((file.bytes / kBlockBytes) + (file.bytes % kBlockBytes != 0 ? 1 : 0));
    if (sums.size() % 8 != 0 || sums.size() / 8 != blocks) bad("crc32", "a sum for each block");
    for (std::size_t i = 0; i < sums.size(); i += 8) {
      std::uint32_t sum = 0;
      const auto [end, code] = std::from_chars(sums.data() + i, sums.data() + i + 8, sum, 16);
      if (code != std::errc() || end != sums.data() + i + 8) bad("crc32", "hexadecimal digits");
      file.sums.push_back(sum);
    }
    return file;
  }

  CheckpointFile file(const json& entry) const {
    CheckpointFile file{plain(text(entry, "name")), written(entry), {}};
    if (entry.contains("rng")) {
      const json& rng = list(entry, "rng");
      if (rng.size() != 2) bad("rng", "a place and a size");
      file.rng = {integer(rng[0], "rng"), integer(rng[1], "rng")};
      if (file.rng.numel > file.written.bytes || file.rng.offset > file.written.bytes - file.rng.numel) {
        bad("rng", "bytes of the file");
      }
    }
    return file;
  }

  PieceRun run(const json& fields, Numel whole) const {
    if (!fields.is_array() || (fields.size() != 2 && fields.size() != 4))
      bad("runs", "[offset, numel(, count, stride)]");
    PieceRun run{integer(fields[0], "runs"), integer(fields[1], "runs", 1), 1, 0};
    if (fields.size() == 4) {
      run.count = integer(fields[2], "runs", 2);
      run.stride = integer(fields[3], "runs", run.numel);
    }
    const bool fits = run.numel <= whole && run.offset <= whole - run.numel &&
                      (run.count == 1 || run.stride <= (whole - run.numel - run.offset) / (run.count - 1));
    if (!fits) bad("runs", "elements of the tensor");
    return run;
  }

  CheckpointTensor tensor(const json& entry, const std::vector<CheckpointFile>& files) const {
    CheckpointTensor tensor;
    tensor.fqn = text(entry, "name");
    tensor.slot = text(entry, "slot");
    const auto dtype = parse_dtype(text(entry, "dtype"));
    if (!dtype) bad(tensor.fqn, "an element type");
    tensor.dtype = *dtype;
    Numel whole = 1;
    for (const json& size : list(entry, "shape")) {
      tensor.shape.push_back(integer(size, "shape"));
      if (tensor.shape.back() != 0 && whole > (Numel{1} << 56) / tensor.shape.back()) bad(tensor.fqn, "a shape");
      whole *= tensor.shape.back();
    }
    Numel held = 0;
    for (const json& from : list(entry, "parts")) {
      CheckpointPart part;
      const auto index = number(from, "file");
      if (index >= static_cast<std::int64_t>(files.size())) bad(tensor.fqn, "one of the files");
      part.file = static_cast<std::int32_t>(index);
      part.begin = number(from, "begin");
      Numel numel = 0;
      for (const json& fields : list(from, "runs")) {
        part.runs.push_back(run(fields, whole));
        numel += part.runs.back().numel * part.runs.back().count;
        if (numel > whole) bad(tensor.fqn, "each element once");
      }
      const Bytes bytes = files[static_cast<std::size_t>(index)].written.bytes;
      if (part.begin > bytes || numel > (bytes - part.begin) / itemsize(tensor.dtype))
        bad(tensor.fqn, "bytes of the file");
      held += numel;
      if (held > whole) bad(tensor.fqn, "each element once");
      tensor.parts.push_back(std::move(part));
    }
    if (held != whole) bad(tensor.fqn, fmt::format("{} elements", whole), fmt::format("{}", held));
    std::vector<std::vector<PieceRun>> runs;
    for (const CheckpointPart& part : tensor.parts) runs.push_back(part.runs);
    const std::string flaw = coverage_flaw(runs, whole);
    if (!flaw.empty()) bad(tensor.fqn, "each element once", flaw);
    if (entry.contains("persistent")) tensor.persistent = entry["persistent"] != false;
    return tensor;
  }

  std::string file_;
};

Error incomplete(const std::string& path, std::string got) {
  Error error;
  error.code = ErrorCode::NotFound;
  error.file = path;
  error.message = "the checkpoint is incomplete";
  error.expected = "every file that its manifest names";
  error.got = std::move(got);
  error.hint = "the run ended while it wrote; use an older checkpoint";
  return error;
}

/// A folder may be called anything; one that is named after a step holds that step.
Result<void> check_folder_name(const CheckpointManifest& manifest, const std::string& folder) {
  std::filesystem::path path(folder);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename(), wanted = checkpoint_folder_name(manifest.progress.step);
  std::int64_t step = 0;
  if (!name.starts_with(kFolderPrefix)) return {};
  const auto [end, code] = std::from_chars(name.data() + kFolderPrefix.size(), name.data() + name.size(), step);
  if (code != std::errc() || end != name.data() + name.size() || step == manifest.progress.step) return {};
  return fail(Error{.code = ErrorCode::Inconsistent,
                    .message = "the manifest is of another step than its folder's name",
                    .file = folder + "/" + std::string(kManifestName),
                    .place = "step",
                    .expected = fmt::format("{}", step),
                    .got = fmt::format("{}", manifest.progress.step),
                    .hint = "use an older checkpoint, or give the folder back its name " + wanted});
}

Result<void> check_files(const CheckpointManifest& manifest, const std::string& folder) {
  std::map<std::string, Bytes> files;
  for (const CheckpointFile& file : manifest.files) files[file.name] = file.written.bytes;
  for (const auto& [name, written] : manifest.documents) files[name] = written.bytes;
  for (const auto& [name, bytes] : files) {
    std::error_code code;
    const std::string path = folder + "/" + name;
    const auto size = std::filesystem::file_size(path, code);
    if (code) return fail(incomplete(path, code.message()));
    if (static_cast<Bytes>(size) == bytes) continue;
    Error error = incomplete(path, fmt::format("{} bytes", size));
    error.code = ErrorCode::Inconsistent;
    error.expected = fmt::format("{} bytes", bytes);
    return fail(std::move(error));
  }
  return {};
}

}  // namespace

const CheckpointTensor* CheckpointManifest::find(std::string_view fqn, std::string_view slot) const {
  const auto found = std::ranges::find_if(
      tensors, [&](const CheckpointTensor& tensor) { return tensor.fqn == fqn && tensor.slot == slot; });
  return found == tensors.end() ? nullptr : &*found;
}

std::map<std::string, std::string> manifest_marks(const CheckpointManifest& manifest, int rank) {
  json shapes = json::object(), transient = json::array();
  for (const CheckpointTensor& tensor : manifest.tensors) {
    const std::string name = tensor.slot + "/" + tensor.fqn;
    if (tensor.slot == "param" || tensor.slot == "buffer") shapes[name] = tensor.shape;  // moments have their param's
    if (!tensor.persistent) transient.push_back(name);
  }
  std::map<std::string, std::string> marks = {{"step", std::to_string(manifest.progress.step)},
                                              {"samples", std::to_string(manifest.progress.samples)},
                                              {"seed", std::to_string(manifest.progress.seed)},
                                              {"data", manifest.progress.data},
                                              {"optimizer_steps", std::to_string(manifest.optimizer_steps)},
                                              {"model", manifest.model},
                                              {"architecture", manifest.architecture},
                                              {"world_size", std::to_string(manifest.world_size)},
                                              {"grad_scaler", dumped(scaler_json(manifest.scaler))},
                                              {"shared", dumped(manifest.shared)},
                                              {"shapes", dumped(shapes)},
                                              {"not_persistent", dumped(transient)}};
  if (rank == 0) marks["documents"] = dumped(documents_json(manifest.documents));
  return marks;
}

std::string manifest_text(const CheckpointManifest& manifest) {
  json document = manifest_json(manifest);
  const std::string sum = own_sum(document);
  document["checksum"] = sum;
  return dumped(document) + "\n";
}

Result<CheckpointManifest> parse_manifest(std::string_view text, const std::string& file) {
  auto document = parse_json(text, file, kLimits);
  if (!document) return fail(document.error());
  const ManifestReader reader(file);
  try {
    if (!document->is_object()) reader.bad("", "an object");
    const json named = document->value("format", json());
    const std::string format = named.is_string() ? named.get<std::string>() : describe_json(named);
    if (format != kFormat) {
      Error error{ErrorCode::Unsupported, "the manifest is of another format", file, "format", kFormat, format, ""};
      return fail(std::move(error));
    }
    const json sum = document->value("checksum", json());
    document->erase("checksum");
    if (sum != own_sum(*document)) reader.bad("checksum", own_sum(*document));
    if (document->value("block_bytes", json()) != kBlockBytes)
      reader.bad("block_bytes", fmt::format("{}", kBlockBytes));
    return ManifestReader(file).read(*document);
  } catch (const Error& error) {
    return fail(error);
  }
}

Result<CheckpointManifest> read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kManifestName);
  std::error_code code;
  if (!std::filesystem::is_directory(folder, code)) {
    return fail(Error{.code = ErrorCode::NotFound,
                      .message = "there is no such folder",
                      .file = folder,
                      .expected = "a checkpoint, or the folder that holds them",
                      .got = "nothing to read",
                      .hint = "check the path; train.checkpoint.dir of the job says where a run writes"});
  }
  if (!std::filesystem::exists(path, code)) return fail(incomplete(path, "no manifest"));
  const auto text = read_text_file(path, kLimits.max_text);
  if (!text) return fail(text.error());
  auto manifest = parse_manifest(*text, path);
  if (!manifest) return manifest;
  if (const auto checked = check_folder_name(*manifest, folder); !checked) return fail(checked.error());
  if (const auto checked = check_files(*manifest, folder); !checked) return fail(checked.error());
  return manifest;
}

std::string checkpoint_folder_name(std::int64_t step) { return fmt::format("{}{:010}", kFolderPrefix, step); }

std::string rank_file_name(int rank, int world_size) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", rank, world_size);
}

std::vector<std::string> checkpoint_folders(const std::string& dir) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(dir, code)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kFolderPrefix)) continue;
    std::int64_t step = 0;
    const auto [end, status] = std::from_chars(name.data() + kFolderPrefix.size(), name.data() + name.size(), step);
    if (status != std::errc() || end != name.data() + name.size()) continue;
    found.emplace_back(step, entry.path());
  }
  std::ranges::sort(found, std::greater{});
  std::vector<std::string> folders;
  for (auto& [step, path] : found) folders.push_back(std::move(path));
  return folders;
}

Result<std::string> locate_checkpoint(const std::string& path) {
  std::error_code code;
  const auto folders = checkpoint_folders(path);
  if (folders.empty() || std::filesystem::exists(path + "/" + std::string(kManifestName), code)) {
    const auto manifest = read_manifest(path);
    if (!manifest) return fail(manifest.error());
    return path;
  }
  Result<std::string> last = path;
  for (const std::string& folder : folders) {
    const auto manifest = read_manifest(folder);
    if (manifest) return folder;
    last = fail(manifest.error());
  }
  return last;
}

}  // namespace foreshard::exec
