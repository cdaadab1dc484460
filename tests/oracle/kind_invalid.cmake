target_sources(foreshard-oracle PRIVATE kind_invalid.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::model)
