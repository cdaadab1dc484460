#include "cli/session/executor_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace foreshard::cli {
namespace {

using ::testing::HasSubstr;

TEST(ExecutorFindings, AreReadAsTheyWereTold) {
  JsonText out(0);
  out.begin_object();
  tell_findings(out, {{"GPU 0", true, "H100", "run", "unused"}, {"CUPTI", false, "", "spans", "be root"}});
  out.end_object();
  const auto found = findings_in("a warning of a library\n" + out.take(), 0);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "GPU 0");
  EXPECT_TRUE(found[0].found);
  EXPECT_EQ(found[0].detail, "H100");
  EXPECT_EQ(found[1].remedy, "be root");
}

TEST(ExecutorFindings, AProgramThatDoesNotLoadIsAFindingWithTheLoadersWords) {
  const auto found = findings_in(
      "foreshard-exec-cuda: error while loading shared libraries: libnccl.so.2: cannot open shared object file\n", 127);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].found);
  EXPECT_THAT(found[0].remedy, HasSubstr("libnccl.so.2"));
  EXPECT_THAT(found[0].remedy, HasSubstr("LD_LIBRARY_PATH"));
  EXPECT_FALSE(findings_in("{\"found\": 3", 0)[0].found) << "half an answer is none";
}

}  // namespace
}  // namespace foreshard::cli
