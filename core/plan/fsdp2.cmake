# FSDP2: per-parameter layouts, and the runtime that walks the module graph.
foreshard_library(shard_layout
  SOURCES shard_layout.cpp
  HEADERS shard_layout.h
  DEPS foreshard::core foreshard::model
  PRIVATE_DEPS fmt::fmt)

foreshard_library(fsdp2
  SOURCES fsdp2/backward.cpp fsdp2/build_fsdp2.cpp fsdp2/forward.cpp fsdp2/instruction_writer.cpp fsdp2/plan_frame.cpp
          fsdp2/prepare.cpp fsdp2/reduce.cpp fsdp2/script_actions.cpp fsdp2/unshard.cpp unsharded/bucket_reducer.cpp
          unsharded/build_unsharded.cpp
  HEADERS fsdp2/fsdp2_runtime.h fsdp2/instruction_writer.h fsdp2/plan_frame.h fsdp2/unit_state.h
          unsharded/bucket_reducer.h
  DEPS foreshard::core foreshard::model foreshard::graph foreshard::autograd
  PRIVATE_DEPS foreshard::units foreshard::shard_layout)
