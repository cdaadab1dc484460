#include "core/mesh/parallel_plan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "core/mesh/cut.h"
#include "core/mesh/rank_model.h"
#include "core/plan/units/name_patterns.h"
#include "core/text/edit_distance.h"

namespace foreshard {
namespace {

constexpr std::array<std::pair<std::string_view, ModuleStyle>, 22> kStyles{
    {{"colwise", ModuleStyle::Colwise},
     {"rowwise", ModuleStyle::Rowwise},
     {"rowwise_reduced", ModuleStyle::RowwiseReduced},
     {"colwise_gathered", ModuleStyle::ColwiseGathered},
     {"head", ModuleStyle::Head},
     {"head_gathered", ModuleStyle::HeadGathered},
     {"sequence", ModuleStyle::Sequence},
     {"gather", ModuleStyle::Gather},
     {"gather_local", ModuleStyle::GatherLocal},
     {"gather_output", ModuleStyle::GatherOutput},
     {"part", ModuleStyle::Part},
     {"rows", ModuleStyle::Rows},
     {"local", ModuleStyle::Local},
     {"replicate", ModuleStyle::Replicate},
     {"summed", ModuleStyle::Summed},
     {"expert_tensor", ModuleStyle::ExpertTensor},
     {"split", ModuleStyle::Split},
     {"gradient_sum", ModuleStyle::GradientSum},
     {"packed_colwise", ModuleStyle::Colwise},
     {"packed_expert_tensor", ModuleStyle::ExpertTensor},
     {"cut_experts", ModuleStyle::CutExperts},
     {"experts", ModuleStyle::Experts}}};

Error plan_error(ErrorCode code, std::string message, std::string expected, std::string got, std::string hint) {
  return {code, std::move(message), {}, "mesh.plan", std::move(expected), std::move(got), std::move(hint)};
}

/// The style that was meant, by PyTorch's class ("ColwiseParallel()"), a longer word, or misspelt; empty: nobody knows.
std::string_view meant_style(std::string word) {
  constexpr std::string_view kEnding = "parallel";
  word = word.substr(0, word.find('('));
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (word.ends_with(kEnding)) word.resize(word.size() - kEnding.size());
  if (word.ends_with('_')) word.pop_back();
  std::string_view nearest;
  std::size_t least = 3;  // letters that may be wrong
  for (const auto& [name, style] : kStyles) {
    const std::size_t wrong = word.starts_with(std::string(name) + "_") ? 1 : edit_distance(word, name);
    if (wrong < least) {
      least = wrong;
      nearest = name;
    }
  }
  return nearest;
}

Result<ModuleStyle> style_of(const std::string& word) {
  for (const auto& [name, style] : kStyles)
    if (name == word) return style;
  std::string known;
  for (const auto& [name, style] : kStyles) known += (known.empty() ? "" : ", ") + std::string(name);
  const std::string meant(meant_style(word));
  return fail(plan_error(
      ErrorCode::OutOfRange, "mesh.plan names a style that there is not", known, "\"" + word + "\"",
      (meant.empty() ? "" : "did you mean \"" + meant + "\"? ") + std::string("docs/meshes.md says what each does")));
}

bool reads(const Op& op, ValueId value) {
  const auto* first = op.args.empty() ? nullptr : std::get_if<ValueRef>(&op.args.front().value);
  return first != nullptr && first->id == value;
}

/// Whether two tensors of one shape are all that is taken of a value, by way of views of it.
bool is_halved(const Model& model, ValueId value) {
  constexpr std::array<std::string_view, 7> kViews{"view",      "_unsafe_view", "reshape",   "unflatten",
                                                   "transpose", "permute",      "contiguous"};
  constexpr std::array<std::string_view, 7> kTakes{"split", "split_with_sizes", "chunk", "unbind", "select", "slice",
                                                   "narrow"};
  const auto is_one = [](const auto& names, const Op& op) {
    return std::find(names.begin(), names.end(), mesh::base_name(op.name)) != names.end();
  };
  std::vector<ValueId> of{value}, pieces;
  for (const Op& op : model.ops) {
    if (std::none_of(of.begin(), of.end(), [&](ValueId one) { return reads(op, one); })) continue;
    if (!is_one(kViews, op) && !is_one(kTakes, op)) return false;
    std::vector<ValueId>& to = is_one(kViews, op) ? of : pieces;
    std::copy_if(op.out.begin(), op.out.end(), std::back_inserter(to), [](ValueId out) { return out.valid(); });
  }
  const auto shape = [&](std::size_t k) { return model.values[pieces[k].index()].shape; };
  return pieces.size() == 2 && shape(0) == shape(1);
}

/// Whether what a layer's matrix gives is two projections side by side, wherever it is called.
bool gives_halves(const Model& model, ParamId matrix) {
  std::vector<ValueId> turned;  // the matrix, as captured products read it
  const auto is_it = [&](const Arg& arg) {
    const auto* param = std::get_if<ParamRef>(&arg.value);
    const auto* value = std::get_if<ValueRef>(&arg.value);
    return (param != nullptr && param->id == matrix) ||
           (value != nullptr && std::find(turned.begin(), turned.end(), value->id) != turned.end());
  };
  bool is_read = false;
  for (const Op& op : model.ops) {
    if (std::none_of(op.args.begin(), op.args.end(), is_it)) continue;
    if (op.out.size() != 1) return false;
    if (const auto name = mesh::base_name(op.name); name == "t" || name == "transpose") {
      turned.push_back(op.out.front());
      continue;
    }
    is_read = true;
    if (!is_halved(model, op.out.front())) return false;
  }
  return is_read;
}

/// What has weights of its own to cut: a matrix, and at most a vector beside it.
bool can_be_cut(const Model& model, const ModuleInfo& module) {
  const bool fits = std::all_of(module.params.begin(), module.params.end(), [&](ParamId id) {
    const std::size_t dims = model.params[id.index()].shape.size();
    return dims == 1 || dims == 2;
  });
  return fits && std::any_of(module.params.begin(), module.params.end(),
                             [&](ParamId id) { return model.params[id.index()].shape.size() == 2; });
}

/// The parameter that a value is a view or a cast of.
ParamId weight_of(const std::vector<const Op*>& makers, const Arg& arg) {
  const Arg* at = &arg;
  for (int steps = 0; steps < 8; ++steps) {
    if (const auto* param = std::get_if<ParamRef>(&at->value)) return param->id;
    const auto* value = std::get_if<ValueRef>(&at->value);
    const Op* op = value == nullptr ? nullptr : makers[value->id.index()];
    if (op == nullptr || op->args.empty()) return {};
    at = &op->args.front();
  }
  return {};
}

/// Modules whose stacked weights a product by groups reads: experts, whatever they are called.
std::vector<ModuleId> modules_of_experts(const Model& model) {
  std::vector<const Op*> makers(model.values.size(), nullptr);
  std::vector<ModuleId> found;
  for (const Op& op : model.ops) {
    for (const ValueId id : op.out)
      if (id.valid()) makers[id.index()] = &op;
    if (op.name != "aten._grouped_mm.default" || op.args.size() < 3) continue;
    const ParamId weight = weight_of(makers, op.args[1]);
    if (!weight.valid()) continue;
    for (std::size_t m = 0; m < model.modules.size(); ++m) {
      const auto& params = model.modules[m].params;
      const bool has = std::find(params.begin(), params.end(), weight) != params.end();
      if (has && std::find(found.begin(), found.end(), ModuleId(m)) == found.end()) found.push_back(ModuleId(m));
    }
  }
  return found;
}

/// What calls experts works on the tokens of its rank alone where those are exchanged; nothing in it is cut.
void run_around_experts(const Model& model, std::vector<ModuleStyle>& styles) {
  for (std::size_t m = 0; m < styles.size(); ++m) {
    const ModuleId around = model.modules[m].parent;
    if (styles[m] == ModuleStyle::Experts && around.valid()) styles[around.index()] = ModuleStyle::Local;
  }
  const std::vector<bool> local = local_modules(model, styles);
  for (std::size_t m = 0; m < styles.size(); ++m) {
    const bool keeps = styles[m] == ModuleStyle::Local || styles[m] == ModuleStyle::Experts;
    if (local[m] && !keeps) styles[m] = ModuleStyle::None;
  }
}

/// Without ranks of their own experts are cut as layers are: every expert's matrices, around them a module that sums
/// what it hands on (torchtitan's apply_moe_ep_tp). Its layers that the plan leaves alone, as the router, stay whole.
void cut_matrices_of_experts(const Model& model, std::vector<ModuleStyle>& styles) {
  for (const ModuleId experts : modules_of_experts(model)) {
    const ModuleId around = model.modules[experts.index()].parent;
    if (!around.valid()) continue;
    styles[experts.index()] = ModuleStyle::ExpertTensor;
    styles[around.index()] = ModuleStyle::Summed;
    for (std::size_t m = 0; m < styles.size(); ++m) {
      const ModuleInfo& module = model.modules[m];
      if (module.parent == around && styles[m] == ModuleStyle::None && !module.params.empty())
        styles[m] = ModuleStyle::Replicate;
    }
  }
}

Error no_plan() {
  return {ErrorCode::MissingKey,
          "nothing says how this model is cut over a mesh",
          {},
          "mesh.plan",
          "patterns of modules and their styles",
          "a model without a plan of its own",
          "for example mesh.plan = {\"layers.*.q_proj\" = \"colwise\", \"layers.*.o_proj\" = \"rowwise\"}"};
}

/// A pattern of the job's that is nobody's: the nearest name, and what the architecture's own plan gives that style.
Error nobodys(Error error, const Model& model, const std::string& word) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::string> alike;
  for (const ParallelStyle& row : model.parallel)
    if (row.style == word) alike.push_back(row.modules);
  for (std::size_t i = 0; i < std::min(kNamed, alike.size()); ++i)
    error.hint += (i > 0 ? ", " : "; in this architecture's own plan (no mesh.plan) " + word + " are ") + alike[i];
  if (alike.size() > kNamed) error.hint += ", ...";
  return error;
}

/// Whether a module can have a style of the job's.
Result<void> check_style(const Model& model, const MeshOptions& mesh, ModuleStyle style,
                         const std::pair<std::string, std::string>& row, const ModuleInfo& module) {
  const auto& [pattern, word] = row;
  const bool cuts = style == ModuleStyle::Colwise || is_rowwise(style) || is_head(style);
  if (cuts && !can_be_cut(model, module)) {
    return fail(plan_error(ErrorCode::Inconsistent, "a " + word + " module must hold a weight of two dimensions",
                           "a linear layer or an embedding", module.fqn + ", a " + module.class_name,
                           "narrow the pattern \"" + pattern + "\""));
  }
  if (style == ModuleStyle::Rows && module.parent.valid()) {
    return fail(plan_error(ErrorCode::Inconsistent, "rows of the ranks' own are the whole model's",
                           "the root module (\"\" = \"rows\")", module.fqn, "change the pattern \"" + pattern + "\""));
  }
  if ((style == ModuleStyle::Experts || style == ModuleStyle::CutExperts) && mesh.expert <= 1) {
    return fail(
        plan_error(ErrorCode::Inconsistent, "a module of style " + word + " has experts on ranks of their own",
                   "mesh.expert above 1", "mesh.expert = 1 and the pattern \"" + pattern + "\"",
                   "set mesh.expert, or say expert_tensor to cut every expert's matrices over the tensor ranks"));
  }
  return {};
}

}  // namespace

