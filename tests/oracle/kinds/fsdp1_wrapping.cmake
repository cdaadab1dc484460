target_sources(foreshard-oracle PRIVATE kinds/fsdp1_wrapping.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::units fmt::fmt)
