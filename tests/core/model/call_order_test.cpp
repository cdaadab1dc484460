// In which call of a module its operators run.
#include "core/model/call_order.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

/// A block that calls its first child twice, and is called twice itself with nothing between.
struct Twice {
  Twice() {
    for (const char* name : {"", "block", "block.pad", "block.conv"}) {
      ModuleInfo module;
      module.fqn = name;
      module.parent = model.modules.empty()       ? ModuleId()
                      : model.modules.size() == 1 ? ModuleId(std::size_t{0})
                                                  : ModuleId(std::size_t{1});
      model.modules.push_back(module);
    }
    model.module_calls = {{root, 0, {}},  {block, 0, {}}, {pad, 0, {}},  {conv, 0, {}}, {pad, 1, {}},
                          {block, 1, {}}, {pad, 2, {}},   {conv, 1, {}}, {pad, 3, {}}};
  }
  static Op op(ModuleId module, std::int32_t call) {
    Op made;
    made.name = "aten.relu.default";
    made.module = module;
    made.call = call;
    return made;
  }
  const ModuleId root{std::size_t{0}}, block{std::size_t{1}}, pad{std::size_t{2}}, conv{std::size_t{3}};
  Model model;
};

TEST(CallOrder, AChildThatIsCalledTwiceIsNotTheNextCall) {
  const Twice twice;
  const CallOrder order(twice.model);
  EXPECT_FALSE(order.are_apart(twice.block, Twice::op(twice.pad, 0), Twice::op(twice.pad, 1)));
  EXPECT_TRUE(order.are_apart(twice.block, Twice::op(twice.pad, 0), Twice::op(twice.pad, 2)));
  EXPECT_TRUE(order.are_apart(twice.block, Twice::op(twice.pad, 0), Twice::op(twice.block, 1)));
  EXPECT_FALSE(order.are_apart(twice.root, Twice::op(twice.pad, 0), Twice::op(twice.pad, 3)));
}

TEST(CallOrder, WithoutAListTheFirstChildsCountDecides) {
  Twice twice;
  twice.model.module_calls.clear();
  const CallOrder order(twice.model);
  EXPECT_TRUE(order.are_apart(twice.block, Twice::op(twice.pad, 0), Twice::op(twice.pad, 1)));
  EXPECT_FALSE(order.are_apart(twice.block, Twice::op(twice.pad, 0), Twice::op(twice.conv, 1)));
}

}  // namespace
}  // namespace foreshard