std::string_view module_style_name(ModuleStyle style) {
  for (const auto& [name, one] : kStyles)
    if (one == style) return name;
  return "none";
}

std::vector<bool> packed_modules(const Model& model, const MeshOptions& mesh) {
  std::vector<bool> packed(model.modules.size(), false);
  if (mesh.plan.empty() && mesh.tensor > 1 && mesh.expert == 1) {  // as Transformers' own plans cut them
    for (const ModuleId experts : modules_of_experts(model)) {
      const auto& params = model.modules[experts.index()].params;
      packed[experts.index()] =
          std::any_of(params.begin(), params.end(), [&](ParamId id) { return gives_halves(model, id); });
    }
  }
  const std::vector<std::string_view> names = module_names(model);
  for (const auto& [pattern, word] : mesh.plan) {
    if (!word.starts_with("packed_")) continue;
    const auto matched = match_names(pattern, names, "mesh.plan", "module");
    if (!matched) continue;
    for (const std::size_t m : *matched) packed[m] = true;
  }
  return packed;
}

void mark_packed(Model& model, const std::vector<bool>& packed) {
  for (std::size_t m = 0; m < packed.size(); ++m) {
    if (!packed[m]) continue;
    const ModuleInfo& module = model.modules[m];
    std::erase_if(model.parallel, [&](const ParallelStyle& row) {
      const bool own = row.modules == module.fqn;
      const bool callers = module.parent.valid() && row.modules == model.modules[module.parent.index()].fqn;
      return row.style == "fused" && (own || callers);
    });
    model.parallel.push_back({module.fqn, "packed"});
    std::int64_t least = 0;
    for (const ParamId id : module.params) {
      const MeshPart& part = model.params[id.index()].part;
      if (part.dim >= 0) least = least == 0 ? part.whole : std::min(least, part.whole);
    }
    for (const ParamId id : module.params) {
      const ParamInfo& param = model.params[id.index()];
      if (param.part.dim < 0) continue;
      const auto ranks =
          static_cast<std::int64_t>(model.mesh[static_cast<std::size_t>(param.part.dimension)].ranks.size());
      const bool stacked = param.shape.size() > 2;  // gate and value of experts, beside what reads their product
      const bool holds_two = stacked ? param.part.whole == 2 * least : gives_halves(model, module.params.front());
      if (holds_two && param.part.whole % (2 * ranks) == 0) model.parallel.push_back({param.fqn, "halves"});
    }
  }
}

