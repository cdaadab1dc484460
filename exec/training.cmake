# A training run: data, schedule, and the loop that joins them with the runner and checkpoints.
foreshard_library(training
  SOURCES calibration.cpp calibration_device.cpp calibration_journal.cpp calibration_host.cpp data/batch_source.cpp data/byte_pair_encoder.cpp data/input_ranges.cpp data/sample_order.cpp data/text_pattern.cpp
          data/token_file.cpp evaluation.cpp failure_text.cpp schedule.cpp starting_weights.cpp training_loop.cpp
  HEADERS calibration.h calibration_device.h calibration_host.h calibration_journal.h data/batch_source.h data/byte_pair_encoder.h data/input_ranges.h data/sample_order.h data/text_pattern.h
          data/token_file.h evaluation.h failure_text.h schedule.h starting_weights.h training_loop.h
  DEPS foreshard::exec foreshard::checkpoint foreshard::launch
  PRIVATE_DEPS fmt::fmt nlohmann_json::nlohmann_json
  PRECOMPILED ${PRECOMPILED_TORCH})
# Text is cut into words by PCRE2; without it only files of tokens are read.
pkg_check_modules(PCRE2 QUIET IMPORTED_TARGET libpcre2-8)
if(PCRE2_FOUND)
  target_link_libraries(foreshard_training PRIVATE PkgConfig::PCRE2)
  target_compile_definitions(foreshard_training PRIVATE FORESHARD_WITH_PCRE2)
endif()

# Init, summon, save and load as one rank runs them.
foreshard_library(action_run
  SOURCES action_run.cpp
  HEADERS action_run.h
  DEPS foreshard::action_runner foreshard::training
  PRIVATE_DEPS fmt::fmt
  PRECOMPILED ${PRECOMPILED_TORCH})
