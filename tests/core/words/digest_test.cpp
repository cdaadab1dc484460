#include "core/text/digest.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

TEST(Digest, IsFnv1aOfSixtyFourBits) {  // the authors' own values
  EXPECT_EQ(digest_of(""), "cbf29ce484222325");
  EXPECT_EQ(digest_of("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(digest_of("foobar"), "85944171f73967e8");
  static_assert(fnv1a("a") != fnv1a("b"));
}

}  // namespace
}  // namespace foreshard
