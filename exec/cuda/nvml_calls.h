// The calls of NVIDIA's management library that card_state() asks: as NVML's own header declares them where it is found
// (a CUDA toolkit, the wheel nvidia-nvml-dev), else written down from its documentation. The library is the driver's:
// it is loaded when it is asked, never linked.
#pragma once

#if __has_include(<nvml.h>)
#include <nvml.h>
#else

extern "C" {
using nvmlDevice_t = struct nvmlDevice_st*;
enum nvmlReturn_t { NVML_SUCCESS = 0 };
enum nvmlClockType_t { NVML_CLOCK_SM = 1 };
enum nvmlTemperatureSensors_t { NVML_TEMPERATURE_GPU = 0 };
nvmlReturn_t nvmlInit_v2();
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* address, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* mhz);
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* mhz);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts);
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* milliwatts);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int* celsius);
}

#endif
