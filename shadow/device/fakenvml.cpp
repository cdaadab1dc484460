// libnvidia-ml.so.1, NVIDIA's management library of the virtual device: cards at rest, each a degree warmer than the
// one before. It counts the machine's cards, whichever of them CUDA shows.
#include <cstdio>

extern "C" {

struct NvmlDevice {
  unsigned card;
};

static const unsigned kCards = 64, kNotSupported = 3, kNotFound = 6;
static NvmlDevice* card(unsigned index) {
  static NvmlDevice cards[kCards];
  cards[index].card = index;
  return &cards[index];
}

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice** device) {
  if (index >= kCards) return kNotFound;
  *device = card(index);
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, NvmlDevice** device) {
  unsigned bus = 0;
  if (sscanf(address, "%*x:%x:", &bus) != 1 || bus < 0x10 || bus >= 0x10 + kCards) return kNotFound;
  return nvmlDeviceGetHandleByIndex_v2(bus - 0x10, device);
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  const char version[] = "580.00 (virtual)";
  for (unsigned i = 0; i < size && i < sizeof version; ++i) text[i] = version[i];
  return 0;
}
int nvmlDeviceGetClockInfo(NvmlDevice*, int, unsigned* mhz) {
  *mhz = 1200;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(NvmlDevice*, int, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}
/// nvmlGpuFabricInfo_v2_t: no fabric between cards.
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  unsigned status, clique;
  unsigned char state;
};
int nvmlDeviceGetGpuFabricInfoV(NvmlDevice*, FabricInfo* info) {
  info->state = 0;  // NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(NvmlDevice*, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(NvmlDevice*, unsigned, void*) { return kNotSupported; }
/// For messages of memory that ran out: nobody else is there.
int nvmlDeviceGetComputeRunningProcesses(NvmlDevice*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
int nvmlDeviceGetPowerUsage(NvmlDevice*, unsigned* milliwatts) {
  *milliwatts = 95000;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(NvmlDevice*, unsigned* milliwatts) {
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetTemperature(NvmlDevice* device, int, unsigned* celsius) {
  *celsius = 34 + device->card;
  return 0;
}

}  // extern "C"
