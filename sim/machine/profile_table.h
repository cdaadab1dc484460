// A profile as TOML, between the file and its reader: what it is based on is laid under it.
#pragma once

#include <toml++/toml.h>
#include <string>

#include "core/result.h"
#include "sim/machine/profile.h"

namespace foreshard {

/// REQUIRES a whole profile: with what it is based on.
Result<HardwareProfile> read_profile(const toml::table& root, const std::string& file);

}  // namespace foreshard
