# The outer forms of a plan, its dependency graph (the only user of Boost.Graph) and its checks.
foreshard_library(plan_io
  SOURCES checks.cpp plan_dag.cpp plan_json.cpp plan_text.cpp detail/check_amounts.cpp detail/check_buffers.cpp
          detail/check_order.cpp detail/check_parts.cpp detail/plan_reader.cpp
  HEADERS checks.h plan_dag.h plan_json.h plan_text.h
  DEPS foreshard::core
  PRIVATE_DEPS Boost::headers fmt::fmt nlohmann_json::nlohmann_json)

# What `plan --layout` adds.
foreshard_library(plan_layout
  SOURCES plan_layout.cpp
  HEADERS plan_layout.h
  DEPS foreshard::core foreshard::model foreshard::units
  PRIVATE_DEPS foreshard::shard_layout fmt::fmt)
