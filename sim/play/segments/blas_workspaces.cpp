#include "sim/play/segments/blas_workspaces.h"

namespace foreshard {
namespace {

constexpr std::uint8_t kBlasWorkspace = 1, kLtWorkspace = 2;

}  // namespace

BlasWorkspaces::BlasWorkspaces(PlayContext& context, RunRecorder& recorder) : context_(context), recorder_(recorder) {
  const HardwareProfile& profile = context.device.profile;
  const BlasWorkspaceUse use = blas_workspace_use(context.job.fsdp.quirks);
  if (profile.kind != "cpu" && use != BlasWorkspaceUse::OfProduct)  // those are in the lowered program
    sizes_ = blas_workspaces(profile.architecture, use);
}

std::uint8_t BlasWorkspaces::wanted(bool lt) { return lt ? kBlasWorkspace | kLtWorkspace : kBlasWorkspace; }

bool BlasWorkspaces::ensure(bool lt, bool engine) {
  std::uint8_t& has = engine ? of_backward_ : made();
  for (const std::uint8_t one : {kBlasWorkspace, kLtWorkspace}) {
    if ((wanted(lt) & one & ~has) == 0) continue;
    has |= one;
    const Bytes size = one == kLtWorkspace ? sizes_.lt : sizes_.blas;
    if (size == 0) {
      if (recorder_.open()) recorder_.needs_no_workspace(one);
      continue;
    }
    const BlockHandle block = context_.device.book.allocate(size, index_of(Stream::D), MemoryCategory::Workspace);
    if (block == kNoBlock) return context_.out_of_memory(size);
    if (recorder_.open()) recorder_.made_workspace(one, block);
  }
  return true;
}

}  // namespace foreshard
