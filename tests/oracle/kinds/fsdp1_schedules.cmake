target_sources(foreshard-oracle PRIVATE kinds/fsdp1_schedules.cpp fsdp1/fsdp1_row.cpp kinds/fsdp1_schedules_tokens.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::fsdp1 foreshard::units foreshard::graph fmt::fmt)
