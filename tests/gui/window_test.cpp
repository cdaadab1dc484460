// The window without a screen: keys, mouse, files, panels. Over 400 lines: one fixture opens the window for all of
// them.

#include <gtest/gtest.h>

#include <QClipboard>
#include <QDropEvent>
#include <QFile>
#include <QFileInfo>
#include <QInputDialog>
#include <QLineEdit>
#include <QListWidget>
#include <QMimeData>
#include <QSettings>
#include <QSpinBox>
#include <QTest>
#include <QWheelEvent>
#include <condition_variable>
#include <mutex>

#include "gui/view/paint/pareto_painter.h"
#include "gui/view/window/main_window.h"
#include "tests/gui/sample.h"
#include "tests/support/temporary_path.h"
#include "traces/formats/fst.h"

namespace foreshard::gui {
namespace {

using foreshard::testing::temporary_path;

const std::string kToy = std::string(FORESHARD_SOURCE_DIR) + "/examples/toy.toml";

/// Drops come from the desktop; here from the test.
class DroppableWindow : public MainWindow {
 public:
  using MainWindow::dropEvent;
  using MainWindow::MainWindow;
};

class Window : public ::testing::Test {
 protected:
  Window() {
    arguments_.no_session = true;
    window_ = std::make_unique<DroppableWindow>(arguments_);
    window_->show();
    window_->activateWindow();
    EXPECT_TRUE(QTest::qWaitForWindowActive(window_.get()));
  }
  void open(const std::vector<std::string>& files, bool compare = false) {
    window_->open(files, compare);
    ASSERT_TRUE(QTest::qWaitFor([&] { return !window_->isLoading(); }, 60'000));
  }
  void press(Qt::Key key) { QTest::keyClick(&window_->timeline(), key); }
  TimeRange range() { return window_->timeline().navigation().range(); }

  ViewerArguments arguments_;
  std::unique_ptr<DroppableWindow> window_;
};

TEST_F(Window, KeysZoomPanFitAndGoBack) {
  open({kToy});
  const TimeRange home = range();
  press(Qt::Key_W);
  EXPECT_LT(range().length(), home.length());
  press(Qt::Key_S);
  press(Qt::Key_D);
  EXPECT_GT(range().begin, home.begin);
  press(Qt::Key_Home);
  EXPECT_EQ(range(), window_->timeline().navigation().extent());
  QTest::keyClick(window_.get(), Qt::Key_Backspace);
  EXPECT_NE(range(), window_->timeline().navigation().extent());
}

TEST_F(Window, SlicesAreWalkedByKeysAndToldByTheInspector) {
  open({kToy});
  press(Qt::Key_Period);
  ASSERT_TRUE(window_->timeline().navigation().selected().has_value());
  const auto first = window_->timeline().navigation().selected()->span;
  EXPECT_GT(window_->inspector().rowCount(), 4);
  press(Qt::Key_Period);
  EXPECT_NE(window_->timeline().navigation().selected()->span, first);
  press(Qt::Key_Comma);
  EXPECT_EQ(window_->timeline().navigation().selected()->span, first);
  press(Qt::Key_Down);
  EXPECT_NE(window_->timeline().navigation().selected()->span, first);
  press(Qt::Key_M);
  EXPECT_TRUE(window_->timeline().navigation().selection().has_value());
  press(Qt::Key_Escape);
  press(Qt::Key_Escape);
  EXPECT_FALSE(window_->timeline().navigation().selected().has_value());
}

TEST_F(Window, TheMouseSelectsSlicesAndRanges) {
  open({kToy});
  TimelineWidget& timeline = window_->timeline();
  const Scene& scene = timeline.scene();
  std::uint32_t longest = 0;
  const auto& spans = scene.sides[0].model->timeline.spans;
  for (std::uint32_t s = 0; s < spans.size(); ++s)
    if (spans[s].duration > spans[longest].duration) longest = s;
  timeline.navigation().show(timeline.navigation().extent());
  const auto position = position_of(scene, {0, longest});
  ASSERT_TRUE(position.has_value());
  const TimeScale scale =
      ScenePainter::scale_of(QRectF(timeline.viewport()->rect()), {timeline.navigation().range(), 0});
  const SimTime middle = position->time.begin + position->time.length() / 2;
  const QPoint at(static_cast<int>(kGutter + scale.x(middle)), static_cast<int>(kRuler + position->y + 8));
  QTest::mouseClick(timeline.viewport(), Qt::LeftButton, {}, at);
  EXPECT_EQ(timeline.navigation().selected(), (SceneSlice{0, longest}));
  QTest::mousePress(timeline.viewport(), Qt::LeftButton, {}, QPoint(200, 60));
  QTest::mouseMove(timeline.viewport(), QPoint(320, 60));
  QTest::mouseRelease(timeline.viewport(), Qt::LeftButton, {}, QPoint(320, 60));
  ASSERT_TRUE(timeline.navigation().selection().has_value());
  EXPECT_NEAR(static_cast<double>(timeline.navigation().selection()->length()), 120 * scale.ns_per_pixel,
              4 * scale.ns_per_pixel);
}

/// Holds every frame until it is let go; a test that hangs on it fails instead after a while.
class Hold {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    if (!free_.wait_for(lock, std::chrono::seconds(20), [this] { return open_ || given_up_; })) given_up_ = true;
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    free_.notify_all();
  }
  int waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }
  bool given_up() const {
    const std::lock_guard lock(mutex_);
    return given_up_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable free_;
  bool open_ = false, given_up_ = false;
  int waiting_ = 0;
};

/// The share of `now`'s lanes that show what `before` showed `by` pixels further to the right.
double share_moved(const QImage& before, const QImage& now, int by) {
  std::int64_t same = 0, all = 0;
  for (int y = static_cast<int>(kRuler) + 2; y < now.height() - 2; ++y) {
    for (int x = static_cast<int>(kGutter) + 4; x + by < now.width() - 4; ++x) {
      ++all;
      same += now.pixel(x, y) == before.pixel(x + by, y) ? 1 : 0;
    }
  }
  return static_cast<double>(same) / static_cast<double>(std::max<std::int64_t>(1, all));
}

// However long a frame takes, every event is handled before it is there, and the picture before moves along.
TEST_F(Window, PanAndZoomDoNotWaitForAFrame) {
  open({kToy});
  TimelineWidget& timeline = window_->timeline();
  QWidget* canvas = timeline.viewport();
  ASSERT_TRUE(QTest::qWaitFor([&] {  // the first frame may not have been asked for yet
    const auto frame = timeline.frames().wait(std::chrono::milliseconds(50)) ? timeline.frames().latest() : nullptr;
    return frame != nullptr && frame->of.scene.get() == &timeline.scene();
  }));
  const QImage before = canvas->grab().toImage();
  const auto shown = timeline.frames().latest();
  const TimeRange home = range();

  const auto hold = std::make_shared<Hold>();
  timeline.frames().set_before_frame([hold] { hold->wait(); });
  const auto send = [&](QEvent* event, QWidget* to) { QCoreApplication::postEvent(to, event); };
  const QPointF middle(kGutter + 300, 60), dragged = middle - QPointF(64, 0);
  const auto mouse = [&](QEvent::Type type, QPointF at, Qt::MouseButton button, Qt::MouseButtons held) {
    send(new QMouseEvent(type, at, canvas->mapToGlobal(at), button, held, Qt::ShiftModifier), canvas);
  };
  mouse(QEvent::MouseButtonPress, middle, Qt::LeftButton, Qt::LeftButton);
  mouse(QEvent::MouseMove, dragged, Qt::NoButton, Qt::LeftButton);
  mouse(QEvent::MouseButtonRelease, dragged, Qt::LeftButton, Qt::NoButton);
  ASSERT_TRUE(QTest::qWaitFor([&] { return hold->waiting() > 0; }));
  EXPECT_GT(range().begin, home.begin) << "the drag is done while its frame is held";
  const QImage moved = canvas->grab().toImage();
  EXPECT_GT(share_moved(before, moved, 64), 0.95) << "the picture before, under the mouse that drags it";
  EXPECT_LT(share_moved(before, moved, 0), 0.95);

  constexpr int kEvents = 40;
  for (int k = 0; k < kEvents; ++k) {
    const int key = k % 2 == 0 ? Qt::Key_W : Qt::Key_D;
    send(new QKeyEvent(QEvent::KeyPress, key, Qt::NoModifier), &timeline);
    send(new QWheelEvent(middle, canvas->mapToGlobal(middle), {}, QPoint(0, k % 2 == 0 ? -120 : 120), Qt::NoButton,
                         Qt::ControlModifier, Qt::NoScrollPhase, false),
         canvas);
    const TimeRange earlier = range();
    QCoreApplication::sendPostedEvents();
    EXPECT_NE(range(), earlier) << k;
    canvas->repaint();
  }
  EXPECT_EQ(timeline.frames().latest(), shown) << "no frame came in between";
  EXPECT_EQ(hold->waiting(), 1) << "the worker is at the first of them still";
  EXPECT_FALSE(hold->given_up());

  hold->let_go();
  ASSERT_TRUE(QTest::qWaitFor([&] { return timeline.frames().wait(std::chrono::milliseconds(50)); }));
  canvas->repaint();
  EXPECT_LE(hold->waiting(), 3) << "those between the first and the last are never painted";
  EXPECT_EQ(timeline.frames().latest()->of.view.range, range());
}

TEST_F(Window, ABrokenSecondFileLeavesTheFirstOnScreen) {
  open({kToy});
  const auto shown = [&] { return window_->timeline().scene().sides.at(0).model; };
  const auto before = shown();
  const std::string broken = temporary_path("broken.fst");
  QFile file(QString::fromStdString(broken));
  ASSERT_TRUE(file.open(QIODevice::WriteOnly));
  file.write(
      "\x89"
      "FST but not really");
  file.close();
  open({broken});
  EXPECT_EQ(shown(), before);
  EXPECT_TRUE(window_->message().contains("broken.fst"));
  open({"/no/such/file"});
  EXPECT_EQ(shown(), before);
  file.remove();
}

TEST_F(Window, SearchListsSlicesAndJumpsToThem) {
  open({kToy});
  window_->searchPanel().field().setText("all_gather");
  ASSERT_TRUE(QTest::qWaitFor([&] { return window_->searchPanel().hits().count() > 1; }, 60'000));
  QTest::keyClick(&window_->searchPanel().field(), Qt::Key_Return);
  ASSERT_TRUE(window_->timeline().navigation().selected().has_value());
  EXPECT_TRUE(window_->searchPanel().sums().text().contains("slices – ")) << "sums by stream";
  window_->searchPanel().field().setText("nothing is called so");
  EXPECT_EQ(window_->searchPanel().hits().count(), 0);
}

TEST_F(Window, NotesAreWrittenWhereTheRangeIs) {
  open({kToy});
  Navigation& navigation = window_->timeline().navigation();
  navigation.select_range(TimeRange{1'000, 9'000});
  press(Qt::Key_T);
  auto* ask = window_->findChild<QInputDialog*>();
  ASSERT_NE(ask, nullptr);
  ask->setTextValue("why so late?");
  ask->accept();
  ASSERT_EQ(navigation.notes().size(), 1u);
  EXPECT_EQ(navigation.notes()[0], (Note{{1'000, 9'000}, "why so late?"}));
}

TEST_F(Window, ALinkToWhatIsSeenOpensThere) {
  open({kToy});
  Navigation& navigation = window_->timeline().navigation();
  navigation.select_range(TimeRange{200'000, 300'000});
  QTest::keyClick(window_.get(), Qt::Key_L, Qt::ControlModifier);
  const std::string link = QGuiApplication::clipboard()->text().toStdString();
  const std::size_t at = link.find("#t=");
  ASSERT_NE(at, std::string::npos) << link;
  arguments_.range = *parse_range(link.substr(at + 3, link.size() - at - 4));
  MainWindow other(arguments_);
  other.show();
  other.open({kToy});
  ASSERT_TRUE(QTest::qWaitFor([&] { return other.timeline().hasScene(); }, 60'000));
  EXPECT_EQ(other.timeline().navigation().range(), (TimeRange{200'000, 300'000}));
}

TEST_F(Window, TheOverviewMovesTheWindow) {
  open({kToy});
  auto* overview = dynamic_cast<OverviewStrip*>(window_->timeline().parentWidget()->findChild<QWidget*>("overview"));
  ASSERT_NE(overview, nullptr);
  press(Qt::Key_Home);
  for (int k = 0; k < 12; ++k) press(Qt::Key_W);
  const TimeRange before = range(), whole = window_->timeline().navigation().extent();
  const int left = static_cast<int>(kGutter), width = overview->width() - left;
  QTest::mouseClick(overview, Qt::LeftButton, {}, QPoint(left + width * 3 / 4, overview->height() / 2));
  EXPECT_NEAR(static_cast<double>(range().length()), static_cast<double>(before.length()), 2);
  const double middle = static_cast<double>(range().begin + range().length() / 2 - whole.begin);
  EXPECT_NEAR(middle / static_cast<double>(whole.length()), 0.75, 0.01);
}

TEST_F(Window, AJobAndItsRecordingAreComparedAndTheTableJumps) {
  const std::string measured = temporary_path("measured.fst");
  ASSERT_TRUE(write_fst(foreshard::testing::toy_timeline(2), measured).has_value());
  open({kToy, measured});
  ASSERT_TRUE(window_->timeline().scene().compares());
  ASSERT_GT(window_->differences().rowCount(), 3);
  window_->differences().setCurrentCell(2, 0);
  const auto selected = window_->timeline().navigation().selected();
  ASSERT_TRUE(selected.has_value());
  EXPECT_EQ(selected->side, 1);
  QFile::remove(QString::fromStdString(measured));
}

TEST_F(Window, RunsAreListedShownAloneAndComparedByTwos) {
  const std::string slow = temporary_path("slow.fst"), slower = temporary_path("slower.fst");
  ASSERT_TRUE(write_fst(foreshard::testing::toy_timeline(2), slow).has_value());
  ASSERT_TRUE(write_fst(foreshard::testing::toy_timeline(3), slower).has_value());
  open({kToy});
  open({slow, slower, kToy}, true);
  RunList& runs = window_->runs();
  ASSERT_EQ(runs.runs().size(), 3u) << "a file that is opened again is no other run";
  EXPECT_TRUE(window_->timeline().scene().compares());
  runs.table().selectRow(0);
  runs.show();
  ASSERT_FALSE(window_->timeline().scene().compares());
  EXPECT_EQ(window_->timeline().scene().sides[0].model, runs.runs()[0].timeline);
  runs.table().setRangeSelected(QTableWidgetSelectionRange(1, 0, 2, 4), true);
  runs.table().setRangeSelected(QTableWidgetSelectionRange(0, 0, 0, 4), false);
  runs.compare();
  ASSERT_TRUE(QTest::qWaitFor([&] { return window_->timeline().scene().compares(); }, 60'000));
  EXPECT_EQ(window_->timeline().scene().sides[1].model, runs.runs()[2].timeline);
  runs.remove();
  EXPECT_EQ(runs.runs().size(), 1u);
  QFile::remove(QString::fromStdString(slow));
  QFile::remove(QString::fromStdString(slower));
}

TEST_F(Window, TheRangePanelSaysWhyNothingRanAndWhatDecided) {
  open({kToy});
  const auto facts = range_facts(window_->timeline().scene(), window_->timeline().navigation().range());
  std::string all;
  for (const Fact& fact : facts) all += fact.name + "=" + fact.value + ";";
  EXPECT_NE(all.find("idle="), std::string::npos) << all;
  EXPECT_NE(all.find("critical path="), std::string::npos) << all;
}

TEST_F(Window, WhatIfFollowsChangesUndoesThemAndComparesWithAPin) {
  open({kToy});
  WhatIfPanel& panel = window_->whatIf();
  ASSERT_TRUE(panel.hasJob());
  const auto settled = [&] { return QTest::qWaitFor([&] { return !panel.isBusy(); }, 60'000); };
  ASSERT_TRUE(panel.change("cluster.world_size", "4"));
  ASSERT_TRUE(settled());
  EXPECT_EQ(panel.model().now().job.cluster.world_size, 4);
  EXPECT_EQ(window_->timeline().scene().sides[0].model, panel.model().now().timeline);
  panel.undo();
  EXPECT_EQ(panel.model().now().job.cluster.world_size, 2);
  panel.model().toggle_pin();
  ASSERT_TRUE(panel.change("cluster.world_size", "4"));
  ASSERT_TRUE(QTest::qWaitFor([&] { return window_->timeline().scene().compares(); }, 60'000));
  // Changes that come faster than answers add up; going back forgets those that are under way.
  ASSERT_TRUE(panel.change("cluster.world_size", "2"));
  ASSERT_TRUE(panel.change("model.batch", "3"));
  ASSERT_TRUE(settled());
  EXPECT_EQ(panel.model().now().job.cluster.world_size, 2);
  EXPECT_EQ(WhatIf::value_of("model.batch", panel.model().now().job), "3");
  ASSERT_TRUE(panel.change("model.batch", "5"));
  panel.undo();
  QTest::qWait(200);
  EXPECT_NE(WhatIf::value_of("model.batch", panel.model().now().job), "5");
  EXPECT_FALSE(panel.change("cluster.world_size", "-4"));
  EXPECT_FALSE(window_->message().isEmpty());
}

TEST_F(Window, ARecordingStaysWhateverIsEditedAndUndoRestoresTheComparison) {
  const std::string measured = temporary_path("kept.fst");
  ASSERT_TRUE(write_fst(foreshard::testing::toy_timeline(2), measured).has_value());
  open({kToy, measured});
  const auto opened = window_->timeline().scene().comparison;
  ASSERT_NE(opened, nullptr);
  WhatIfPanel& panel = window_->whatIf();
  const std::size_t runs = window_->runs().runs().size();
  ASSERT_TRUE(panel.change("model.batch", "3"));
  const auto beside = [&] { return window_->timeline().scene().comparison; };
  ASSERT_TRUE(QTest::qWaitFor([&] { return beside() != opened; }, 60'000));
  ASSERT_NE(beside(), nullptr) << "still a comparison";
  EXPECT_EQ(beside()->b, opened->b) << "the recording";
  EXPECT_EQ(beside()->a, panel.model().now().timeline) << "the edited prediction in the job's place";
  EXPECT_EQ(window_->runs().runs().size(), runs + 1) << "a third run";
  panel.undo();
  EXPECT_EQ(beside(), opened);
  panel.redo();
  ASSERT_TRUE(QTest::qWaitFor([&] { return beside() != opened; }, 60'000));
  // Another file has no job: its panel and its numbers are gone.
  open({measured});
  EXPECT_FALSE(panel.hasJob());
  EXPECT_FALSE(window_->timeline().scene().compares());
  QFile::remove(QString::fromStdString(measured));
}

TEST_F(Window, TheWheelOverAControlScrollsAndDoesNotEdit) {
  open({kToy});
  const Job before = window_->whatIf().model().now().job;
  for (const char* key : {"model.batch", "cluster.world_size", "checkpointing.policy"}) {
    auto* control = window_->whatIf().findChild<QWidget*>(key);
    ASSERT_NE(control, nullptr) << key;
    const QPointF middle(control->rect().center());
    QWheelEvent turn(middle, control->mapToGlobal(middle), {}, QPoint(0, 120), Qt::NoButton, Qt::NoModifier,
                     Qt::NoScrollPhase, false);
    QCoreApplication::sendEvent(control, &turn);
  }
  EXPECT_FALSE(window_->whatIf().isBusy());
  EXPECT_EQ(window_->whatIf().model().now().job, before);
}

TEST_F(Window, TheViewStaysAtTheStepWhenTheJobIsEdited) {
  open({kToy});
  TimelineWidget& timeline = window_->timeline();
  ASSERT_EQ(range(), timeline.navigation().home());
  ASSERT_TRUE(window_->whatIf().change("model.batch", "3"));
  ASSERT_TRUE(QTest::qWaitFor([&] { return !window_->whatIf().isBusy(); }, 60'000));
  EXPECT_EQ(range(), timeline.navigation().home()) << "a whole step is a whole step again";
  EXPECT_EQ(range().begin, 0) << "time is counted from the step's begin";
  press(Qt::Key_W);
  const TimeRange closer = range();
  ASSERT_TRUE(window_->whatIf().change("cluster.world_size", "4"));
  ASSERT_TRUE(QTest::qWaitFor([&] { return !window_->whatIf().isBusy(); }, 60'000));
  EXPECT_EQ(range(), closer);
}

TEST_F(Window, WhatDecidesStandsAboveTheCanvas) {
  open({kToy});
  std::string all;
  for (const Figure& figure : window_->strip().figures())
    all += figure.name + "=" + figure.value + " " + figure.note + ";";
  for (const char* name : {"step=", "exposed=", "card=", "fits"}) EXPECT_NE(all.find(name), std::string::npos) << all;
  EXPECT_TRUE(QTest::qWaitFor([&] { return window_->strip().height() > 20; }));
}

TEST_F(Window, TheLargestDifferenceIsMarkedAndZoomedTo) {
  const std::string measured = temporary_path("largest.fst");
  ASSERT_TRUE(write_fst(foreshard::testing::toy_timeline(2), measured).has_value());
  open({kToy, measured});
  QTest::keyClick(window_.get(), Qt::Key_D, Qt::ControlModifier);
  EXPECT_EQ(window_->differences().currentRow(), 0);
  const auto largest = window_->timeline().scene().comparison->pairs.front();
  ASSERT_TRUE(window_->timeline().navigation().selected().has_value());
  EXPECT_EQ(window_->timeline().navigation().selected()->span, largest.span_b);
  EXPECT_EQ(range().length(), largest.b.length() + 2 * std::max<SimDuration>(20, largest.b.length()));
  QFile::remove(QString::fromStdString(measured));
}

TEST_F(Window, TracksFillATallWindow) {
  open({kToy});
  window_->resize(1440, 2000);
  TimelineWidget& timeline = window_->timeline();
  ASSERT_TRUE(QTest::qWaitFor([&] { return timeline.viewport()->height() > 1000; }));
  EXPECT_NEAR(timeline.scene().height, timeline.viewport()->height() - kRuler, 1);
}

TEST_F(Window, DroppedFilesAreOpened) {
  QMimeData data;
  data.setUrls({QUrl::fromLocalFile(QString::fromStdString(kToy))});
  QDropEvent drop(QPointF(100, 100), Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
  window_->dropEvent(&drop);
  ASSERT_TRUE(QTest::qWaitFor([&] { return window_->timeline().hasScene(); }, 60'000));
}

std::string toy_sweep() {
  const std::string path = temporary_path("sweep.json");
  QFile file(QString::fromStdString(path));
  EXPECT_TRUE(file.open(QIODevice::WriteOnly));
  file.write(R"({"schema": "foreshard.sweep/1", "model": "toy", "profile": "h100-sxm-80", "budget_bytes": 80000000000,
    "objective": "step_time", "points": [
    {"index": 0, "set": {"model.batch": 1}, "step_time_ns": 400000, "peak_reserved_bytes": 60000000, "fits": true,
     "pareto": true, "reason": "", "tokens_per_step": 2},
    {"index": 1, "set": {"model.batch": 3}, "step_time_ns": 300000, "peak_reserved_bytes": 90000000, "fits": true,
     "pareto": true, "reason": "", "tokens_per_step": 2}]})");
  return path;
}

TEST_F(Window, ASweepsPointIsOpenedByAClickAndByKeys) {
  open({kToy});
  const std::string batch = WhatIf::value_of("model.batch", window_->whatIf().model().now().job);
  open({toy_sweep()});
  ParetoWidget& pareto = window_->pareto();
  ASSERT_TRUE(pareto.isVisible());
  const auto shown = [&](const std::string& value) {
    return QTest::qWaitFor(
        [&] {
          return window_->timeline().isVisible() && !window_->whatIf().isBusy() &&
                 WhatIf::value_of("model.batch", window_->whatIf().model().now().job) == value;
        },
        20'000);
  };
  QTest::keyClick(&pareto, Qt::Key_Right);  // the fastest
  EXPECT_EQ(pareto.marked(), 1u);
  QTest::keyClick(&pareto, Qt::Key_Return);
  EXPECT_TRUE(shown("3"));

  open({toy_sweep()});
  ASSERT_TRUE(pareto.isVisible());
  const auto sweep = read_sweep_points(
      [] {
        QFile file(QString::fromStdString(toy_sweep()));
        EXPECT_TRUE(file.open(QIODevice::ReadOnly));
        return file.readAll().toStdString();
      }(),
      "sweep.json");
  ASSERT_TRUE(sweep.has_value());
  const QPointF place = pareto_scale(*sweep, QRectF(pareto.rect())).at(400'000, 60e6);
  QTest::mouseClick(&pareto, Qt::LeftButton, {}, place.toPoint());
  EXPECT_TRUE(shown("1"));

  open({toy_sweep()});  // a point that is the job already is shown too
  QTest::mouseClick(&pareto, Qt::LeftButton, {}, place.toPoint());
  EXPECT_TRUE(shown("1"));
}

TEST_F(Window, WithoutItsJobASweepsPointSaysHowToGetIt) {
  open({toy_sweep()});
  QTest::keyClick(&window_->pareto(), Qt::Key_Right);
  QTest::keyClick(&window_->pareto(), Qt::Key_Return);
  EXPECT_TRUE(window_->message().contains("--set model.batch=3"));
}

TEST_F(Window, TheWindowOfTimeTheBookmarksAndTheFilesAreRemembered) {
  QSettings().clear();
  ViewerArguments arguments;
  TimeRange seen;
  std::vector<SimTime> bookmarks;
  for (const bool again : {false, true}) {
    MainWindow window(arguments);
    window.show();
    window.open({kToy}, false);
    ASSERT_TRUE(QTest::qWaitFor([&] { return window.timeline().hasScene(); }, 60'000));
    Navigation& navigation = window.timeline().navigation();
    if (again) {
      EXPECT_EQ(navigation.range(), seen);
      EXPECT_EQ(navigation.bookmarks(), bookmarks);
      EXPECT_EQ(navigation.notes(), (std::vector<Note>{{{5, 70}, "\"here\", 1 – 2"}}));
      EXPECT_EQ(QSettings().value("recent").toStringList().value(0),
                QFileInfo(QString::fromStdString(kToy)).absoluteFilePath());
    } else {
      EXPECT_TRUE(navigation.bookmarks().empty());
      for (const Qt::Key key : {Qt::Key_W, Qt::Key_W, Qt::Key_D, Qt::Key_B}) QTest::keyClick(&window.timeline(), key);
      seen = navigation.range();
      bookmarks = navigation.bookmarks();
      EXPECT_EQ(bookmarks.size(), 1u);
      navigation.set_note({5, 70}, "\"here\", 1 – 2");
    }
    window.close();
  }
  QSettings().clear();
}

TEST_F(Window, EveryControlHasANameForThoseWhoListen) {
  open({kToy});
  for (const QWidget* widget : window_->findChildren<QWidget*>()) {
    if (widget->focusPolicy() == Qt::NoFocus || widget->objectName().startsWith("qt_") || !widget->isVisible())
      continue;
    const bool told = !widget->accessibleName().isEmpty() || widget->inherits("QAbstractButton") ||
                      widget->inherits("QTabBar") || widget->inherits("QScrollBar") || widget->inherits("QLabel") ||
                      (widget->parentWidget() != nullptr && widget->parentWidget()->inherits("QSpinBox"));
    EXPECT_TRUE(told) << widget->metaObject()->className() << " " << widget->objectName().toStdString();
  }
}

}  // namespace
}  // namespace foreshard::gui
