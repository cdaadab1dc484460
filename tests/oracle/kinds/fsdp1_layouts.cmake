target_sources(foreshard-oracle PRIVATE kinds/fsdp1_layouts.cpp fsdp1/fsdp1_row.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::units fmt::fmt)
