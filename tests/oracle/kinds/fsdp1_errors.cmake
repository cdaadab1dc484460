target_sources(foreshard-oracle PRIVATE kinds/fsdp1_errors.cpp fsdp1/fsdp1_row.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::fsdp1 foreshard::plan_actions foreshard::units foreshard::graph fmt::fmt)
