target_sources(foreshard-oracle PRIVATE kinds/fsdp2_layouts.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::shard_layout)
