#include "cli/reports/sweep_document.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/reports/sweep_picture.h"
#include "cli/reports/sweep_report.h"

namespace foreshard::cli {
namespace {

SweepAxis axis(const std::string& text) {
  auto parsed = parse_sweep_axis(text);
  EXPECT_TRUE(parsed.has_value());
  return *parsed;
}

/// Six points: two on the front, one beaten, one the same, one that does not fit, one refused.
SweepDocument sample() {
  SweepDocument d;
  d.model = "llama-<3>";
  d.profile = "h100-sxm-80";
  d.job = "0123456789abcdef";
  d.budget = 80 * kGiB;
  d.axes = {axis("fsdp.wrap.units=[[\"a\", \"b\"]],[[\"c\"]]"), axis("checkpointing.policy=none,block,every_k")};
  d.points_in_all = 6;
  const auto grid = SweepGrid::make(d.axes);
  for (std::size_t k = 0; k < 6; ++k) {
    SweepPoint point;
    point.index = k;
    point.values = grid->values_of(k);
    point.fits = k < 4;
    point.step_time_ns = 1e8 + 1e7 * static_cast<double>(k);
    point.tokens_per_step = 4096;
    point.exposed_ns = 1234;
    point.peak_reserved = (60 - 7 * static_cast<Bytes>(k)) * kGiB;
    point.peak_allocated = point.peak_reserved - kMiB;
    d.result.points.push_back(point);
  }
  d.result.points[2].peak_reserved = 60 * kGiB;
  d.result.points[3] = d.result.points[1];
  d.result.points[3].index = 3;
  d.result.points[3].values = grid->values_of(3);
  d.result.points[3].same_as = 1;
  d.result.points[4].misfit = "out of memory in backward of layers.3, iteration 0";
  d.result.points[5].refused = Error{ErrorCode::Refused, "trap 5, \"offload\"", "", "fsdp", "", "", ""};
  d.result.simulated = 4;
  d.result.seconds = 0.25;
  find_front(d.result);
  return d;
}

TEST(SweepDocument, JsonSaysWhatThePublicFacePromises) {
  const auto json = nlohmann::json::parse(sweep_json(sample()));
  EXPECT_EQ(json["schema"], "foreshard.sweep/1");
  EXPECT_EQ(json["evaluated"], 6);
  EXPECT_EQ(json["seconds"], 0.25);
  ASSERT_EQ(json["points"].size(), 6U);
  const auto& point = json["points"][1];
  EXPECT_EQ(point["set"]["checkpointing.policy"], "block");
  EXPECT_EQ(point["step_time_ns"], 1.1e8);
  EXPECT_EQ(point["peak_reserved_bytes"], 53 * kGiB);
  EXPECT_EQ(point["fits"], true);
  EXPECT_EQ(point["pareto"], true);
  EXPECT_TRUE(json["points"][4]["step_time_ns"].is_null());
  EXPECT_EQ(json["points"][5]["refused"]["code"], "refused");
  EXPECT_EQ(json["points"][3]["same_as"], 1);
  EXPECT_EQ(json["points"][3]["pareto"], false);
}

TEST(SweepDocument, EveryPointHasItsReason) {
  const std::vector<std::string> why = reasons(sample());
  EXPECT_NE(why[0].find("fastest"), std::string::npos) << why[0];
  EXPECT_NE(why[1].find("least memory"), std::string::npos) << why[1];
  EXPECT_NE(why[1].find("7.00 GiB less memory than point 0"), std::string::npos) << why[1];
  EXPECT_NE(why[1].find("checkpointing.policy none -> block"), std::string::npos) << why[1];
  EXPECT_NE(why[2].find("beaten by point 0"), std::string::npos) << why[2];
  EXPECT_EQ(why[3], "the same job as point 1");
  EXPECT_NE(why[4].find("out of memory in backward"), std::string::npos);
  EXPECT_NE(why[5].find("refused: trap 5"), std::string::npos);
}

TEST(SweepDocument, ReadsWhatItWrites) {
  const std::string text = sweep_json(sample());
  const auto read = parse_sweep(text, "a.json");
  ASSERT_TRUE(read.has_value()) << to_text(read.error());
  EXPECT_EQ(sweep_json(*read), text);
}

TEST(SweepDocument, PartsMergeToTheWhole) {
  const SweepDocument whole = sample();
  std::vector<SweepDocument> parts(2, whole);
  for (std::size_t p = 0; p < 2; ++p) {
    parts[p].of = 2;
    parts[p].have = {p + 1};
    parts[p].result.simulated = 2;
    parts[p].result.seconds = 0.125;
    std::erase_if(parts[p].result.points, [&](const SweepPoint& point) { return point.index % 2 != p; });
    find_front(parts[p].result);
  }
  auto merged = merge_sweeps({parts[1], parts[0]});
  ASSERT_TRUE(merged.has_value()) << to_text(merged.error());
  EXPECT_TRUE(merged->whole());
  merged->of = 1;
  merged->have = {1};
  EXPECT_EQ(sweep_json(*merged), sweep_json(whole));
}

TEST(SweepDocument, PartsOfDifferentSweepsDoNotMerge) {
  std::vector<SweepDocument> parts(2, sample());
  parts[0].of = parts[1].of = 2;
  EXPECT_FALSE(merge_sweeps(parts).has_value());  // part 1 twice
  parts[1].have = {2};
  EXPECT_TRUE(merge_sweeps(parts).has_value());
  parts[1].job = "another";
  EXPECT_FALSE(merge_sweeps(parts).has_value());
  parts[1].job = parts[0].job;
  parts[1].axes[1].values.pop_back();
  EXPECT_FALSE(merge_sweeps(parts).has_value());
}

TEST(SweepDocument, BrokenFilesNameFileAndPlace) {
  const std::string good = sweep_json(sample());
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto read = parse_sweep(text, "a.json");
    EXPECT_FALSE(read.has_value()) << from;
  };
  broken("foreshard.sweep/1", "foreshard.sweep/9");
  broken("\"index\": 2", "\"index\": 6");
  broken("\"index\": 2", "\"index\": 1");
  broken("\"index\": 2", "\"index\": -2");
  broken("\"fits\": true", "\"fits\": 1");
  broken("\"checkpointing.policy\"", "\"checkpointing.polici\"");
  broken("\"have\": [1]", "\"have\": [2]");
  broken("\"seconds\"", "\"second\"");
  EXPECT_FALSE(parse_sweep("", "a.json").has_value());
  EXPECT_FALSE(parse_sweep("[]", "a.json").has_value());
}

TEST(SweepDocument, CsvHasALineAPointAndQuotesCommas) {
  const std::string csv = sweep_csv(sample());
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
  EXPECT_NE(csv.find("\"[[\"\"a\"\", \"\"b\"\"]]\",none,100000000,4096,"), std::string::npos) << csv;
}

TEST(SweepDocument, ThePictureHoldsFrontAndBudgetAndEscapesNames) {
  const std::string svg = sweep_picture(sample());
  EXPECT_EQ(svg.rfind("<svg", 0), 0U);
  EXPECT_NE(svg.find("llama-&lt;3&gt;"), std::string::npos);
  EXPECT_NE(svg.find("memory of one device"), std::string::npos);
  EXPECT_NE(svg.find("<path"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(sweep_picture(sample()), svg);
}

TEST(SweepDocument, APictureOfNothingIsStillOne) {
  SweepDocument d = sample();
  for (SweepPoint& point : d.result.points) point.fits = false;
  find_front(d.result);
  const std::string svg = sweep_picture(d);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_NE(sweep_report(d, {}).find("No point fits"), std::string::npos);
}

TEST(SweepDocument, TheReportGivesCommandsReadyForTheShell) {
  const std::string text = sweep_report(sample(), {});
  EXPECT_NE(text.find("--set 'fsdp.wrap.units=[[\"a\", \"b\"]]' --set checkpointing.policy=block"), std::string::npos)
      << text;
  EXPECT_NE(text.find("4 fit, 1 do not, 1 refused"), std::string::npos) << text;
}

}  // namespace
}  // namespace foreshard::cli
