# Operator rules against LibTorch: tests/oprules, and foreshard doctor --op-rules.
foreshard_library(operator_proof
  SOURCES operator_flops.cpp operator_proof.cpp
  HEADERS operator_flops.h operator_proof.h
  DEPS foreshard::exec foreshard::lowering LibTorch::cpu
  PRECOMPILED ${PRECOMPILED_TORCH})
