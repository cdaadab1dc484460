#include "exec/training/script_check.h"

#include <gtest/gtest.h>

namespace foreshard::exec {
namespace {

TEST(ScriptCheck, WhatHooksKeepOnTheHostRunsThereAlone) {
  Model model;
  model.ops.resize(1);
  EXPECT_TRUE(check_saves(model, DeviceKind::Cuda));
  for (const char* const name : {"saved_on_host", "region_on_host"}) {
    model.ops.front().kwargs = {{name, Arg{ArgList{Arg{std::int64_t{0}}}}}};
    EXPECT_TRUE(check_saves(model, DeviceKind::Host));
    EXPECT_FALSE(check_saves(model, DeviceKind::Cuda));
  }
}

}  // namespace
}  // namespace foreshard::exec
