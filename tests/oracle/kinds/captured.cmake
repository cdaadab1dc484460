if(TARGET foreshard_plan)
  target_sources(foreshard-oracle PRIVATE kinds/captured.cpp memory/gpu_memory_row.cpp memory/mlp_model.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::sources foreshard::plan foreshard::lowering foreshard::sim fmt::fmt)
endif()
