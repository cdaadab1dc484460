#include "sim/play/segments/blas_workspaces.h"

namespace foreshard {
namespace {

constexpr std::uint8_t kBlasWorkspace = 1, kLtWorkspace = 2;

}  // namespace

Bytes BlasWorkspaces::bytes() const {
  const HardwareProfile& profile = context_.device.profile;
  return profile.kind == "cpu" ? 0 : blas_workspace(profile.architecture);
}

std::uint8_t BlasWorkspaces::wanted(bool lt) { return lt ? kBlasWorkspace | kLtWorkspace : kBlasWorkspace; }

bool BlasWorkspaces::ensure(bool lt, bool engine) {
  std::uint8_t& has = engine ? of_backward_ : made();
  for (const std::uint8_t one : {kBlasWorkspace, kLtWorkspace}) {
    if ((wanted(lt) & one & ~has) == 0) continue;
    has |= one;
    if (bytes() == 0) continue;
    Device& device = context_.device;
    const Bytes size = one == kLtWorkspace ? blas_lt_workspace(device.profile.architecture) : bytes();
    const BlockHandle block = device.book.allocate(size, index_of(Stream::D), MemoryCategory::Workspace);
    if (block == kNoBlock) return context_.out_of_memory(size);
    if (recorder_.open()) recorder_.made_workspace(one, block);
  }
  return true;
}

}  // namespace foreshard
