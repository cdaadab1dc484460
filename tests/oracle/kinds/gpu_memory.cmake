if(TARGET foreshard_plan)
  target_sources(foreshard-oracle PRIVATE kinds/gpu_memory.cpp gpu_memory_row.cpp mlp_model.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::sources foreshard::plan foreshard::lowering foreshard::sim)
endif()