std::vector<bool> local_modules(const Model& model, const std::vector<ModuleStyle>& styles) {
  std::vector<bool> local(model.modules.size(), false);
  for (std::size_t m = 0; m < local.size(); ++m)
    for (ModuleId at(m); at.valid() && !local[m]; at = model.modules[at.index()].parent)
      local[m] = styles[at.index()] == ModuleStyle::Local;
  return local;
}

std::vector<ModuleStyle> styles_along(std::vector<ModuleStyle> styles, bool experts) {
  for (ModuleStyle& style : styles) {
    if (style == ModuleStyle::CutExperts)
      style = experts ? ModuleStyle::Experts : ModuleStyle::ExpertTensor;
    else if ((style == ModuleStyle::Experts) != experts)
      style = ModuleStyle::None;
  }
  return styles;
}

Result<std::vector<ModuleStyle>> module_styles(const Model& model, const MeshOptions& mesh) {
  std::vector<std::pair<std::string, std::string>> rows(mesh.plan.begin(), mesh.plan.end());
  const bool own = !rows.empty();
  if (!own) {
    for (const ParallelStyle& row : model.parallel) rows.emplace_back(row.modules, row.style);
  }
  if (rows.empty() && mesh.tensor > 1) return fail(no_plan());
  std::vector<ModuleStyle> styles(model.modules.size(), ModuleStyle::None);
  const std::vector<std::string_view> names = module_names(model);
  for (const auto& [pattern, word] : rows) {
    const Result<ModuleStyle> style = style_of(word);
    if (!style) return tl::unexpected(style.error());
    if (!own) {  // an architecture's plan names parts that not every model has, which have no nearest name
      const std::string_view ending = std::string_view(pattern).substr(pattern.find_last_of("*?") + 1);
      for (std::size_t m = 0; m < names.size(); ++m)
        if (names[m].ends_with(ending) && matches_pattern(pattern, names[m])) styles[m] = *style;
      continue;
    }
    const auto matched = match_names(pattern, names, "mesh.plan", "module");
    if (!matched) return fail(nobodys(matched.error(), model, word));
    for (const std::size_t m : *matched) {
      if (auto can = check_style(model, mesh, *style, {pattern, word}, model.modules[m]); !can)
        return tl::unexpected(can.error());
      styles[m] = *style;
    }
  }
  if (!own && mesh.expert > 1) {
    for (const ModuleId module : modules_of_experts(model)) styles[module.index()] = ModuleStyle::Experts;
    if (mesh.tensor > 1) run_around_experts(model, styles);
  }
  if (!own && mesh.tensor > 1 && mesh.expert == 1) cut_matrices_of_experts(model, styles);
  return styles;
}

std::int64_t packed_parts(const Model& model, const ParamInfo& param) {
  const auto is_it = [&](const ParallelStyle& row) { return row.style == "halves" && row.modules == param.fqn; };
  return std::any_of(model.parallel.begin(), model.parallel.end(), is_it) ? 2 : 1;
}

bool divides_packed(const Model& model, const std::string& module) {
  return std::any_of(model.params.begin(), model.params.end(), [&](const ParamInfo& param) {
    return packed_parts(model, param) > 1 && model.modules[param.owner.index()].fqn == module;
  });
}

}  // namespace foreshard
