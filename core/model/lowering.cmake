# Operator rules and lowering: kernels and storages of forward, recompute and backward.
foreshard_library(lowering
  SOURCES lowering.cpp lowering_check.cpp lowering_fold.cpp lowering_liveness.cpp lowering_machine.cpp lowering_tape.cpp op_rules.cpp
          op_rules_attention.cpp op_rules_backward.cpp op_rules_backward_more.cpp op_rules_forward.cpp op_rules_written.cpp operator_facts.cpp operator_facts_text.cpp activation.cpp cpu_workspace.cpp
  HEADERS cpu_workspace.h lowering.h lowering_autograd.h lowering_check.h lowering_fold.h lowering_machine.h lowering_tape.h operator_facts.h op_rules.h activation.h
  DEPS foreshard::core foreshard::model
  PRIVATE_DEPS fmt::fmt)
