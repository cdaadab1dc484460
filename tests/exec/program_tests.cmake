# What a program runs with: recomputation, starting values, operators' memory, exported programs.
foreshard_test(exec.program SOURCES backend/counting_allocator_test.cpp operators/exported_programs_test.cpp operators/recompute_test.cpp training/starting_values_test.cpp
               DEPS test_exec_tiny_llama foreshard::training PRECOMPILED ${PRECOMPILED_TORCH_TESTS})
foreshard_test(exec.trained_programs ONE_PROCESS SOURCES training/trained_programs_test.cpp
               DEPS foreshard::run foreshard::plan nlohmann_json::nlohmann_json PRECOMPILED ${PRECOMPILED_TORCH_TESTS})
# What training scripts put around a model, trained as `run` does.
foreshard_test(exec.scripts ONE_PROCESS SOURCES training/adapters_test.cpp training/scripted_losses_test.cpp training/scripted_optimizers_test.cpp training/training_ranks.cpp DEPS foreshard::training foreshard::job nlohmann_json::nlohmann_json
               PRECOMPILED ${PRECOMPILED_TORCH_TESTS})
