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

/// A bias that two blocks are handed: the first calls it between its own operators, the second before any of them.
TEST(CallOrder, AModuleThatIsHandedOnRunsInItsCallersCalls) {
  Twice handed;
  const ModuleId bias = handed.pad, one = handed.block, two = handed.conv;
  handed.model.modules[bias.index()].parent = handed.root;
  handed.model.modules[two.index()].parent = handed.root;
  handed.model.module_calls = {{handed.root, 0, {}}, {one, 0, {}},  {bias, 0, {}},
                               {two, 0, {}},         {bias, 1, {}}, {bias, 2, {}}};
  handed.model.ops = {Twice::op(one, 0),  Twice::op(bias, 0), Twice::op(one, 0),
                      Twice::op(bias, 1), Twice::op(two, 0),  Twice::op(bias, 2)};
  const std::vector<bool> every(handed.model.modules.size(), true);
  const auto around = CallOrder(handed.model).calls_around(every);
  ASSERT_EQ(around.size(), handed.model.ops.size());
  const std::vector<ModuleId> none, in_one{one}, in_two{two};
  EXPECT_EQ(around[0], none);
  EXPECT_EQ(around[1], in_one);
  EXPECT_EQ(around[2], none);
  EXPECT_EQ(around[3], in_two);
  EXPECT_EQ(around[5], none);  // nobody has operators behind it
  // Of modules that no hook lies on nobody asks.
  EXPECT_TRUE(CallOrder(handed.model).calls_around(std::vector<bool>(every.size(), false)).empty());
}

}  // namespace
}  // namespace foreshard
