#include "gui/view/window/viewer_session.h"

#include <QCryptographicHash>
#include <QFileInfo>
#include <QJsonArray>
#include <QJsonDocument>
#include <QMainWindow>
#include <QSettings>

#include "gui/view/paint/theme.h"

namespace foreshard::gui {
namespace {

constexpr int kMostRecent = 12;

QStringList absolute(const std::vector<std::string>& files) {
  QStringList paths;
  for (const std::string& file : files) paths << QFileInfo(text_of(file)).absoluteFilePath();
  return paths;
}

QString view_key(const std::vector<std::string>& files, bool compared) {
  QStringList names = absolute(files);
  names << (compared ? "compared" : "");
  const QByteArray sum = QCryptographicHash::hash(names.join('\n').toUtf8(), QCryptographicHash::Md5);
  return "views/" + QString::fromLatin1(sum.toHex());
}

QString text_of_notes(const std::vector<Note>& notes) {
  QJsonArray list;
  for (const Note& note : notes)
    list.append(QJsonArray{QString::number(note.at.begin), QString::number(note.at.end), text_of(note.text)});
  return QString::fromUtf8(QJsonDocument(list).toJson(QJsonDocument::Compact));
}

std::vector<Note> notes_of_text(const QString& text) {
  std::vector<Note> notes;
  for (const QJsonValue& value : QJsonDocument::fromJson(text.toUtf8()).array()) {
    const QJsonArray note = value.toArray();
    notes.push_back(
        {{note[0].toString().toLongLong(), note[1].toString().toLongLong()}, note[2].toString().toStdString()});
  }
  return notes;
}

}  // namespace

QStringList ViewerSession::recent() const {
  return remembers_ ? QSettings().value("recent").toStringList() : QStringList();
}

void ViewerSession::addRecent(const std::vector<std::string>& files) {
  if (!remembers_) return;
  QStringList recent = this->recent();
  for (const QString& path : absolute(files)) {
    recent.removeAll(path);
    recent.prepend(path);
  }
  QSettings().setValue("recent", recent.mid(0, kMostRecent));
}

void ViewerSession::forgetRecent() {
  if (remembers_) QSettings().remove("recent");
}

void ViewerSession::saveView(const std::vector<std::string>& files, bool compared, const Navigation& navigation) {
  if (!remembers_ || files.empty()) return;
  QStringList bookmarks;
  for (const SimTime mark : navigation.bookmarks()) bookmarks << QString::number(mark);
  QSettings settings;
  const QString key = view_key(files, compared);
  settings.setValue(key, QStringList{QString::number(navigation.range().begin), QString::number(navigation.range().end),
                                     QString::number(navigation.extent().length()), bookmarks.join(' '),
                                     text_of_notes(navigation.notes())});
  QStringList order = settings.value("views/order").toStringList();
  order.removeAll(key);
  order.prepend(key);
  for (const QString& old : order.mid(kMostRecent)) settings.remove(old);
  settings.setValue("views/order", order.mid(0, kMostRecent));
}

bool ViewerSession::restoreView(const std::vector<std::string>& files, bool compared, Navigation& navigation) const {
  if (!remembers_) return false;
  const QStringList view = QSettings().value(view_key(files, compared)).toStringList();
  if (view.size() < 4 || view[2].toLongLong() != navigation.extent().length()) return false;
  std::vector<SimTime> bookmarks;
  for (const QString& mark : view[3].split(' ', Qt::SkipEmptyParts)) bookmarks.push_back(mark.toLongLong());
  navigation.set_bookmarks(std::move(bookmarks));
  if (view.size() > 4) navigation.set_notes(notes_of_text(view[4]));
  navigation.show({view[0].toLongLong(), view[1].toLongLong()});
  return true;
}

void ViewerSession::saveWindow(const QMainWindow& window, const std::vector<std::string>& files, bool compared) {
  if (!remembers_) return;
  QSettings settings;
  settings.setValue("geometry", window.saveGeometry());
  settings.setValue("layout", window.saveState(kLayoutVersion));
  settings.setValue("files", absolute(files));
  settings.setValue("compares", compared);
}

void ViewerSession::restoreWindow(QMainWindow& window) const {
  if (!remembers_) return;
  const QSettings settings;
  window.restoreGeometry(settings.value("geometry").toByteArray());
  window.restoreState(settings.value("layout").toByteArray(), kLayoutVersion);
}

}  // namespace foreshard::gui
