# Configurations of other programs, as job files. YAML is read with libyaml (libyaml-dev).
pkg_check_modules(LIBYAML REQUIRED IMPORTED_TARGET yaml-0.1)
foreshard_library(import
  SOURCES import/import_accelerate.cpp import/import_job.cpp import/import_torchtitan.cpp import/import_transformers.cpp
          import/import_tree.cpp
  HEADERS import/import_job.h import/import_reader.h import/import_tree.h
  DEPS foreshard::core foreshard::job_file
  PRIVATE_DEPS foreshard::model fmt::fmt nlohmann_json::nlohmann_json tomlplusplus::tomlplusplus PkgConfig::LIBYAML)
