target_sources(foreshard-oracle PRIVATE kind_fsdp1_layouts.cpp fsdp1_row.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::units fmt::fmt)
