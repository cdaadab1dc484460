# The script that export-script prints, as a string of the program.
set(FORESHARD_EXPORT_SCRIPT ${CMAKE_CURRENT_BINARY_DIR}/generated/cli/export_script_text.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/export_script.py)
file(READ ${CMAKE_CURRENT_SOURCE_DIR}/export_script.py FORESHARD_EXPORT_SCRIPT_TEXT)
file(CONFIGURE OUTPUT ${FORESHARD_EXPORT_SCRIPT} @ONLY CONTENT [==[
#pragma once
inline constexpr char kExportScript[] = R"==(@FORESHARD_EXPORT_SCRIPT_TEXT@)==";
]==])
target_sources(foreshard_cli PRIVATE verb_export_script.cpp verb_import.cpp)
target_include_directories(foreshard_cli PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)
target_link_libraries(foreshard_cli PRIVATE foreshard::import)
