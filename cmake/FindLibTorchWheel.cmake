# LibTorch as the torch wheel installs it, as imported targets of our own (docs/adr/0003-libtorch-from-the-wheel.md).
#
# Looks in FORESHARD_TORCH (a virtual environment, or the torch folder itself), $FORESHARD_TORCH, build/torch-venv (made
# by scripts/setup-torch). Defines LibTorchWheel_FOUND, LibTorchWheel_VERSION and
#   LibTorch::cpu   c10 and torch_cpu: all that the host backend needs
#   LibTorch::cuda  the above and c10_cuda, torch_cuda, torch; the CUDA library registers itself when loaded
set(FORESHARD_TORCH "" CACHE PATH "A virtual environment with the torch wheel, or its torch folder; empty: build/torch-venv")

set(_torch_roots "")
foreach(_root IN ITEMS "${FORESHARD_TORCH}" "$ENV{FORESHARD_TORCH}" "${PROJECT_SOURCE_DIR}/build/torch-venv")
  if(_root)
    file(GLOB _inside "${_root}/lib/python3*/site-packages/torch")
    list(APPEND _torch_roots ${_root} ${_inside})
  endif()
endforeach()
unset(_torch_folder)
foreach(_root IN LISTS _torch_roots)
  if(EXISTS "${_root}/lib/libtorch_cpu.so" AND EXISTS "${_root}/include/ATen/ATen.h")
    set(_torch_folder "${_root}")
    break()
  endif()
endforeach()

if(_torch_folder)
  file(STRINGS "${_torch_folder}/version.py" LibTorchWheel_VERSION REGEX "^__version__")
  string(REGEX REPLACE ".*'([^']*)'.*" "\\1" LibTorchWheel_VERSION "${LibTorchWheel_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
set(LibTorchWheel_FIND_QUIETLY TRUE)
find_package_handle_standard_args(LibTorchWheel REQUIRED_VARS _torch_folder VERSION_VAR LibTorchWheel_VERSION)

if(LibTorchWheel_FOUND AND NOT TARGET LibTorch::cpu)
  foreach(_library IN ITEMS c10 torch_cpu c10_cuda torch_cuda torch)
    add_library(LibTorch::${_library} SHARED IMPORTED)
    set_target_properties(LibTorch::${_library} PROPERTIES IMPORTED_LOCATION "${_torch_folder}/lib/lib${_library}.so")
  endforeach()
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE "${_torch_folder}/include"
                                                            "${_torch_folder}/include/torch/csrc/api/include")
  # The wheel's headers bring a newer fmt of their own, without its library. Its names carry its version: no clash.
  target_link_libraries(LibTorch::cpu INTERFACE foreshard_torch_fmt)  # exec/torch
  # Debian's Gloo (exec/communicators/gloo_communicator.h) must stand before LibTorch in every program: both export gloo's names, and
  # only ours fit the headers. Torch's own Gloo groups are never made in these programs.
  find_package(Gloo CONFIG QUIET)
  if(TARGET gloo)
    # As an option, which stands before all libraries: CMake orders those by their dependencies, not as they are named.
    target_link_options(LibTorch::cpu INTERFACE LINKER:--push-state,--no-as-needed,$<TARGET_FILE:gloo>,--pop-state)
    target_link_libraries(LibTorch::cpu INTERFACE gloo)
  endif()
  target_link_libraries(LibTorch::cpu INTERFACE LibTorch::torch_cpu LibTorch::c10 Threads::Threads)
  add_library(LibTorch::cuda INTERFACE IMPORTED)
  target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu -Wl,--no-as-needed LibTorch::torch_cuda LibTorch::c10_cuda
                                                 LibTorch::torch -Wl,--as-needed)
endif()
