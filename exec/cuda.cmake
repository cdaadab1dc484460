# One rank standing for many.
foreshard_library(emulation
  SOURCES emulated_communicator.cpp
  HEADERS emulated_communicator.h
  DEPS foreshard::exec
  PRIVATE_DEPS LibTorch::cpu
  PRECOMPILED ${PRECOMPILED_TORCH})

# On GPUs: CUDA's runtime as a shared library (as LibTorch's is) CUPTI and NCCL, where all are found.
if(TARGET CUDA::cupti AND NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  foreshard_library(cuda
    SOURCES card_state.cpp cuda_backend.cpp cuda_device.cpp cupti_recorder.cpp device_operators.cpp nccl_buffers.cpp nccl_communicator.cpp nccl_meeting.cpp repeated_work.cpp unit_ranges.cpp
    HEADERS card_state.h cuda_backend.h cuda_device.h cupti_recorder.h device_operators.h nccl_buffers.h nccl_communicator.h nccl_meeting.h repeated_work.h unit_ranges.h
    DEPS foreshard::backend foreshard::launch
    PRIVATE_DEPS LibTorch::cuda CUDA::cudart CUDA::cupti ${NCCL_LIBRARY} fmt::fmt ${CMAKE_DL_LIBS})
  target_include_directories(foreshard_cuda SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})

  # The only device code; a machine without nvcc emulates on the host alone.
  find_program(FORESHARD_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR})
  if(FORESHARD_NVCC AND NOT FORESHARD_SANITIZE)
    set(CMAKE_CUDA_COMPILER ${FORESHARD_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    enable_language(CUDA)
    add_library(foreshard_hold_stream STATIC hold_stream.cu)  # nvcc knows neither C++20 nor our warnings
    target_include_directories(foreshard_hold_stream PRIVATE ${PROJECT_SOURCE_DIR})
    set_target_properties(foreshard_hold_stream PROPERTIES CUDA_STANDARD 17)
    foreshard_library(emulation_cuda
      SOURCES cuda_calibration.cpp emulated_cuda.cpp
      HEADERS cuda_calibration.h emulated_cuda.h hold_stream.h
      DEPS foreshard::emulation foreshard::cuda
      PRIVATE_DEPS foreshard_hold_stream LibTorch::cuda CUDA::cudart fmt::fmt)
  endif()
endif()
