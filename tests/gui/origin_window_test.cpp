// From kernels to operators, modules and Python and back; findings, flame graph, stragglers, SQL and ranks in the
// window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <QAction>
#include <QApplication>
#include <QComboBox>
#include <QDockWidget>
#include <QFile>
#include <QLabel>
#include <QLineEdit>
#include <QTest>
#include <fstream>

#include "gui/models/slice_details.h"
#include "gui/view/window/main_window.h"
#include "tests/gui/sample.h"
#include "tests/support/temporary_path.h"
#include "traces/formats/fst.h"

namespace foreshard::gui {
namespace {

using foreshard::testing::temporary_path;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

const std::string kTrace = R"({"traceEvents": [
  {"ph":"X","cat":"python_function","name":"train.py(12): step","pid":1,"tid":1,"ts":0,"dur":900,"args":{"Python id":1}},
  {"ph":"X","cat":"python_function","name":"nn.Module: MLP_1","pid":1,"tid":1,"ts":5,"dur":200,"args":{"Python id":2}},
  {"ph":"X","cat":"cpu_op","name":"aten::linear","pid":1,"tid":1,"ts":10,"dur":40,"args":{"External id":4}},
  {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":15,"dur":30,"args":{"Input Dims":[[8, 16], [16, 4]]}},
  {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":20,"dur":5,"args":{"correlation":77}},
  {"ph":"X","cat":"kernel","name":"_ZN2at6native4gemmIfLi4EEEvPfi","pid":0,"tid":7,"ts":30,"dur":100,
   "args":{"correlation":77,"grid":[54, 1, 1],"block":[128, 1, 1],"registers per thread":32,"stream":7}},
  {"ph":"X","cat":"kernel","name":"other","pid":0,"tid":7,"ts":150,"dur":10,"args":{"correlation":78,"grid":[1,1,1]}}
]})";

class Origins : public ::testing::Test {
 protected:
  Origins() {
    std::ofstream(path_) << kTrace;
    ViewerArguments arguments;
    arguments.no_session = true;
    window_ = std::make_unique<MainWindow>(arguments);
    window_->show();
    window_->activateWindow();
    EXPECT_TRUE(QTest::qWaitForWindowActive(window_.get()));
    open({path_});
  }
  void open(const std::vector<std::string>& files) {
    window_->open(files);
    EXPECT_TRUE(QTest::qWaitFor([&] { return !window_->isLoading(); }, 60'000));
  }
  ~Origins() override { QFile::remove(QString::fromStdString(path_)); }

  const Timeline& timeline() { return window_->timeline().scene().sides[0].model->timeline; }
  SceneSlice slice(const std::string& name) {
    for (std::size_t i = 0; i < timeline().spans.size(); ++i)
      if (timeline().name_of(timeline().spans[i].name).find(name) != std::string_view::npos)
        return {0, static_cast<std::uint32_t>(i)};
    ADD_FAILURE() << name;
    return {};
  }
  std::string selected() {
    const auto chosen = window_->timeline().navigation().selected();
    return chosen ? std::string(timeline().name_of(timeline().spans[chosen->span].name)) : "nothing";
  }
  void select(const std::string& name) { window_->timeline().selectSlice(slice(name), true); }
  std::map<std::string, std::string> facts() {
    std::map<std::string, std::string> all;
    for (int row = 0; row < window_->inspector().rowCount(); ++row)
      all.emplace(window_->inspector().item(row, 0)->text().toStdString(),
                  window_->inspector().item(row, 1)->text().toStdString());
    return all;
  }
  /// What stands in a dock, which comes to the front.
  template <class Panel>
  Panel& raised(const char* dock) {
    auto* docked = window_->findChild<QDockWidget*>(dock);
    docked->show();
    docked->raise();
    return static_cast<Panel&>(*docked->widget());
  }

  const std::string path_ = foreshard::testing::temporary_path("origins.json");
  std::unique_ptr<MainWindow> window_;
};

TEST_F(Origins, TheInspectorTellsNameOperatorModuleShapesGridAndPython) {
  select("gemm");
  const auto all = facts();
  EXPECT_THAT(all, Contains(Pair("what", "at::native::gemm<>")));
  EXPECT_THAT(all, Contains(Pair("full name", "void at::native::gemm<float, 4>(float*, int)")));
  EXPECT_THAT(all, Contains(Pair("operator", "aten::linear › aten::mm")));
  EXPECT_THAT(all, Contains(Pair("module", "MLP_1")));
  EXPECT_THAT(all, Contains(Pair("Python", "nn.Module: MLP_1")));
  EXPECT_THAT(all, Contains(Pair("grid", "[54, 1, 1]")));
  EXPECT_THAT(all, Contains(Pair("registers", "32")));
  EXPECT_THAT(all, Contains(Pair("correlation", "77")));
  select("aten::mm");
  EXPECT_THAT(facts(), Contains(Pair("shapes", "[[8, 16], [16, 4]]")));
}

TEST_F(Origins, KeysWalkFromTheKernelToItsOperatorAndBack) {
  select("gemm");
  QTest::keyClick(&window_->timeline(), Qt::Key_O);
  EXPECT_EQ(selected(), "aten::mm");
  QTest::keyClick(&window_->timeline(), Qt::Key_O);
  EXPECT_EQ(selected(), "aten::linear");
  QTest::keyClick(&window_->timeline(), Qt::Key_O);
  EXPECT_EQ(selected(), "nn.Module: MLP_1");
  QTest::keyClick(&window_->timeline(), Qt::Key_K);
  EXPECT_THAT(selected(), HasSubstr("gemm"));
}

TEST_F(Origins, WhatBelongsToTheSelectedSliceIsMarkedWithIt) {
  const TimelineModel& model = *window_->timeline().scene().sides[0].model;
  EXPECT_THAT(related_slices(model, slice("gemm")),
              ::testing::UnorderedElementsAre(slice("cudaLaunchKernel"), slice("aten::mm"), slice("aten::linear")));
  EXPECT_THAT(related_slices(model, slice("train.py")), ::testing::ElementsAre(slice("gemm")));
}

TEST_F(Origins, ADoubleClickInTheInspectorGoesToTheSliceOfItsRow) {
  select("gemm");
  for (int row = 0; row < window_->inspector().rowCount(); ++row) {
    if (window_->inspector().item(row, 0)->text() != "Python") continue;
    window_->inspector().setCurrentCell(row, 1);
    QTest::keyClick(&window_->inspector(), Qt::Key_Return);
    break;
  }
  EXPECT_EQ(selected(), "nn.Module: MLP_1");
}

TEST_F(Origins, TheFlameGraphWidensALevelAndGoesToItsWork) {
  auto& panel = raised<FlamePanel>("flame");
  ASSERT_TRUE(QTest::qWaitFor([&] { return panel.canvas().graph() != nullptr; }, 30'000));
  const FlameGraph& graph = *panel.canvas().graph();
  EXPECT_EQ(graph.nodes.front().total, 110'000);
  panel.canvas().repaint();
  QTest::mouseClick(&panel.canvas(), Qt::LeftButton, {}, QPoint(40, 25));
  EXPECT_EQ(graph.nodes[panel.canvas().root()].name, "train.py(12): step");
  QTest::mouseDClick(&panel.canvas(), Qt::LeftButton, {}, QPoint(40, 25));
  EXPECT_THAT(selected(), HasSubstr("gemm"));
  panel.by().setCurrentIndex(1);
  EXPECT_TRUE(QTest::qWaitFor(
      [&] { return panel.canvas().graph()->nodes.size() > 1 && panel.canvas().graph()->nodes[1].name == "MLP_1"; },
      30'000));
}

TEST_F(Origins, SqlIsAnsweredAndARowWithAnIdGoesToItsSlice) {
  auto& panel = raised<QueryPanel>("query");
  panel.field().setText("select id, name from spans where name = 'aten::mm'");
  QTest::keyClick(&panel.field(), Qt::Key_Return);
  if (QTest::qWaitFor([&] { return panel.state().text().contains("no questions"); }, 200)) GTEST_SKIP() << "no SQLite";
  ASSERT_TRUE(QTest::qWaitFor([&] { return panel.answer().rowCount() == 1; }, 30'000));
  EXPECT_EQ(panel.answer().item(0, 1)->text(), "aten::mm");
  panel.answer().setCurrentCell(0, 1);
  QTest::keyClick(&panel.answer(), Qt::Key_Return);
  EXPECT_EQ(selected(), "aten::mm");
  panel.field().setText("select nothing from nowhere");
  QTest::keyClick(&panel.field(), Qt::Key_Return);
  EXPECT_TRUE(QTest::qWaitFor([&] { return panel.state().text().contains("nowhere"); }, 30'000));
}

TEST_F(Origins, AQuestionWithoutEndEndsWithTheNextAndWithTheWindow) {
  auto& panel = raised<QueryPanel>("query");
  const auto ask = [&](const QString& text) {
    panel.field().setText(text);
    QTest::keyClick(&panel.field(), Qt::Key_Return);
  };
  const QString endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n";
  ask(endless);
  if (QTest::qWaitFor([&] { return panel.state().text().contains("no questions"); }, 200)) GTEST_SKIP() << "no SQLite";
  ask("select id from spans where name = 'aten::mm'");
  EXPECT_TRUE(QTest::qWaitFor([&] { return panel.answer().rowCount() == 1; }, 30'000));
  ask(endless);
  QTest::qWait(100);
}

TEST(LatenessMap, HasARowForEachRankAndTheLatestIsHottest) {
  Timeline t;
  t.lanes = {{0, "A"}, {1, "A"}};
  t.names = {"ncclKernel"};
  for (const int rank : {0, 1}) {
    for (int k = 0; k < 3; ++k) {
      Span span;
      span.lane = LaneId(rank), span.kind = SpanKind::AllGather, span.name = NameId(0);
      span.start = 1000 * k + (rank == 1 && k == 1 ? 300 : rank * 10);
      span.duration = 1000 * k + 500 - span.start;
      t.spans.push_back(span);
    }
  }
  const LatenessMap map = lateness_map(t, false);
  ASSERT_EQ(map.ranks.size(), 2u);
  ASSERT_EQ(map.columns.size(), 3u);
  EXPECT_EQ(map.at(0, 1).late, 0);
  EXPECT_EQ(map.at(1, 1).late, 300);
  EXPECT_EQ(map.latest, 300);
  EXPECT_EQ(map.at(1, 1).span, SpanId(4));
  const LatenessMap steps = lateness_map(t, true);
  ASSERT_EQ(steps.columns.size(), 1u);
  EXPECT_EQ(steps.at(1, 0).late, 320);
  EXPECT_TRUE(lateness_map(Timeline{}, false).columns.empty());
}

TEST_F(Origins, FindingsStandBelowARecordingAndLeadToWhatTheyAreAbout) {
  open({std::string(FORESHARD_SOURCE_DIR) + "/examples/toy.toml"});
  auto* panel = dynamic_cast<FindingsPanel*>(window_->findChild<QDockWidget*>("findings")->widget());
  ASSERT_NE(panel, nullptr);
  FindingsTable& table = panel->table();
  ASSERT_TRUE(QTest::qWaitFor([&] { return table.rowCount() > 0; }, 20'000));
  EXPECT_TRUE(table.isVisible());
  const auto found = diagnose(window_->timeline().scene().sides.front().model->timeline);
  ASSERT_TRUE(found);
  ASSERT_EQ(table.rowCount(), static_cast<int>(found->findings.size()));
  EXPECT_EQ(table.item(0, 0)->text().replace(' ', '_').toStdString(), found->findings.front().name);
  for (const DiagnosedCause& cause : found->findings)  // the norm's four bytes are none, the plan's own waits neither
    EXPECT_THAT(cause.name, Not(AnyOf("collective_on_compute_stream", "synchronising_copy")));
  const TimeRange home = window_->timeline().navigation().range();
  QTest::mouseClick(table.viewport(), Qt::LeftButton, {}, table.visualItemRect(table.item(0, 0)).center());
  const Interval there = found->findings.front().evidence.front().time;
  const SimTime origin = window_->timeline().scene().sides.front().origin;
  ASSERT_TRUE(window_->timeline().navigation().selection());
  EXPECT_EQ(*window_->timeline().navigation().selection(), (TimeRange{there.begin - origin, there.end - origin}));
  EXPECT_LT(window_->timeline().navigation().range().length(), home.length());
}

TEST_F(Origins, TheDarkThemeIsThatOfTablesAndMenusToo) {
  const QPalette before = QApplication::palette();
  QAction* toggle = nullptr;
  for (QAction* action : window_->findChildren<QAction*>())
    if (action->text() == "&Dark") toggle = action;
  ASSERT_NE(toggle, nullptr);
  toggle->setChecked(true);
  EXPECT_EQ(window_->timeline().theme(), Theme::Dark);
  EXPECT_LT(QApplication::palette().color(QPalette::Window).lightness(), 128);
  toggle->setChecked(false);
  EXPECT_EQ(window_->timeline().theme(), Theme::Light);
  QApplication::setPalette(before);
}

/// The toy's timeline, once for each rank.
void write_ranks(std::int32_t ranks, const std::string& path) {
  Timeline all = foreshard::testing::toy_timeline();
  const std::size_t lanes = all.lanes.size(), spans = all.spans.size();
  for (std::int32_t rank = 1; rank < ranks; ++rank) {
    for (std::size_t k = 0; k < lanes; ++k) {
      all.lanes.push_back(all.lanes[k]);
      all.lanes.back().rank = rank;
    }
    for (std::size_t k = 0; k < spans; ++k) {
      all.spans.push_back(all.spans[k]);
      all.spans.back().lane = LaneId(all.spans[k].lane.index() + lanes * static_cast<std::size_t>(rank));
    }
  }
  ASSERT_TRUE(write_fst(all, path).has_value());
}

TEST_F(Origins, ThreadsOfManyRanksAreHiddenUntilSomebodyAsksForThem) {
  const std::string many = temporary_path("many.fst"), few = temporary_path("few.fst");
  write_ranks(8, many);
  write_ranks(2, few);
  const auto threads = [&] {
    const Scene& scene = window_->timeline().scene();
    return std::count_if(scene.tracks.begin(), scene.tracks.end(), [&](const Track& track) {
      return track.kind == TrackKind::Lane && track.label.starts_with("host");
    });
  };
  open({many});
  EXPECT_EQ(threads(), 0);
  open({few});
  EXPECT_EQ(threads(), 2);
  for (const std::string& path : {many, few}) QFile::remove(QString::fromStdString(path));
}

TEST_F(Origins, AClickOnARanksHeadingFoldsIt) {
  const std::string path = temporary_path("ranks.fst");
  write_ranks(2, path);
  open({path});
  const auto lanes_of = [&](std::int32_t rank) {
    const auto& tracks = window_->timeline().scene().tracks;
    return std::count_if(tracks.begin(), tracks.end(),
                         [&](const Track& track) { return track.kind == TrackKind::Lane && track.rank == rank; });
  };
  ASSERT_GT(lanes_of(1), 0);
  const auto& tracks = window_->timeline().scene().tracks;
  const auto heading = std::find_if(tracks.begin(), tracks.end(), [](const Track& track) {
    return track.kind == TrackKind::Rank && track.rank == 0;
  });
  ASSERT_NE(heading, tracks.end());
  const QPoint at(20, static_cast<int>(kRuler + heading->y + heading->height / 2));
  QTest::mouseClick(window_->timeline().viewport(), Qt::LeftButton, {}, at);
  EXPECT_EQ(lanes_of(0), 0);
  EXPECT_GT(lanes_of(1), 0);
  QTest::mouseClick(window_->timeline().viewport(), Qt::LeftButton, {}, at);
  EXPECT_GT(lanes_of(0), 0);
  QFile::remove(QString::fromStdString(path));
}

}  // namespace
}  // namespace foreshard::gui
