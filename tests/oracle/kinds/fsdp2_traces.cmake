target_sources(foreshard-oracle PRIVATE kinds/fsdp2_traces.cpp fsdp2/fsdp2_trace_rows.cpp fsdp2/fsdp2_trace_config.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::fsdp2 foreshard::units foreshard::graph)
