if(TARGET foreshard_exec)
  target_sources(foreshard-oracle PRIVATE kind_training.cpp training_run.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::exec foreshard::model foreshard::plan)
endif()
