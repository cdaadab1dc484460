# FSDP1's runtime: hooks, streams, limiter and autograd, played through on paper.
foreshard_library(fsdp1
  SOURCES fsdp1/backward.cpp fsdp1/checkpoint.cpp fsdp1/comm_hook.cpp fsdp1/forward.cpp fsdp1/gradients.cpp fsdp1/leaf_autograd.cpp
          fsdp1/runtime.cpp fsdp1/script_actions.cpp fsdp1/traps.cpp fsdp1/unshard.cpp
  HEADERS fsdp1/runtime.h fsdp1/unit_state.h build_plan.h
  DEPS foreshard::core foreshard::model foreshard::graph foreshard::autograd foreshard::units)
