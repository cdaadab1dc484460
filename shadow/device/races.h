// The race detector (FAKEGPU_RACES, see README.md): who wrote which bytes last, and who has read them since.
//
// An operation comes behind another if its stream has waited for it, by an event, by order or through NCCL, or if the
// host had waited for it when it issued this one. Two that touch the same bytes, one of them to write, and of which
// neither comes behind the other, are a race: a read before its event, memory that is used again while another stream
// still reads it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shadow/device/fakegpu.h"

namespace fakegpu {

enum class Access { Reads, Writes };

// The last operation of `s` touches these bytes; `what` names it. With lock() held. Nothing where nobody looks for
// races.
void touches(const Stream* s, Access access, const void* p, std::size_t bytes, const char* what);
// A kernel's operands, as far as its name and arguments tell them.
void kernel_touches(const Stream* s, const void* kernel, const std::string& name, unsigned blocks, void** args);
// The host knows that this is done: what it issues from now on comes behind.
void host_knows(const std::vector<uint64_t>& seen);
// What else a card would not forgive: told as a race is, whether or not anybody looks for those. With lock() held.
void tell_fault(const std::string& text);
// The memory is nobody's any more.
void forget_accesses(const void* p, std::size_t bytes);

}  // namespace fakegpu
