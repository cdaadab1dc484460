// What the viewer remembers from one time to the next: recent files, where the user was in them, the window. GUI
// thread.
//
// With `view --no-session` nothing is read or written.
#pragma once

#include <QByteArray>
#include <QStringList>
#include <string>
#include <vector>

#include "gui/models/navigation.h"

class QMainWindow;

namespace foreshard::gui {

class ViewerSession {
 public:
  explicit ViewerSession(bool remembers) : remembers_(remembers) {}
  bool remembers() const { return remembers_; }

  QStringList recent() const;
  void addRecent(const std::vector<std::string>& files);
  void forgetRecent();

  /// Window of time, bookmarks and notes in these files.
  void saveView(const std::vector<std::string>& files, bool compared, const Navigation& navigation);
  /// False if nothing is known of them, or they have another length by now: another recording.
  bool restoreView(const std::vector<std::string>& files, bool compared, Navigation& navigation) const;

  void saveWindow(const QMainWindow& window, const std::vector<std::string>& files, bool compared);
  void restoreWindow(QMainWindow& window) const;

 private:
  bool remembers_ = true;
};

/// Of QMainWindow::saveState.
inline constexpr int kLayoutVersion = 3;

}  // namespace foreshard::gui
