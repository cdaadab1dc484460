target_sources(foreshard-oracle PRIVATE kinds/models.cpp models/model_memory.cpp models/model_truth.cpp models/pt2_truth.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::sources foreshard::activations foreshard::lowering)
