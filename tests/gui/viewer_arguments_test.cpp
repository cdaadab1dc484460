#include "gui/models/viewer_arguments.h"

#include <gtest/gtest.h>

namespace foreshard::gui {
namespace {

TEST(ViewerArguments, FlagsTakeTheirValuesBehindThemOrBehindAnEqualsSign) {
  const auto parsed = parse_viewer_arguments({"--render", "out.svg", "a.fst", "--view=compare", "b.fst", "--theme=dark",
                                              "--size=1200x700", "--range=1..2.5ms", "--set=model.batch=2"});
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->files, (std::vector<std::string>{"a.fst", "b.fst"}));
  EXPECT_EQ(parsed->render, "out.svg");
  EXPECT_EQ(parsed->view, ViewKind::Compare);
  EXPECT_EQ(parsed->theme, Theme::Dark);
  EXPECT_EQ(parsed->width, 1200);
  EXPECT_EQ(parsed->height, 700);
  EXPECT_EQ(parsed->range, (TimeRange{1'000'000, 2'500'000}));
  EXPECT_EQ(parsed->sets, std::vector<std::string>{"model.batch=2"});
}

TEST(ViewerArguments, BehindTwoDashesEverythingIsAFile) {
  const auto parsed = parse_viewer_arguments({"--", "--odd-name.fst"});
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->files, std::vector<std::string>{"--odd-name.fst"});
}

TEST(ViewerArguments, WhatIsWrongIsUsage) {
  const std::vector<std::vector<std::string>> wrong{{"--view", "cake"},    {"--size", "0x0"},     {"--size", "axb"},
                                                    {"--theme", "red"},    {"--range", "5..1ms"}, {"--range", "nan..1"},
                                                    {"--range", "1..2lb"}, {"--scale", "900"},    {"--rank", "-1"},
                                                    {"--render", "x.svg"}, {"--render"},          {"--redner", "x"}};
  for (const auto& line : wrong) {
    const auto parsed = parse_viewer_arguments(line);
    ASSERT_FALSE(parsed.has_value()) << line.front() << " " << line.back();
    EXPECT_EQ(parsed.error().code, ErrorCode::Usage);
  }
  EXPECT_EQ(parse_viewer_arguments({"--redner", "x"}).error().hint, "did you mean --render?");
}

TEST(ViewerArguments, ACopiedLinkIsTheCommandThatShowsTheSame) {
  EXPECT_EQ(view_command({"it's.fst"}, false, {1'200'000, 1'450'500}),
            "foreshard view 'it'\\''s.fst#t=1200.000us..1450.500us'");
  EXPECT_EQ(view_command({"job.toml", "a b.fst"}, true, {0, 7'001}),
            "foreshard view 'job.toml' 'a b.fst' --view compare --range 0.000us..7.001us");
  EXPECT_EQ(parse_range("1200.000us..1450.501us"), (TimeRange{1'200'000, 1'450'501}));
}

}  // namespace
}  // namespace foreshard::gui
