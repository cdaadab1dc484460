// Plan::warnings holds what PyTorch warns of and what only we say of a plan. Ours begin with a mark, in the plan's text
// and JSON too, so that whoever shows them can tell them apart. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace foreshard {

inline constexpr std::string_view kOwnNote = "note: ";

/// A warning that is ours: no run of PyTorch prints it.
inline std::string own_note(std::string text) { return text.insert(0, kOwnNote); }

/// Who says it ("PyTorch warns" or "note"), and what.
struct SaidWarning {
  std::string_view by, text;
};
inline SaidWarning said(std::string_view warning) {
  if (warning.starts_with(kOwnNote)) return {"note", warning.substr(kOwnNote.size())};
  return {"PyTorch warns", warning};
}

}  // namespace foreshard
