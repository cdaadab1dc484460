target_sources(foreshard-oracle PRIVATE kinds/invalid.cpp)
target_link_libraries(foreshard-oracle PRIVATE foreshard::sources)
