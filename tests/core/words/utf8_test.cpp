#include "core/text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace foreshard {
namespace {

const std::string kReplaced = "\xEF\xBF\xBD";

TEST(Utf8, WhatIsUtf8StaysAsItIs) {
  for (const std::string text : {"", "plain", "é", "漢字", "😀", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF", "a\nb"})
    EXPECT_EQ(as_utf8(text), text);
}

TEST(Utf8, EveryOtherByteIsReplaced) {
  EXPECT_EQ(as_utf8("a\xFFz"), "a" + kReplaced + "z");
  EXPECT_EQ(as_utf8("\xC3"), kReplaced);                                                  // cut off
  EXPECT_EQ(as_utf8("\xC0\x80"), kReplaced + kReplaced);                                  // overlong
  EXPECT_EQ(as_utf8("\xED\xA0\x80"), kReplaced + kReplaced + kReplaced);                  // a surrogate
  EXPECT_EQ(as_utf8("\xF5\x80\x80\x80"), kReplaced + kReplaced + kReplaced + kReplaced);  // beyond Unicode
  EXPECT_EQ(as_utf8("\xE6\xBC"
                    "a"),
            kReplaced + kReplaced + "a");
}

TEST(Utf8, XmlTextKeepsWhatMarkupWouldTake) {
  EXPECT_EQ(xml_text("a<b> & \"c\"\n"), "a&lt;b&gt; &amp; &quot;c&quot; ");
}

TEST(FirstLine, LeavesOutTheBacktraceBehindIt) {
  EXPECT_EQ(first_line("unable to mmap\nframe #0: c10::Error"), "unable to mmap");
  EXPECT_EQ(first_line("one line"), "one line");
}

}  // namespace
}  // namespace foreshard
