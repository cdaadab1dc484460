#include "gui/models/navigation.h"

#include <gtest/gtest.h>

namespace foreshard::gui {
namespace {

Navigation sample() { return Navigation({0, 1'000'000}, {200'000, 400'000}); }

TEST(Navigation, ZoomKeepsTheTimeUnderThePointer) {
  Navigation navigation = sample();
  navigation.zoom(0.5, 250'000);
  EXPECT_EQ(navigation.range(), (TimeRange{225'000, 325'000}));
  navigation.zoom(2, 250'000);
  EXPECT_EQ(navigation.range(), (TimeRange{200'000, 400'000}));
}

TEST(Navigation, NeverGetsNarrowerThanAFewNanosecondsNorLeavesTheTimeline) {
  Navigation navigation = sample();
  for (int k = 0; k < 200; ++k) navigation.zoom(0.5, 300'000);
  EXPECT_EQ(navigation.range().length(), 20);
  for (int k = 0; k < 200; ++k) navigation.pan(-1000);
  EXPECT_GE(navigation.range().end, 0);
  for (int k = 0; k < 200; ++k) navigation.zoom(3, 0);
  EXPECT_LE(navigation.range().length(), 4'000'000);
}

TEST(Navigation, ARunOfSmallMovesIsOneStepBack) {
  Navigation navigation = sample();
  for (int k = 0; k < 5; ++k) navigation.pan(0.1);
  navigation.show({0, 100'000});
  ASSERT_TRUE(navigation.undo());
  EXPECT_EQ(navigation.range(), (TimeRange{300'000, 500'000}));
  ASSERT_TRUE(navigation.undo());
  EXPECT_EQ(navigation.range(), (TimeRange{200'000, 400'000}));
  EXPECT_FALSE(navigation.undo());
  ASSERT_TRUE(navigation.redo());
  ASSERT_TRUE(navigation.redo());
  EXPECT_EQ(navigation.range(), (TimeRange{0, 100'000}));
  EXPECT_FALSE(navigation.redo());
}

TEST(Navigation, SelectionsAreTakenBackToo) {
  Navigation navigation = sample();
  for (SimTime end = 300'000; end < 350'000; end += 10'000) navigation.select_range(TimeRange{250'000, end});
  navigation.select_range(std::nullopt);
  navigation.select_slice(SceneSlice{0, 7});
  navigation.show({0, 100'000});  // to bring it into sight
  ASSERT_TRUE(navigation.undo());
  EXPECT_FALSE(navigation.selected().has_value());
  EXPECT_EQ(navigation.range(), (TimeRange{200'000, 400'000}));
  ASSERT_TRUE(navigation.undo());
  EXPECT_EQ(navigation.selection(), (TimeRange{250'000, 340'000}));
  ASSERT_TRUE(navigation.undo());
  EXPECT_FALSE(navigation.selection().has_value()) << "a drag is one step";
  EXPECT_FALSE(navigation.undo());
  for (int k = 0; k < 3; ++k) ASSERT_TRUE(navigation.redo());
  EXPECT_EQ(navigation.selected(), (SceneSlice{0, 7}));
  EXPECT_EQ(navigation.range(), (TimeRange{0, 100'000}));
}

TEST(Navigation, FitShowsTheSelectionAndThenEverything) {
  Navigation navigation = sample();
  navigation.select_range(TimeRange{500'000, 450'000});  // drawn from right to left
  navigation.fit(std::nullopt);
  EXPECT_EQ(navigation.range(), (TimeRange{450'000, 500'000}));
  navigation.fit(std::nullopt);
  EXPECT_EQ(navigation.range(), (TimeRange{0, 1'000'000}));
  navigation.select_range(std::nullopt);
  navigation.fit(TimeRange{100'000, 140'000});
  EXPECT_LT(navigation.range().begin, 100'000);
  EXPECT_GT(navigation.range().end, 140'000);
}

TEST(Navigation, BookmarksAreSetTakenAwayAndWalked) {
  Navigation navigation = sample();
  navigation.toggle_bookmark(300'000);
  navigation.toggle_bookmark(250'000);
  EXPECT_EQ(navigation.bookmarks(), (std::vector<SimTime>{250'000, 300'000}));
  EXPECT_EQ(navigation.next_mark(260'000), 300'000);
  EXPECT_EQ(navigation.next_mark(300'000), 250'000);
  navigation.toggle_bookmark(300'500);
  EXPECT_EQ(navigation.bookmarks(), std::vector<SimTime>{250'000});
}

TEST(Navigation, EmptyTimelinesHaveAWindowToo) {
  const Navigation navigation({0, 0}, {0, 0});
  EXPECT_GT(navigation.range().length(), 0);
}

TEST(Navigation, NotesStandAtTheirRangeUntilTheyAreEmpty) {
  Navigation navigation = sample();
  navigation.set_note({300'000, 320'000}, "slow gather");
  navigation.set_note({100'000, 100'000}, "begin");
  ASSERT_EQ(navigation.notes().size(), 2u);
  EXPECT_EQ(navigation.notes()[0].text, "begin") << "by time";
  navigation.set_note({300'000, 320'000}, "slow all-gather");
  ASSERT_NE(navigation.note_at({300'000, 320'000}), nullptr);
  EXPECT_EQ(navigation.note_at({300'000, 320'000})->text, "slow all-gather");
  navigation.toggle_bookmark(200'000);
  EXPECT_EQ(navigation.next_mark(150'000), 200'000);
  EXPECT_EQ(navigation.next_mark(200'000), 310'000) << "the middle of a note";
  EXPECT_EQ(navigation.next_mark(310'000), 100'000) << "from the last on to the first";
  navigation.set_note({100'000, 100'000}, "");
  EXPECT_EQ(navigation.notes().size(), 1u);
}

}  // namespace
}  // namespace foreshard::gui
