target_sources(foreshard-oracle PRIVATE kind_op_rules.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::lowering)
