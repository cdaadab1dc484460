#include "core/adapters/adapted_plan.h"

#include <string>
#include <string_view>
#include <utility>

namespace foreshard::adapters {
namespace {

constexpr std::string_view kCopy = ".modules_to_save.default", kOriginal = ".original_module";

class PlanMaker {
 public:
  explicit PlanMaker(const AdaptedTree& tree) : tree_(tree) {}

  std::vector<ParallelStyle> make(const std::vector<ModuleStyle>& styles) {
    for (std::size_t m = 0; m < styles.size(); ++m) {
      const ModuleStyle style = styles[m];
      if (style == ModuleStyle::None) continue;
      const AdaptedLayer& layer = tree_.layer[m];
      const bool colwise = style == ModuleStyle::Colwise || is_head(style);
      const bool cuts = colwise || is_rowwise(style) || style == ModuleStyle::Sequence;
      if (layer.layer.valid() && !cuts) {  // what its input is, of base and adapter alike
        add(layer.layer, style);
        continue;
      }
      add(tree_.module[m], style);
      add_original(tree_.module[m], style);
      if (!layer.layer.valid()) continue;
      add(layer.down, colwise ? ModuleStyle::Sequence : style);
      add(layer.up, colwise ? style : ModuleStyle::Sequence);
    }
    return std::move(rows_);
  }

 private:
  void add(ModuleId module, ModuleStyle style) {
    rows_.push_back({tree_.model.modules[module.index()].fqn, std::string(module_style_name(style))});
  }

  /// What a copy was made of stays beside it, cut alike.
  void add_original(ModuleId copy, ModuleStyle style) {
    std::string name = tree_.model.modules[copy.index()].fqn;
    const std::size_t at = name.find(kCopy);
    if (at == name.npos) return;
    rows_.push_back({name.replace(at, kCopy.size(), kOriginal), std::string(module_style_name(style))});
  }

  const AdaptedTree& tree_;
  std::vector<ParallelStyle> rows_;
};

}  // namespace

std::vector<ParallelStyle> adapted_plan(const AdaptedTree& tree, const std::vector<ModuleStyle>& styles) {
  return PlanMaker(tree).make(styles);
}

}  // namespace foreshard::adapters
