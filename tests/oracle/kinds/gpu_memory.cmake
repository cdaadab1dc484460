if(TARGET foreshard_plan)
  target_sources(foreshard-oracle PRIVATE kinds/gpu_memory.cpp memory/gpu_memory_row.cpp memory/memory_comparison.cpp memory/mlp_model.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::sources foreshard::adapters foreshard::mesh foreshard::plan foreshard::lowering foreshard::sim fmt::fmt)
endif()
