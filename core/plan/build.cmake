# The face: model and job in, checked plan out.
foreshard_library(plan
  SOURCES build_plan.cpp
  HEADERS build_plan.h
  DEPS foreshard::graph foreshard::units foreshard::fsdp1 foreshard::fsdp2 foreshard::plan_io)
