if(TARGET foreshard_cli)
  target_sources(foreshard-oracle PRIVATE kinds/collectives.cpp validation/validation_rows.cpp)
  target_link_libraries(foreshard-oracle PRIVATE foreshard::cli)
endif()
