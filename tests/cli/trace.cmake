# `trace analyse` and `trace convert`: the report's text, and the program itself.
foreshard_test(cli.trace
  SOURCES program/program_diagnose_test.cpp program/program_trace_test.cpp program/run_program.cpp trace_report_test.cpp
  DEPS foreshard::cli nlohmann_json::nlohmann_json)
target_compile_definitions(test_cli_trace PRIVATE FORESHARD_PROGRAM="$<TARGET_FILE:foreshard>")
add_dependencies(test_cli_trace foreshard)
