if(TARGET foreshard_run)
  target_sources(foreshard-oracle PRIVATE kinds/fsdp1_numerics.cpp fsdp1/fsdp1_program.cpp fsdp1/fsdp1_row.cpp fsdp1/fsdp1_state.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::run foreshard::plan_actions foreshard::fsdp1 foreshard::plan foreshard::units foreshard::graph fmt::fmt)
endif()
