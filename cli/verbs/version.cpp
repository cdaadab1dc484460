#include <fmt/format.h>

#include "cli/console/json_text.h"
#include "cli/verbs/verbs.h"

namespace foreshard::cli {
namespace {

constexpr const char* kSchemas[] = {"foreshard.model/2",      "foreshard.inspect/1", "foreshard.plan/1",
                                    "foreshard.prediction/1", "foreshard.profile/1", "foreshard.chrome/1",
                                    "foreshard.fst/1"};

}  // namespace

ExitCode run_verb(const VersionFlags&, const Console& console) {
  if (!console.json) {
    return console.result(fmt::format("foreshard {}\nquirks: torch-2.11; compiler {}; {} build\n", FORESHARD_VERSION,
                                      FORESHARD_COMPILER, FORESHARD_BUILD_TYPE))
               ? ExitCode::Ok
               : ExitCode::RunFailed;
  }
  JsonText out;
  out.begin_object()
      .field("schema", "foreshard.version/1")
      .field("version", FORESHARD_VERSION)
      .field("quirks", "torch-2.11");
  out.field("compiler", FORESHARD_COMPILER).field("build", FORESHARD_BUILD_TYPE).key("schemas").begin_array();
  for (const char* schema : kSchemas) out.value(schema);
  out.end_array().end_object();
  return console.result(out.take()) ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
