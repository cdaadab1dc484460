#include "core/model/sources/load_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/input_file.h"
#include "core/model/json_input.h"
#include "core/model/model_json.h"
#include "core/model/pt2/model.h"

namespace foreshard {
namespace {

constexpr std::string_view kZipMagic = "PK\x03\x04";

/// The file to read: the source itself, or config.json (else model.json) inside it.
std::string file_of(const std::string& source) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(source, ignored)) return source;
  const std::filesystem::path folder(source);
  for (const char* name : {"config.json", "model.json"}) {
    if (std::filesystem::exists(folder / name, ignored)) return (folder / name).string();
  }
  return {};
}

/// By content; a file that only calls itself an archive is told what is wrong with it as one.
bool is_archive(const std::string& file) {
  if (file.ends_with(".pt2")) return true;
  return beginning_of_file(file, kZipMagic.size()) == kZipMagic;
}

/// A captured program has run in one dtype; no other can be read out of it.
Result<void> check_captured(const Model& model, const ProgramOptions& program, const std::string& file) {
  if (model.lifetimes != Lifetimes::Recorded) return {};
  const auto floating = std::find_if(model.params.begin(), model.params.end(),
                                     [](const ParamInfo& param) { return is_floating(param.dtype); });
  const DType created = floating == model.params.end() ? model.compute_dtype : floating->dtype;
  const DType wanted = program.compute_dtype.value_or(created);
  if (wanted == model.compute_dtype) return {};
  const std::string captured(model.compute_dtype == created ? "none" : dtype_name(model.compute_dtype));
  Error error;
  error.code = ErrorCode::Inconsistent;
  error.message = "the module was captured with another precision than the job computes in";
  error.file = file;
  error.place = "fsdp.mixed_precision.param";
  error.expected = fmt::format("\"{}\", as it was captured", captured);
  error.got = std::string(dtype_name(wanted));
  error.hint = fmt::format("capture it with mixed_precision={{\"param\": \"{}\"}}, or set the job's to \"{}\"",
                           dtype_name(wanted), captured);
  return fail(std::move(error));
}

/// What a script does around a model is written for architectures; other sources bring their own programs.
Result<void> check_scripted(const ModelOptions& options, const std::string& file) {
  const bool loss = options.loss.starts_with("chunked_") || options.loss == "per_token";
  const struct {
    bool asked;
    const char *key, *works;
    std::string got;
  } asked[] = {{loss, "model.loss", "auto", options.loss},
               {options.attention_mask, "model.attention_mask", "false", "true"},
               {options.packed, "model.packed", "false", "true"},
               {options.autocast.has_value(), "model.autocast", "none",
                std::string(options.autocast ? dtype_name(*options.autocast) : "none")},
               {options.float32_outputs, "model.float32_outputs", "false", "true"}};
  for (const auto& one : asked) {
    if (!one.asked) continue;
    return fail({ErrorCode::Unsupported,
                 "only models of a config.json are built with this; an exported or captured program brings its own",
                 file, one.key, one.works, one.got, "export or capture the model with it inside"});
  }
  return {};
}

}  // namespace

Result<Model> load_model(const ModelOptions& options, const ProgramOptions& program) {
  if (options.source.empty()) {
    return fail({ErrorCode::MissingKey,
                 "no model is named",
                 {},
                 "model.source",
                 "a config.json, a folder holding one, a .pt2 archive or a model.json",
                 "nothing",
                 "set model.source"});
  }
  const std::string file = file_of(options.source);
  if (file.empty()) {
    return fail(
        {ErrorCode::NotFound, "this folder holds no model", options.source, {}, "a config.json in it", "none", {}});
  }
  if (is_archive(file)) {
    if (auto plain = check_scripted(options, file); !plain) return fail(std::move(plain.error()));
    return model_from_pt2(file, options, program);
  }
  if (!options.program.empty()) {
    return fail({ErrorCode::Inconsistent, "only an archive of torch.export holds programs to choose from", file,
                 "model.program", "a .pt2 archive as model.source, or no model.program", in_quotes(options.program),
                 "leave model.program out"});
  }
  const JsonLimits limits;
  Result<std::string> text = read_text_file(file, limits.max_text);
  if (!text) return fail(std::move(text.error()));
  Result<nlohmann::json> document = parse_json(*text, file, limits);
  if (!document) return fail(std::move(document.error()));
  const bool is_model_json = document->is_object() && document->contains("schema");
  if (is_model_json)
    if (auto plain = check_scripted(options, file); !plain) return fail(std::move(plain.error()));
  Result<Model> model =
      is_model_json ? model_from_json(*document, file) : model_from_config_json(*document, file, options, program);
  if (!model) return model;
  if (const auto fits = check_captured(*model, program, file); !fits) return fail(fits.error());
  if (model->name.empty()) {
    model->name = std::filesystem::absolute(std::filesystem::path(file)).parent_path().filename().string();
  }
  return model;
}

ProgramOptions program_options(const Job& job, ProgramDevice device) {
  ProgramOptions program;
  program.device = device;
  program.autocast = job.model.autocast;
  if (job.fsdp.runtime != Runtime::None) {
    program.compute_dtype = job.fsdp.mixed_precision.param;
    if (job.fsdp.runtime == Runtime::Fsdp1)
      program.buffer_dtype = job.fsdp.mixed_precision.buffer;  // M9: fsdp2 casts no buffers
    program.gathers_float8 = gathers_float8(job);
    if (job.fsdp.float8_all_gather == "auto") program.even_shards = shard_ranks(job) * job.mesh.tensor;
  }
  return program;
}

}  // namespace foreshard
