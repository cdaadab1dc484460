target_sources(foreshard-oracle PRIVATE kinds/op_rules.cpp op_rules/op_rules_program.cpp op_rules/op_rules_row.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::operator_facts)

# Further operators and variants, recorded with the shared recorder's functions.
add_test(NAME oracle.op-rules COMMAND foreshard-oracle op-rules ${PROJECT_SOURCE_DIR}/tests/data/oprules/rows.jsonl.gz)
set_tests_properties(oracle.op-rules PROPERTIES LABELS golden)

foreshard_test(oracle.op_rules SOURCES op_rules/op_rules_alterations_test.cpp op_rules/op_rules_program.cpp op_rules/op_rules_row.cpp
               DEPS foreshard::operator_facts ZLIB::ZLIB nlohmann_json::nlohmann_json)
