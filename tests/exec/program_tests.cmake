# What a program runs with: recomputation, starting values, operators' memory, exported programs.
foreshard_test(exec.program SOURCES counting_allocator_test.cpp exported_programs_test.cpp recompute_test.cpp starting_values_test.cpp
               DEPS test_exec_tiny_llama PRECOMPILED ${PRECOMPILED_TORCH})
foreshard_test(exec.trained_programs ONE_PROCESS SOURCES trained_programs_test.cpp
               DEPS foreshard::exec foreshard::plan nlohmann_json::nlohmann_json PRECOMPILED ${PRECOMPILED_TORCH})
