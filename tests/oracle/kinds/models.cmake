target_sources(foreshard-oracle PRIVATE kinds/models.cpp model_memory.cpp model_truth.cpp pt2_truth.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::sources foreshard::activations foreshard::lowering)
