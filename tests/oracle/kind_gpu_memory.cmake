if(TARGET foreshard_plan)
  target_sources(foreshard-oracle PRIVATE kind_gpu_memory.cpp gpu_memory_row.cpp mlp_model.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::model foreshard::plan foreshard::lowering foreshard::sim)
endif()
