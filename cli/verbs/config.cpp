#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/console/json_text.h"
#include "cli/session/job_source.h"
#include "cli/verbs/verbs.h"
#include "core/text/format_append.h"

namespace foreshard::cli {
namespace {

std::string config_json(const LoadedJob& loaded) {
  JsonText out(2);
  out.begin_object().field("schema", "foreshard.config/1").field("file", loaded.file).key("values").begin_array();
  for (const EffectiveValue& value : loaded.values) {
    out.begin_object().field("key", value.key).field("value", value.value).field("origin", value.origin).end_object();
  }
  out.end_array().key("warnings").begin_array();
  for (const std::string& warning : loaded.warnings) out.value(warning);
  out.end_array().end_object();
  return out.take();
}

// Aligned by the longest ordinary line, so that one long list does not push everything to the right.
std::string origin_table(const LoadedJob& loaded, const Console& console) {
  constexpr std::size_t kWidest = 64;
  std::size_t width = 0;
  for (const EffectiveValue& value : loaded.values)
    width = std::max(width, std::min(kWidest, value.key.size() + value.value.size() + 3));
  std::string text;
  for (const EffectiveValue& value : loaded.values) {
    const std::string left = fmt::format("{} = {}", value.key, value.value);
    const bool plain = !console.color || value.origin == "default";
    format_append(text, "{:<{}}  {}# {}{}\n", left, width, plain ? "" : "\x1b[36m", value.origin,
                  plain ? "" : "\x1b[0m");
  }
  return text;
}

}  // namespace

ExitCode run_verb(const ConfigFlags& flags, const Console& console) {
  const auto loaded = load_job(flags.job, console);
  if (!loaded) return console.error(loaded.error());
  const std::string text = console.json   ? config_json(*loaded)
                           : flags.origin ? origin_table(*loaded, console)
                                          : job_to_toml(loaded->job);
  return console.result(text) ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
