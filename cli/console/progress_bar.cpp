#include "cli/console/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace foreshard::cli {

ProgressBar::ProgressBar(bool wanted) : shown_(wanted && isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::draw(std::size_t done, std::size_t total, const std::string& what) {
  if (!shown_ || total == 0) return;
  constexpr std::size_t kCells = 30;
  const std::size_t full = kCells * done / total;
  const std::string bar = fmt::format("\r[{}{}] {}/{}{}{}\x1b[K", std::string(full, '#'),
                                      std::string(kCells - full, ' '), done, total, what.empty() ? "" : " ", what);
  std::fputs(bar.c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace foreshard::cli
