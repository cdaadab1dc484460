#include "sim/fit/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "core/text/edit_distance.h"
#include "sim/machine/profile.h"

namespace foreshard {
namespace {

constexpr std::int64_t kNodeOfMost = 8;
constexpr std::int64_t kMostGpus = 1 << 20;

Error usage(std::string message, std::string expected, std::string_view got, std::string hint) {
  return {.code = ErrorCode::Usage,
          .message = std::move(message),
          .file = {},
          .place = "--gpus",
          .expected = std::move(expected),
          .got = std::string(got),
          .hint = std::move(hint)};
}

/// Takes "8x" from the front.
std::optional<std::int64_t> take_count(std::string_view& text) {
  std::int64_t count = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (code != std::errc() || end == text.data() + text.size() || *end != 'x' || count < 1 || count > kMostGpus)
    return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return count;
}

Result<std::string> find_profile(std::string_view name) {
  if (name.find('/') != name.npos || name.ends_with(".toml")) return std::string(name);
  const std::vector<std::string> known = known_profiles();
  if (std::find(known.begin(), known.end(), name) != known.end()) return std::string(name);
  std::vector<std::string> meant;
  for (const std::string& id : known)
    if (!name.empty() && id.find(name) != id.npos) meant.push_back(id);
  // The card itself, where the others are that card on another board or with the kernels of then.
  for (const std::string& card : meant) {
    const auto is_it = [&](const std::string& id) {
      return id == card || id == card + kBoardOfFour || id == card + kOldKernels;
    };
    if (std::all_of(meant.begin(), meant.end(), is_it)) return card;
  }
  if (meant.size() > 1) {
    return fail(usage("several profiles could be meant", fmt::format("one of {}", fmt::join(meant, ", ")), name, ""));
  }
  std::string near;
  std::size_t distance = std::string::npos;
  for (const std::string& id : known) {
    const std::size_t d = edit_distance(name, id);
    if (d < distance) distance = d, near = id;
  }
  return fail(usage("there is no profile of this name",
                    fmt::format("{}, or the file that calibrate wrote", fmt::join(known, ", ")), name,
                    fmt::format("did you mean {}?", near)));
}

}  // namespace

Result<Gpus> parse_gpus(std::string_view text) {
  std::string_view rest = text;
  const auto first = take_count(rest);
  if (!first) {
    return fail(usage("GPUs are a number of them and a profile", "8xh100-sxm-80, or 2x8xh100-sxm-80 for two nodes",
                      text, "`foreshard doctor` lists the profiles"));
  }
  const auto second = take_count(rest);
  Gpus gpus;
  gpus.world_size = second ? *first * *second : *first;
  gpus.ranks_per_node = second ? *second : std::min(*first, kNodeOfMost);
  if (gpus.world_size > kMostGpus || gpus.world_size % gpus.ranks_per_node != 0) {
    return fail(usage("the GPUs do not fill nodes of 8", "a multiple of 8, or NODESxGPUSxPROFILE", text,
                      "for example 3x4xh100-sxm-80"));
  }
  auto profile = find_profile(rest);
  if (!profile) return fail(profile.error());
  gpus.profile = std::move(*profile);
  return gpus;
}

}  // namespace foreshard
