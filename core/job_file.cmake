# The job file: the only part of core that reads TOML.
foreshard_library(job_file
  SOURCES job_file.cpp job_keys.cpp detail/job_composites.cpp detail/job_values.cpp
  HEADERS job_file.h job_keys.h
  DEPS foreshard::core
  PRIVATE_DEPS fmt::fmt tomlplusplus::tomlplusplus)
