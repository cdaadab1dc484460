target_sources(foreshard-oracle PRIVATE kind_models.cpp model_memory.cpp model_truth.cpp pt2_truth.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::model foreshard::lowering)
