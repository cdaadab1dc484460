target_sources(foreshard-oracle PRIVATE kinds/op_rules.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::lowering)

# Further operators and variants, recorded with the shared recorder's functions.
add_test(NAME oracle.op-rules COMMAND foreshard-oracle op-rules ${PROJECT_SOURCE_DIR}/tests/data/oprules/rows.jsonl.gz)
set_tests_properties(oracle.op-rules PROPERTIES LABELS golden)
