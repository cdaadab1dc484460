// NVIDIA's management library of the virtual device: one state, that of a card at rest.
extern "C" {

struct NvmlDevice;
static int the_device;

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned, NvmlDevice** device) {
  *device = reinterpret_cast<NvmlDevice*>(&the_device);
  return 0;
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
int nvmlDeviceGetPowerUsage(NvmlDevice*, unsigned* milliwatts) {
  *milliwatts = 95000;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(NvmlDevice*, unsigned* milliwatts) {
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetTemperature(NvmlDevice*, int, unsigned* celsius) {
  *celsius = 34;
  return 0;
}

}  // extern "C"
