#include "core/model/sources/load_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/code_name.h"
#include "core/input_file.h"
#include "core/model/json_input.h"
#include "core/model/model_json.h"
#include "core/model/pt2/model.h"
#include "core/model/sources/model_code.h"

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

bool has_size(const Model& model, std::size_t dim, std::int64_t size) {
  return std::any_of(model.inputs.begin(), model.inputs.end(), [&](ValueId input) {
    const Shape& shape = model.values[input.index()].shape;
    return dim < shape.size() && shape[dim] == size;
  });
}

/// A captured program has the sizes that it ran with: another batch or length would be another program. A batch of one
/// is nobody's wish, it is what a job has by itself.
Result<void> check_sizes(const Model& model, const ModelOptions& options, const std::string& file) {
  if (model.lifetimes != Lifetimes::Recorded || model.inputs.empty()) return {};
  const struct {
    bool asked;
    const char* key;
    std::size_t dim;  // of an input
    std::int64_t size;
  } wishes[] = {{options.batch != 1, "model.batch", 0, options.batch},
                {options.seq_given && model.tokens_per_batch > 0, "model.seq", 1, options.seq}};
  for (const auto& wish : wishes) {
    if (!wish.asked || has_size(model, wish.dim, wish.size)) continue;
    const ValueInfo& first = model.values[model.inputs.front().index()];
    Error error;
    error.code = ErrorCode::Inconsistent;
    error.message = "this program was captured with other sizes, and has no others";
    error.file = file;
    error.place = wish.key;
    error.expected = fmt::format("a size of its inputs, as in {} [{}]", first.name, fmt::join(first.shape, ", "));
    error.got = std::to_string(wish.size);
    error.hint = "capture it with a batch of this size, or leave " + std::string(wish.key) + " out";
    return fail(std::move(error));
  }
  return {};
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

/// What a job asks that no capture of a module by itself can say.
bool asks_for_script(const ModelOptions& options, const ProgramOptions& program) {
  return !check_scripted(options, {}) || program.gathers_float8 || options.float8 != "none" ||
         (options.loss != "auto" && options.loss != "cross_entropy") ||
         (options.attention != "sdpa" && options.attention != "eager");
}

ModelCode code_of(const std::string& source, const ModelOptions& options, const ProgramOptions& program) {
  ModelCode code;
  code.source = source;
  code.batch = options.batch;
  code.seq = options.seq_given || program.sequence_parts > 1 ? options.seq : 0;
  code.target_seq = options.target_seq;
  code.dtype = options.dtype;
  code.compute_dtype = program.compute_dtype;
  code.buffer_dtype = program.buffer_dtype;
  code.eager_attention = options.attention == "eager";
  return code;
}

Result<Model> captured_as(const ModelCode& code) {
  const Result<std::string> text = code_runner()(code);
  if (!text) return fail(text.error());
  const Result<nlohmann::json> document = parse_json(*text, code.source, JsonLimits{});
  if (!document) return fail(document.error());
  return model_from_json(*document, code.source);
}

/// Ranks that share a sequence run the program of a part of it, which is that of the whole only where the whole would
/// choose no other kernels: a window that is longer than the part alone makes a mask of the whole.
Result<void> check_whole_sequence(const Model& part, ModelCode code, std::int64_t parts) {
  code.seq *= parts;
  const Result<Model> whole = captured_as(code);
  if (!whole) return fail(whole.error());
  if (std::equal(part.ops.begin(), part.ops.end(), whole->ops.begin(), whole->ops.end(),
                 [](const Op& a, const Op& b) { return a.name == b.name; }))
    return {};
  return fail({ErrorCode::Unsupported, "over the whole sequence this model runs other operators than over a part of it",
               code.source, "mesh.context", "attention without masks of its own", std::to_string(parts),
               "set mesh.context = 1"});
}

/// The model.json that the code itself was captured into.
Result<Model> captured_model(const std::string& source, const ModelOptions& options, const ProgramOptions& program) {
  const ModelCode code = code_of(source, options, program);
  Result<Model> model = captured_as(code);
  if (!model) return model;
  if (auto fits = check_sizes(*model, options, source); !fits) return fail(fits.error());
  if (program.sequence_parts > 1)
    if (auto same = check_whole_sequence(*model, code, program.sequence_parts); !same) return fail(same.error());
  return model;
}

Result<Model> model_of_name(const ModelOptions& options, const ProgramOptions& program) {
  if (auto plain = check_scripted(options, options.source); !plain) return fail(std::move(plain.error()));
  const bool attention = options.attention != "sdpa";
  if (attention || asks_for_script(options, program)) {
    return fail({ErrorCode::Unsupported, "this is decided by the model's own code", options.source,
                 attention                  ? "model.attention"
                 : options.float8 != "none" ? "model.float8"
                                            : "model.loss",
                 "the default", in_quotes(attention ? options.attention : options.loss),
                 "write it into the function, and leave the key out"});
  }
  if (code_runner()) return captured_model(options.source, options, program);
  return fail({ErrorCode::Unsupported, "this model is code, and nothing here runs code", options.source, "model.source",
               "a config.json, a .pt2 archive or a model.json", in_quotes(options.source),
               "capture it: python -m foreshard.from_code (docs/models.md)"});
}

/// The library's own code is asked for what no builder here knows. Where it cannot be, the builder's word stands.
Result<Model> model_of_config(const nlohmann::json& document, const std::string& file, const ModelOptions& options,
                              const ProgramOptions& program) {
  Result<Model> built = model_from_config_json(document, file, options, program);
  if (built || built.error().code != ErrorCode::Unsupported || !code_runner()) return built;
  if (built.error().place.starts_with("model.") || asks_for_script(options, program)) return built;
  Result<Model> captured = captured_model(file, options, program);
  if (captured) return captured;
  Error error = captured.error();
  error.file = file;
  error.message = fmt::format("{}: {}; and its own code could not be captured: {}", built.error().place,
                              built.error().message, error.message);
  return fail(std::move(error));
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
  if (is_code_name(options.source)) return model_of_name(options, program);
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
      is_model_json ? model_from_json(*document, file) : model_of_config(*document, file, options, program);
  if (!model) return model;
  if (const auto fits = check_captured(*model, program, file); !fits) return fail(fits.error());
  if (is_model_json)
    if (const auto fits = check_sizes(*model, options, file); !fits) return fail(fits.error());
  if (model->name.empty()) {
    model->name = std::filesystem::absolute(std::filesystem::path(file)).parent_path().filename().string();
  }
  return model;
}

Result<nlohmann::json> config_of_model(const Model& model, const std::string& source) {
  nlohmann::json none;
  if (model.lifetimes != Lifetimes::Built || model.architecture.empty()) return none;
  const std::string file = file_of(source);
  if (file.empty() || is_archive(file)) return none;
  Result<nlohmann::json> document = read_json_file(file);
  if (document && !(document->is_object() && document->contains("model_type"))) return none;
  return document;
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
