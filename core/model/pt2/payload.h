// The weights of a .pt2 archive: where each name's bytes lie, and the bytes, one member at a time.
//
// Payloads are whole storages, so that two names may look into one. Meta and fake tensors have empty ones. Pickled
// entries are listed and never read. docs/formats of the archive: core/model/pt2/archive.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/result.h"
#include "core/units.h"

namespace foreshard {

struct Pt2Payload {
  std::string member;  // full name inside the archive
  Bytes bytes = 0;     // of the member: the storage
  DType dtype = DType::Float32;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;  // elements into the storage
  bool pickled = false;
};

/// Of one program (core/model/pt2/archive.h), by name: parameters and persistent buffers, then non-persistent buffers
/// and constants. Error: no such archive, an old container (its weights are pickles), sizes that do not fit.
Result<std::map<std::string, Pt2Payload, std::less<>>> list_pt2_payloads(const std::string& path,
                                                                         std::string_view program = {});

/// The bytes of a member, inflated, checksum compared. Error unless there are exactly `bytes` of them.
Result<std::string> read_pt2_payload(const std::string& path, const std::string& member, Bytes bytes);

}  // namespace foreshard
