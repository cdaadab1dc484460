// A table of names and values beside the timeline: read by screen readers, copied as tab-separated text. GUI thread.
#pragma once

#include <QTableWidget>
#include <functional>
#include <string>
#include <vector>

#include "gui/models/slice_facts.h"

namespace foreshard::gui {

class FactTable : public QTableWidget {
 public:
  explicit FactTable(const QStringList& columns, QWidget* parent = nullptr);
  void setRows(const std::vector<std::vector<QString>>& rows);
  void setFacts(const std::vector<Fact>& facts);
  /// A row about another slice is underlined; a double click or Enter goes there.
  std::function<void(const SceneSlice&)> onGo;
  /// What stands here while there are no rows: how they come.
  void setPlaceholder(const QString& text) { placeholder_ = text; }
  /// The selected rows, or all, to the clipboard.
  void copy() const;

 protected:
  void keyPressEvent(QKeyEvent* event) override;
  void paintEvent(QPaintEvent* event) override;

 private:
  void go(int row);

  QString placeholder_;
  std::vector<std::optional<SceneSlice>> slices_;  // by row
};

/// A cell that sorts by a number, whatever its text.
class NumberItem : public QTableWidgetItem {
 public:
  NumberItem(const QString& text, double number);
  bool operator<(const QTableWidgetItem& other) const override;
};

}  // namespace foreshard::gui
