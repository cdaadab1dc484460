if(TARGET foreshard_run)
  target_sources(foreshard-oracle PRIVATE kinds/training.cpp training/training_run.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::run foreshard::adapters foreshard::mesh foreshard::sources foreshard::plan)
endif()
