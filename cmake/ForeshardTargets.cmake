# One place for what every target of the project shares: standard, warnings, sanitizers, and how headers are checked.

add_library(foreshard_options INTERFACE)
target_compile_features(foreshard_options INTERFACE cxx_std_20)
target_compile_options(foreshard_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
                                                   -Wno-missing-field-initializers
                                                   # GCC 12 finds these in its own strings and vectors, inlined, and
                                                   # takes the sources of a unity build for headers.
                                                   $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-maybe-uninitialized;-Wno-array-bounds;-Wno-nonnull;-Wno-subobject-linkage>)
target_include_directories(foreshard_options INTERFACE ${PROJECT_SOURCE_DIR})
if(FORESHARD_SANITIZE)
  target_compile_options(foreshard_options INTERFACE -fsanitize=${FORESHARD_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(foreshard_options INTERFACE -fsanitize=${FORESHARD_SANITIZE})
endif()

# Where CMAKE_UNITY_BUILD is on (all presets that CI builds), sixteen sources of a library, or eight of a test, are one
# compiler run: half of a build's time is reading the same headers. File-local names of a library are told apart by what
# they are of; foreshard_alone(SOURCE ...): sources of tests whose names meet those of their neighbours.
function(foreshard_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# foreshard_quick(TARGET): a third less to compile, for what nobody waits for while it runs. Under the sanitizers' checked
# builds such code is not optimised at all.
function(foreshard_quick TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(FORESHARD_SANITIZE)
    target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Debug>:-O0>)
  endif()
endfunction()

# foreshard_hot(TARGET): what a sweep runs thousands of times. Elsewhere -O3 makes a build a tenth longer and nothing faster.
function(foreshard_hot TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O3>)
endfunction()

# foreshard_program(TARGET): plans and simulates by the thousand, all small blocks: mimalloc, where it is installed, in place of
# glibc's malloc takes a tenth off a sweep (docs/measurements/2026-12-01-planning.md). Sanitizers bring their own.
function(foreshard_program TARGET)
  if(TARGET mimalloc AND NOT FORESHARD_SANITIZE)
    target_link_libraries(${TARGET} PRIVATE mimalloc)
  endif()
endfunction()

# What only tests run: nobody ships it, and clang takes half of GCC's time for it when nothing is optimised. The project's own
# compiler compiles all else, and links. FORESHARD_TEST_COMPILER empty: that one for tests as well.
find_program(FORESHARD_TEST_COMPILER NAMES clang++ DOC "What compiles tests of a release build beside GCC")
set(FORESHARD_CLANG_TESTS OFF)
if(FORESHARD_TEST_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL Release)
  set(FORESHARD_CLANG_TESTS ON)
endif()
function(foreshard_test_code TARGET)
  foreshard_quick(${TARGET})
  if(FORESHARD_CLANG_TESTS)
    set_target_properties(${TARGET} PROPERTIES CXX_COMPILER_LAUNCHER
      "${PROJECT_SOURCE_DIR}/cmake/with_compiler;${FORESHARD_TEST_COMPILER};${CMAKE_CXX_COMPILER_LAUNCHER}")
    target_compile_options(${TARGET} PRIVATE -O0)
  endif()
endfunction()

# foreshard_library(NAME SOURCES ... HEADERS ... DEPS ... PRIVATE_DEPS ... [PRECOMPILED ...]): the static library
# foreshard_NAME, alias foreshard::NAME. Every header compiles alone: a source includes the header of its name first (a house
# rule), which proves that one; `cmake --build . --target all_verify_interface_header_sets` compiles the rest, which are those
# without a source, and all where a precompiled header would hide what is missing.
function(foreshard_library NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPS;PRIVATE_DEPS;PRECOMPILED" ${ARGN})
  add_library(foreshard_${NAME} STATIC ${ARG_SOURCES})
  add_library(foreshard::${NAME} ALIAS foreshard_${NAME})
  set_target_properties(foreshard_${NAME} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  set(alone ${ARG_HEADERS})
  if(ARG_PRECOMPILED)
    target_precompile_headers(foreshard_${NAME} ${ARG_PRECOMPILED})
  else()
    string(REGEX REPLACE "\\.cpp(;|$)" ".h\\1" proven "${ARG_SOURCES}")
    list(REMOVE_ITEM alone ${proven})
  endif()
  set(proven ${ARG_HEADERS})
  list(REMOVE_ITEM proven ${alone})
  target_sources(foreshard_${NAME} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${alone})
  target_sources(foreshard_${NAME} PUBLIC FILE_SET proven TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${proven})
  target_link_libraries(foreshard_${NAME} PUBLIC foreshard_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(CMAKE_POSITION_INDEPENDENT_CODE)  # inlined as in programs
    target_compile_options(foreshard_${NAME} PRIVATE -fno-semantic-interposition)
  endif()
  set_target_properties(foreshard_${NAME} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)
endfunction()

# foreshard_test_on_isa(room.thing ISA ONEDNN ATEN): the program of foreshard_test(room.thing ONE_PROCESS) again with oneDNN and
# ATen held to fewer instructions; reported as skipped where the processor has not even these.
function(foreshard_test_on_isa NAME ISA ONEDNN ATEN)
  string(REPLACE "." "_" TARGET test_${NAME})
  add_test(NAME ${NAME}.${ISA} COMMAND ${TARGET} --gtest_brief=1)
  set_tests_properties(${NAME}.${ISA} PROPERTIES LABELS unit SKIP_REGULAR_EXPRESSION "SKIPPED"
                       ENVIRONMENT "ONEDNN_MAX_CPU_ISA=${ONEDNN};ATEN_CPU_CAPABILITY=${ATEN};FORESHARD_TEST_ISA=${ISA}")
endfunction()

# foreshard_test(room.thing SOURCES ... DEPS ... [LABELS ...] [ONE_PROCESS] [PRECOMPILED ...]): one GoogleTest program; ctest names are room.thing.Suite.Case,
# or with ONE_PROCESS room.thing alone.
function(foreshard_test NAME)
  cmake_parse_arguments(ARG "ONE_PROCESS" "" "SOURCES;DEPS;LABELS;PRECOMPILED" ${ARGN})
  string(REPLACE "." "_" TARGET test_${NAME})
  add_executable(${TARGET} ${ARG_SOURCES})
  target_link_libraries(${TARGET} PRIVATE foreshard_options ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  foreshard_test_code(${TARGET})
  target_compile_definitions(${TARGET} PRIVATE FORESHARD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                             FORESHARD_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FORESHARD_SHARED="${PROJECT_SOURCE_DIR}/../shared")
  if(ARG_PRECOMPILED)
    target_precompile_headers(${TARGET} ${ARG_PRECOMPILED})
  elseif(TARGET test_precompiled AND NOT FORESHARD_TESTS_OF_OTHER_FLAGS)
    target_precompile_headers(${TARGET} REUSE_FROM test_precompiled)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(ARG_ONE_PROCESS)
    add_test(NAME ${NAME} COMMAND ${TARGET} --gtest_brief=1)
    set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS}")
    return()
  endif()
  gtest_discover_tests(${TARGET} TEST_PREFIX "${NAME}." DISCOVERY_MODE PRE_TEST PROPERTIES LABELS "${ARG_LABELS}")
endfunction()
