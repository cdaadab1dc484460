# Needs a Python with torch: the one beside LibTorch if it is there. Skipped, visibly, without.
set(FORESHARD_EXPORT_PYTHON "" CACHE FILEPATH "Python with torch (and transformers, timm) for cli.export_script")
set(export_python ${FORESHARD_EXPORT_PYTHON})
if(NOT export_python AND EXISTS ${PROJECT_SOURCE_DIR}/build/torch-venv/bin/python)
  set(export_python ${PROJECT_SOURCE_DIR}/build/torch-venv/bin/python)
endif()
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  if(NOT export_python)
    set(export_python ${Python3_EXECUTABLE})
  endif()
  add_test(NAME cli.export_script
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/export_script_test.py $<TARGET_FILE:foreshard> ${export_python})
  set_tests_properties(cli.export_script PROPERTIES SKIP_RETURN_CODE 77 LABELS "slow" TIMEOUT 1500)
  add_test(NAME cli.own_code COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/own_code_test.py $<TARGET_FILE:foreshard> ${export_python})
  set_tests_properties(cli.own_code PROPERTIES SKIP_RETURN_CODE 77 LABELS "slow" TIMEOUT 900 ENVIRONMENT "FORESHARD_PROFILES=${PROJECT_SOURCE_DIR}/profiles")
  add_test(NAME cli.export_files
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/export_files_test.py $<TARGET_FILE:foreshard>
                   ${PROJECT_SOURCE_DIR}/examples/llama-3-8b)
  set_tests_properties(cli.export_files PROPERTIES SKIP_RETURN_CODE 77 LABELS "slow" TIMEOUT 600
                       ENVIRONMENT "FORESHARD_PROFILES=${PROJECT_SOURCE_DIR}/profiles")
endif()
