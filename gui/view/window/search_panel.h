// Search in the slices that are shown: a field, and the list of what was found. GUI thread; a worker searches.
#pragma once

#include <QWidget>
#include <functional>
#include <vector>

#include "gui/models/scene.h"
#include "gui/models/timeline/newest_first.h"
#include "gui/models/timeline/slice_search.h"

class QLabel;
class QLineEdit;
class QListWidget;
class QListWidgetItem;

namespace foreshard::gui {

class SearchPanel : public QWidget {
 public:
  explicit SearchPanel(QWidget* parent = nullptr);

  /// Hits are places in a scene: another one is searched anew.
  void setScene(const Scene& scene);
  void begin();
  QLineEdit& field() { return *field_; }
  QListWidget& hits() { return *hits_; }
  QLabel& sums() { return *sums_; }

  std::function<void(SceneSlice)> onFound;
  std::function<void()> onChosen;  // go on in the timeline

 private:
  void search();
  void showHits(const std::vector<SearchResult>& results);
  void go(const QListWidgetItem* item);

  std::vector<SceneSide> sides_;
  QLineEdit* field_ = nullptr;
  QListWidget* hits_ = nullptr;
  QLabel* sums_ = nullptr;  // of all that was found, by stream
  std::uint64_t searches_ = 0;
  NewestFirst worker_;  // last: nothing of the above is gone while it works
};

}  // namespace foreshard::gui
