// fakegpu - NVTX ranges in the log. NVTX loads this library where NVTX_INJECTION64_PATH names it.
#include <nvtx3/nvToolsExt.h>

#include "shadow/device/fakegpu.h"

using namespace fakegpu;
using Guard = std::lock_guard<std::recursive_mutex>;

static thread_local int depth = 0;

static int NVTX_API push(const char* text) {
  Guard lk(lock());
  Line("nvtxRangePush").s("name", text);
  return depth++;
}
static int NVTX_API pop() {
  Guard lk(lock());
  Line("nvtxRangePop");
  return --depth;
}

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
