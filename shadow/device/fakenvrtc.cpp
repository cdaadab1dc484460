// fakenvrtc - the compiler of kernels at run time, in a library of its own with NVRTC's name, since programs ask the
// loader for it by that: it takes any source, and what it gives is for the virtual device's driver (fakemodules.cpp),
// which runs nothing.
#include <cuda.h>
#include <nvrtc.h>

#include <cstring>
#include <string>

namespace {

struct Program {
  std::string lowered;
};
constexpr char kImage[8] = "virtual";  // what the compiler gives: nobody runs it

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = CUDA_VERSION / 1000;
  *minor = CUDA_VERSION % 1000 / 10;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult r) { return r == NVRTC_SUCCESS ? "NVRTC_SUCCESS" : "fake NVRTC error"; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* p, const char*, const char*, int, const char* const*, const char* const*) {
  *p = (nvrtcProgram) new Program;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* p) {
  delete (Program*)*p;
  *p = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_SUCCESS; }
nvrtcResult nvrtcAddNameExpression(nvrtcProgram p, const char* name) {
  ((Program*)p)->lowered = name;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetLoweredName(nvrtcProgram p, const char*, const char** name) {
  *name = ((Program*)p)->lowered.c_str();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t* n) {
  *n = sizeof kImage;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTX(nvrtcProgram, char* image) {
  memcpy(image, kImage, sizeof kImage);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t* n) { return nvrtcGetPTXSize(p, n); }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char* image) { return nvrtcGetPTX(p, image); }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* n) {
  *n = 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* log) {
  *log = 0;
  return NVRTC_SUCCESS;
}

}  // extern "C"
