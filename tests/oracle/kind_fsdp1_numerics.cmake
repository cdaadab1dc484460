if(TARGET foreshard_exec)
  target_sources(foreshard-oracle PRIVATE kind_fsdp1_numerics.cpp fsdp1_program.cpp fsdp1_row.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::exec foreshard::fsdp1 foreshard::units foreshard::graph fmt::fmt)
endif()
