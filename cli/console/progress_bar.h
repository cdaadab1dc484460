// How far a search is, drawn over and over in one line of a terminal's stderr; nothing where stderr is none.
#pragma once

#include <cstddef>
#include <string>

namespace foreshard::cli {

class ProgressBar {
 public:
  explicit ProgressBar(bool wanted);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// The line is wiped.
  ~ProgressBar();

  void draw(std::size_t done, std::size_t total, const std::string& what = {});

 private:
  bool shown_, drawn_ = false;
};

}  // namespace foreshard::cli
