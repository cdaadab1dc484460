#include "core/mesh/rank_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/mesh/context_cut.h"
#include "core/mesh/cut_errors.h"
#include "core/mesh/own_code.h"
#include "core/mesh/parallel_plan.h"
#include "core/mesh/program_cutter.h"
#include "core/mesh/stacked_matrices.h"
#include "core/mesh/whole_parameters.h"
#include "core/model/mesh_dimension.h"
#include "core/model/untied.h"
#include "core/plan.h"
#include "core/plan/units/groups.h"
#include "core/plan/units/units.h"
#include "core/runtime_layouts.h"

namespace foreshard {
namespace {

using mesh::Cut;
using mesh::Group;

Error mesh_error(const char* key, std::string message, std::string expected, std::string got, std::string hint) {
  return {ErrorCode::OutOfRange, std::move(message), {}, fmt::format("mesh.{}", key), std::move(expected),
          std::move(got),        std::move(hint)};
}

/// Ranks run fastest along the tensor dimension, then along the context's (or the experts').
MeshDimension dimension_of(const char* name, std::int64_t rank, std::int64_t size, std::int64_t stride) {
  MeshDimension made;
  made.name = name;
  made.place = static_cast<std::int32_t>(rank / stride % size);
  const std::int64_t first = rank - made.place * stride;
  for (std::int64_t k = 0; k < size; ++k) made.ranks.push_back(static_cast<std::int32_t>(first + k * stride));
  return made;
}

/// SequenceParallel makes a new nn.Parameter of what it replicates (style.py, _replicate_module_fn), and FSDP1 asks of
/// every local tensor that it flattens to require a gradient (_data_parallel_utils.py, _flatten_tensor), whatever was
/// asked before.
void thaw(Model& model, ParamInfo& param) {
  if (param.requires_grad || !is_floating(param.dtype)) return;
  param.requires_grad = true;
  model.parallel.push_back({param.fqn, "thawed"});
}

/// Which dimension of a parameter is cut; -1: none, as of a bias that is added once. `matrices`: of stacked ones.
std::int32_t cut_dimension(ModuleStyle style, const ParamInfo& param, bool table,
                           const std::map<std::int32_t, std::int32_t>& matrices, ParamId id) {
  if (style == ModuleStyle::ExpertTensor) {
    const auto known = matrices.find(id.value);
    return known == matrices.end() ? -1 : known->second;
  }
  const bool rowwise = is_rowwise(style);
  if (param.shape.size() != 2 && rowwise) return -1;
  return rowwise != table ? 1 : 0;
}

/// Whether the script has tied this parameter to another once more, behind the plan: both of one part.
bool stays_tied(const Job& job, const Model& model, const ParamInfo& param) {
  const auto told = param.shares.valid() ? job.fsdp.tied.find(param.fqn) : job.fsdp.tied.end();
  return told != job.fsdp.tied.end() && model.params[param.shares.index()].fqn == told->second;
}

/// A tied parameter's gradient has all its terms in one placement, its own. REQUIRES both parts; false: they differ.
bool share_part(ParamInfo& first, const ParamInfo& second) {
  if (first.part.dim != second.part.dim || first.shape != second.shape) return false;
  first.part.gradient = MeshPart::Gradient::Part;
  return true;
}

void note_untied(Model& model, const ParamInfo& param) {
  model.parallel.push_back({param.fqn, std::string(kUntied) + model.params[param.shares.index()].fqn});
}

/// Cuts the parameters of a styled module; the plan makes new tensors, so nothing that it touches stays tied, unless
/// the script ties it anew.
void cut_params(Model& model, const Job& job, const std::vector<ModuleStyle>& styles,
                const mesh::TensorOptions& options, std::vector<Cut>& cuts) {
  const Group& group = options.group;
  const std::vector<bool> tables = mesh::embedding_tables(model), local = local_modules(model, styles);
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    const ModuleStyle style = local[m] ? ModuleStyle::Sequence : styles[m];  // whole weights, a part of the tokens
    if (cuts_no_weights(style)) continue;
    if (style == ModuleStyle::Sequence && !options.sequence) continue;  // plain tensor parallelism leaves norms alone
    std::map<std::int32_t, std::int32_t> matrices;
    if (style == ModuleStyle::ExpertTensor) matrices = mesh::cut_matrices(model, ModuleId(m));
    for (const ParamId id : model.modules[m].params) {
      ParamInfo& param = model.params[id.index()];
      if (param.part.dimension >= 0) continue;  // experts
      if (style == ModuleStyle::GradientSum) {
        if (param.requires_grad) param.part.gradient = MeshPart::Gradient::Term;
        continue;
      }
      if (!stays_tied(job, model, param)) {
        if (param.shares.valid()) note_untied(model, param);
        param.shares = ParamId();
      }
      param.part.dimension = options.dimension;
      if (options.places_gradients) thaw(model, param);
      if (style == ModuleStyle::Sequence || style == ModuleStyle::Replicate) {
        if (style == ModuleStyle::Sequence) param.part.gradient = MeshPart::Gradient::Term;
        thaw(model, param);
        continue;
      }
      const bool table = tables[id.index()];
      const std::int32_t dim = cut_dimension(style, param, table, matrices, id);
      if (dim < 0) continue;
      Cut& cut = cuts[id.index()];
      cut.dim = dim;
      cut.whole = param.shape[static_cast<std::size_t>(dim)];
      param.part.dim = dim;
      param.part.whole = cut.whole;
      param.part.begin = mesh::begin_of(cut.whole, group);
      if (table && dim == 0) param.part.gradient = MeshPart::Gradient::Whole;
      param.shape = mesh::local_shape(param.shape, cut, group);
    }
  }
  for (ParamInfo& param : model.params) {  // what shared a tensor that is new now
    if (!param.shares.valid() || model.params[param.shares.index()].part.dimension != options.dimension) continue;
    if (stays_tied(job, model, param) && share_part(model.params[param.shares.index()], param)) continue;
    note_untied(model, param);
    param.shares = ParamId();
  }
}

/// Weights that the expert dimension cuts: no style of another one touches them.
void mark_experts(Model& model, const std::vector<ModuleStyle>& styles, std::int32_t dimension) {
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (styles[m] != ModuleStyle::Experts) continue;
    for (const ParamId id : model.modules[m].params) model.params[id.index()].part.dimension = dimension;
  }
}

/// Stacked weights of a module of experts: each rank has its share of the experts.
Result<void> cut_experts(Model& model, const std::vector<ModuleStyle>& styles, const mesh::TensorOptions& options,
                         std::vector<Cut>& cuts) {
  bool any = false;
  for (std::size_t m = 0; m < model.modules.size(); ++m) {
    if (styles[m] != ModuleStyle::Experts) continue;
    std::int64_t experts = 0;
    for (const ParamId id : model.modules[m].params) {
      ParamInfo& param = model.params[id.index()];
      experts = experts == 0 && !param.shape.empty() ? param.shape.front() : experts;
      if (param.shape.size() < 2 || param.shape.front() != experts) {
        return fail(mesh_error("plan", "a module of experts stacks their weights along the first dimension",
                               fmt::format("{} experts first", experts), param.fqn, "leave the module out"));
      }
      if (experts % options.group.ranks != 0) {
        return fail(mesh_error("expert", "the ranks of the expert dimension do not divide the experts",
                               fmt::format("a divisor of {} experts", experts), std::to_string(options.group.ranks),
                               "change mesh.expert"));
      }
      Cut& cut = cuts[id.index()];
      cut.dim = 0;
      cut.whole = experts;
      param.part.dimension = options.dimension;
      param.part.dim = 0;
      param.part.whole = experts;
      param.part.begin = mesh::begin_of(experts, options.group);
      param.shape = mesh::local_shape(param.shape, cut, options.group);
      any = true;
    }
  }
  if (any) return {};
  return fail(mesh_error("expert", "this model has no experts that anybody knows of", "modules of stacked experts",
                         "none", "set mesh.expert = 1, or mesh.plan = {\"layers.*.experts\" = \"experts\"}"));
}

Result<void> check_lengths(const Model& model, const Job& job, const std::vector<ModuleStyle>& styles) {
  if (!job.mesh.sequence_parallel) return {};
  const bool sequence = std::any_of(styles.begin(), styles.end(), [](ModuleStyle s) {
    return s == ModuleStyle::Sequence || s == ModuleStyle::Gather || s == ModuleStyle::GatherLocal ||
           s == ModuleStyle::Part;
  });
  if (!sequence) return {};
  for (const ValueId id : model.inputs) {
    const ValueInfo& value = model.values[id.index()];
    const bool tokens = !is_floating(value.dtype) && value.shape.size() == 2;
    if (!tokens || value.shape[mesh::kSequenceDim] % job.mesh.tensor == 0) continue;
    return fail(mesh_error(
        "sequence_parallel", "the ranks of the tensor dimension do not divide the sequence",
        fmt::format("a sequence that {} divides", job.mesh.tensor), std::to_string(value.shape[mesh::kSequenceDim]),
        "PyTorch rounds the parts up and its loss then fails (ValueError: Expected input batch_size to match); change "
        "model.seq, or set mesh.sequence_parallel = false"));
  }
  return {};
}

Result<void> check_matrices(const Model& model, const std::vector<ModuleStyle>& styles) {
  for (std::size_t m = 0; m < styles.size(); ++m) {
    if (styles[m] != ModuleStyle::ExpertTensor || !mesh::cut_matrices(model, ModuleId(m)).empty()) continue;
    return fail(mesh_error("plan", "an expert_tensor module must hold stacked weights that products read",
                           "parameters of [experts, rows, columns]", model.modules[m].fqn, "narrow the pattern"));
  }
  return {};
}

/// REQUIRES that the tensor degree divides the world.
Result<void> check_context(const Job& job) {
  const MeshOptions& mesh = job.mesh;
  const std::int64_t left = job.cluster.world_size / mesh.tensor;
  if (left % mesh.context != 0) {
    return fail(mesh_error("context", "a degree must divide the ranks that are left",
                           fmt::format("a divisor of {} ranks", left), std::to_string(mesh.context),
                           "change it or cluster.world_size"));
  }
  if (mesh.context <= 1) return {};
  if (is_hybrid(job.fsdp.strategy)) {
    const auto groups = rank_groups(job.cluster, true, mesh.tensor);
    if (!groups) return fail(groups.error());
    if (groups->shard_size % mesh.context != 0) {
      return fail(mesh_error("context", "ranks that share a sequence lie in one shard group",
                             fmt::format("a divisor of the {} ranks of a shard group", groups->shard_size),
                             std::to_string(mesh.context), "change it or cluster.shard_group"));
    }
  }
  if (job.model.seq % (2 * mesh.context) != 0) {
    return fail(mesh_error("context",
                           "the ranks do not divide the sequence: each takes a piece of its head and of its tail",
                           fmt::format("a sequence that {} divides", 2 * mesh.context), std::to_string(job.model.seq),
                           "change model.seq, or the degree"));
  }
  return {};
}

/// A library's model that has its scores, [batch, heads, queries, keys], as a tensor: no kernel makes their mask, so
/// the model does. (Where attention falls back on products PyTorch calls a softmax of its own.)
bool makes_scores(const Model& model) {
  return model.lifetimes == Lifetimes::Built && std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& op) {
           return op.name == "aten._softmax.default" && model.values[op.out.front().index()].shape.size() == 4;
         });
}

/// Scripts that nobody cuts: a head that is part of a loss's own kernel, and what counts or looks along a sequence of
/// which a rank has a part. Transformers makes masks as long as the embeddings that come out, which along the sequence
/// are a part of it.
Result<void> check_script(const Job& job) {
  const ModelOptions& model = job.model;
  const bool makes_mask = model.attention_mask || model.packed || model.attention == "eager";
  if (job.mesh.tensor > 1 && job.mesh.sequence_parallel && makes_mask)
    return fail(mesh::mask_of_a_part(job, model.attention == "eager"));
  const bool shares = job.mesh.context > 1;
  const bool loss = model.loss == "fused_linear_cross_entropy" || (shares && model.loss == "per_token");
  const bool mask = shares && (model.attention_mask || model.packed);
  if (!is_cut(job.mesh) || (!loss && !mask)) return {};
  const char* const key = loss ? "model.loss" : model.packed ? "model.packed" : "model.attention_mask";
  return fail({ErrorCode::Unsupported, "this script is not cut over a mesh", model.source, key,
               loss ? "cross_entropy or chunked_cross_entropy" : "false", loss ? model.loss : "true",
               shares ? "change it, or set mesh.context = 1" : "change it, or take the degrees of [mesh] away"});
}

/// DDP around DTensors; around plain tensors it works: a script's own parts, and whole ones of ranks that share a
/// sequence.
Result<void> check_runtime(const Job& job) {
  const MeshOptions& mesh = job.mesh;
  const bool shards = job.fsdp.runtime == Runtime::Fsdp1 || has_fsdp2_layouts(job.fsdp.runtime);
  const bool replicates = mesh.tensor <= 1;
  const bool alone = mesh.tensor * mesh.context == job.cluster.world_size && (mesh.context <= 1 || !job.fsdp.wrap.root);
  if (shards || (job.fsdp.runtime == Runtime::None && mesh.expert <= 1 && (replicates || alone))) return {};
  return fail({ErrorCode::Unsupported,
               "this runtime has no mesh of several dimensions",
               {},
               "fsdp.runtime",
               "fsdp2, fsdp1 or planned; none over context ranks, or over tensor ranks alone",
               std::string(runtime_name(job.fsdp.runtime)),
               "take the degrees of [mesh] away, or set fsdp2"});
}

}  // namespace

Result<void> check_mesh(const Job& job) {
  const MeshOptions& mesh = job.mesh;
  if (auto can = check_script(job); !can) return can;
  if (mesh.tensor > 1 && mesh.async_tensor) {
    const std::int64_t per_node = job.cluster.ranks_per_node;
    const char* lacks = !mesh.sequence_parallel       ? "mesh.sequence_parallel"
                        : !job.model.compile          ? "model.compile"
                        : per_node % mesh.tensor != 0 ? "cluster.ranks_per_node"
                                                      : nullptr;
    if (lacks != nullptr) {
      return fail({ErrorCode::Inconsistent,
                   "asynchronous tensor parallelism is the compiler's, between cards that see each other's memory",
                   {},
                   "mesh.async_tensor",
                   "model.compile and mesh.sequence_parallel, and tensor groups inside a node",
                   std::string("not so: ") + lacks,
                   std::string("change ") + lacks + ", or set mesh.async_tensor = false"});
    }
  }
  const std::int64_t world = job.cluster.world_size;
  for (const auto& [key, degree] : {std::pair("tensor", mesh.tensor), std::pair("expert", mesh.expert)}) {
    if (degree >= 1 && world % degree == 0) continue;
    return fail(mesh_error(key, "a degree must divide the world", fmt::format("a divisor of {} ranks", world),
                           std::to_string(degree), "change it or cluster.world_size"));
  }
  return check_context(job);
}

/// By ParamId: the module of its unit; empty: units cannot be told, which planning will say.
std::vector<ModuleId> homes_of(const Model& model, const Job& job) {
  const auto table = build_units(model, job);
  if (!table) return {};
  std::vector<ModuleId> homes(model.params.size());
  for (std::size_t p = 0; p < homes.size(); ++p) {
    const UnitId unit = table->unit_of_param[p];
    if (unit.valid() && !table->units[unit.index()].modules.empty())
      homes[p] = table->units[unit.index()].modules.front();
  }
  return homes;
}

/// A sequence over the ranks beside those of the tensor dimension.
Result<void> share(Model& model, const Job& job) {
  const auto dimension = static_cast<std::int32_t>(model.mesh.size());
  model.mesh.push_back(dimension_of(kContextDimension, job.cluster.rank, job.mesh.context, job.mesh.tensor));
  return mesh::share_sequence(model, job, dimension);
}

/// Experts over ranks side by side, each with tokens of its own. REQUIRES that the model's first dimension is theirs.
Result<void> spread_experts(Model& model, const std::vector<ModuleStyle>& styles, const Job& job) {
  mesh::TensorOptions options;
  options.dimension = 0;
  options.group = {job.mesh.expert, model.mesh.front().place};
  options.sequence = options.loss = false;
  options.imbalance = job.mesh.expert_imbalance;
  std::vector<Cut> cuts(model.params.size());
  if (auto cut = cut_experts(model, styles, options, cuts); !cut) return cut;
  return mesh::ProgramCutter(model, styles, std::move(cuts), options).run();
}

/// Layers over the tensor dimension; `part`: the program of this rank's part of the sequence, where modules run on
/// that.
Result<void> cut_tensors(Model& model, const std::vector<ModuleStyle>& styles, const Job& job, const Model* part) {
  mesh::TensorOptions options;
  options.dimension = static_cast<std::int32_t>(model.mesh.size());
  model.mesh.push_back(dimension_of(kTensorDimension, job.cluster.rank, job.mesh.tensor, 1));
  options.group = {job.mesh.tensor, model.mesh.back().place};
  options.sequence = job.mesh.sequence_parallel;
  options.loss = job.mesh.loss_parallel;
  options.group.own_rows = !styles.empty() && styles.front() == ModuleStyle::Rows;
  options.part = part;
  options.places_gradients = job.fsdp.runtime == Runtime::Fsdp1;
  if (options.places_gradients) options.home = homes_of(model, job);
  std::vector<Cut> cuts(model.params.size());
  cut_params(model, job, styles, options, cuts);
  // Which gradients come as terms is seen at the end of a pass; a second one is made with that.
  const bool replicates = std::find(styles.begin(), styles.end(), ModuleStyle::Replicate) != styles.end();
  const Model before = replicates ? model : Model();
  for (;;) {
    mesh::ProgramCutter cutter(model, styles, cuts, options);
    if (auto done = cutter.run(); !done) return done;
    if (std::includes(options.terms.begin(), options.terms.end(), cutter.terms().begin(), cutter.terms().end())) break;
    options.terms.insert(cutter.terms().begin(), cutter.terms().end());
    model = before;
  }
  for (const std::int32_t param : options.terms)
    model.params[static_cast<std::size_t>(param)].part.gradient = MeshPart::Gradient::Term;
  for (ParamInfo& param : model.params)
    if (options.places_gradients) param.part.gradient = MeshPart::Gradient::Part;
  if (options.group.own_rows) model.parallel.push_back({"", "rows"});
  return {};
}

/// The same model for the part of the sequence that one of the tensor ranks has between cut layers.
Result<Model> build_part(const Model& model, const Job& job, const PartBuilder& build) {
  ModelOptions options = rank_model_options(job);
  for (const ValueId id : model.inputs) {
    const ValueInfo& value = model.values[id.index()];
    if (!is_floating(value.dtype) && value.shape.size() == 2)
      options.seq = value.shape[mesh::kSequenceDim] / job.mesh.tensor;
  }
  options.seq_given = true;
  if (build) return build(options);
  return fail(mesh_error("expert", "beside tensor parallelism experts run on a part of the sequence",
                         "a model that is built for a length (a config.json)", "a program of one length",
                         "set mesh.tensor = 1 or mesh.expert = 1"));
}

/// Layers that tokens pass beside the experts and that stay whole: rows of style "whole". A router has as many rows as
/// there are experts, or fewer.
std::vector<ParallelStyle> left_whole(const Model& model, const std::vector<ModuleStyle>& styles) {
  std::int64_t experts = 0;
  for (std::size_t m = 0; m < styles.size(); ++m) {
    for (const ParamId id : model.modules[m].params)
      if (styles[m] == ModuleStyle::Experts) experts = std::max(experts, model.params[id.index()].shape.front());
  }
  const std::vector<bool> local = local_modules(model, styles);
  std::vector<ParallelStyle> rows;
  for (std::size_t m = 0; m < styles.size(); ++m) {
    const auto& params = model.modules[m].params;
    const bool layer = std::any_of(params.begin(), params.end(), [&](ParamId id) {
      const Shape& shape = model.params[id.index()].shape;
      return shape.size() == 2 && shape.front() > experts;
    });
    if (local[m] && layer && styles[m] != ModuleStyle::Experts) rows.push_back({model.modules[m].fqn, "whole"});
  }
  return rows;
}

/// Experts whose matrices the tensor ranks share lie on every `tensor`-th rank, all of them.
Result<void> check_cut_experts(const std::vector<ModuleStyle>& styles, const Job& job) {
  const bool others = std::find(styles.begin(), styles.end(), ModuleStyle::Experts) != styles.end();
  if (others || job.mesh.tensor <= 1) {
    return fail(mesh_error("plan", "experts are cut over both dimensions or over their own",
                           "cut_experts for all experts, beside mesh.tensor",
                           others ? "experts too" : "mesh.tensor = 1", "use one style for all of them"));
  }
  const std::int64_t data = job.cluster.world_size / job.mesh.tensor;
  if (data % job.mesh.expert == 0) return {};
  return fail(mesh_error("expert", "experts that are cut over tensor ranks lie on data ranks",
                         fmt::format("a divisor of the {} ranks beside the tensor dimension", data),
                         std::to_string(job.mesh.expert), "change it or cluster.world_size"));
}

/// Experts on ranks of their own, and layers over the tensor dimension if there is one. What calls experts runs on a
/// rank's part of the sequence, whose program is another one; or on this rank's rows of what its tensor ranks share,
/// which are cut first.
Result<void> cut_beside_experts(Model& model, const std::vector<ModuleStyle>& styles, const Job& job,
                                const PartBuilder& build) {
  const std::vector<ModuleStyle> experts = styles_along(styles, true), layers = styles_along(styles, false);
  const bool cuts = job.mesh.tensor > 1;
  const bool twice = std::find(styles.begin(), styles.end(), ModuleStyle::CutExperts) != styles.end();
  if (auto possible = twice ? check_cut_experts(styles, job) : Result<void>(); !possible) return possible;
  const bool local = std::find(styles.begin(), styles.end(), ModuleStyle::Local) != styles.end();
  std::optional<Model> part;
  if (cuts && local) {
    auto built = build_part(model, job, build);
    if (!built) return tl::unexpected(built.error());
    part = std::move(*built);
  }
  for (Model* one : {&model, part ? &*part : nullptr}) {
    if (one == nullptr) continue;
    one->mesh.push_back(dimension_of(kExpertDimension, job.cluster.rank, job.mesh.expert, twice ? job.mesh.tensor : 1));
    if (!twice) mark_experts(*one, experts, 0);
    if (cuts && !local) continue;
    if (auto done = spread_experts(*one, experts, job); !done) return done;
  }
  if (cuts) {
    if (auto done = cut_tensors(model, layers, job, part ? &*part : nullptr); !done) return done;
  }
  return cuts && !local ? spread_experts(model, experts, job) : Result<void>();
}

ModelOptions rank_model_options(const Job& job) {
  ModelOptions options = job.model;
  if (job.mesh.context > 1) {
    options.seq = std::max<std::int64_t>(options.seq / job.mesh.context, 1);
  }
  return options;
}

/// The same dimension around the job's rank: neighbours, or ranks as far apart as they were. Fails beyond the world.
Result<MeshDimension> placed(const MeshDimension& recorded, const Job& job) {
  const std::int64_t world = job.cluster.world_size, size = static_cast<std::int64_t>(recorded.ranks.size());
  if (recorded.name == kWorldDimension) return dimension_of(kWorldDimension.data(), job.cluster.rank, world, 1);
  const std::int64_t apart = size > 1 ? std::max(recorded.ranks[1] - recorded.ranks[0], 1) : 1;
  if (world % (size * apart) == 0) return dimension_of(recorded.name.c_str(), job.cluster.rank, size, apart);
  return fail({ErrorCode::OutOfRange, "the script's own groups do not divide the world", job.model.source,
               "cluster.world_size", fmt::format("a multiple of {} ranks", size * apart), std::to_string(world),
               "run the script anew with that world"});
}

/// Who captures a module alone says by the plan whose parameters are a rank's own: those of modules of style "experts",
/// on the first group of as many ranks that the program meets.
Result<void> tell_experts(Model& model, const Job& job) {
  const auto known = std::find_if(model.mesh.begin(), model.mesh.end(),
                                  [](const MeshDimension& each) { return each.name == kExpertDimension; });
  if (known != model.mesh.end() || job.mesh.expert <= 1 || job.mesh.plan.empty()) return {};
  const auto group = std::find_if(model.mesh.begin(), model.mesh.end(), [&](const MeshDimension& each) {
    return static_cast<std::int64_t>(each.ranks.size()) == job.mesh.expert;
  });
  if (group == model.mesh.end()) return {};  // which the caller says
  auto styles = module_styles(model, job.mesh);
  if (!styles) return tl::unexpected(styles.error());
  group->name = kExpertDimension;
  for (std::size_t m = 0; m < styles->size(); ++m) {
    if ((*styles)[m] != ModuleStyle::Experts) continue;
    for (ParamInfo& param : model.params)
      if (param.fqn.starts_with(model.modules[m].fqn + "."))
        param.part.dimension = static_cast<std::int32_t>(group - model.mesh.begin());
  }
  return {};
}

/// A program that was recorded on one rank of a mesh has its collectives and its parts: the job has that mesh.
Result<Model> recorded_rank(Model model, const Job& job) {
  if (auto told = tell_experts(model, job); !told) return tl::unexpected(told.error());
  const auto ranks_of = [&](const char* name) {
    const auto at =
        std::find_if(model.mesh.begin(), model.mesh.end(), [&](const auto& each) { return each.name == name; });
    return at == model.mesh.end() ? std::int64_t{1} : static_cast<std::int64_t>(at->ranks.size());
  };
  const MeshOptions& mesh = job.mesh;
  for (const auto& [key, degree] : {std::pair(kTensorDimension, mesh.tensor), std::pair(kExpertDimension, mesh.expert),
                                    std::pair(kContextDimension, mesh.context)}) {
    if (degree == ranks_of(key)) continue;
    return fail(mesh_error(key, "the model was recorded on a rank of another mesh", std::to_string(ranks_of(key)),
                           std::to_string(degree), "run the script anew with that degree"));
  }
  if (mesh.expert_imbalance != 1) {
    return fail(mesh_error("expert_imbalance", "the model was recorded with an even spread of rows over the experts",
                           "1", fmt::format("{:g}", mesh.expert_imbalance), "leave it at 1"));
  }
  for (MeshDimension& dimension : model.mesh) {
    auto here = placed(dimension, job);
    if (!here) return tl::unexpected(here.error());
    dimension = std::move(*here);
  }
  if (auto ok = check_mesh(job); !ok) return tl::unexpected(ok.error());
  return model;
}

/// Whether a program with collectives of its own is whole all the same, as a loss that gathers is, and this job cuts
/// it. One whose dimension is the tensor one was cut by the script.
bool can_be_cut(const Model& model, const Job& job) {
  const auto is_tensors = [](const MeshDimension& each) { return each.name == kTensorDimension; };
  if (std::any_of(model.mesh.begin(), model.mesh.end(), is_tensors)) return false;
  const auto lies = [](const ParamInfo& param) { return param.part.dimension >= 0; };
  const auto sends = [](const Op& op) { return op.name.starts_with("mesh."); };
  const bool whole = std::none_of(model.params.begin(), model.params.end(), lies) &&
                     std::none_of(model.ops.begin(), model.ops.end(), sends);
  return is_cut(job.mesh) && job.mesh.expert <= 1 && whole;
}

/// Where the job cuts, groups along its tensor ranks are its own; those across them (a sequence's) are the script's.
Result<void> keep_groups_across(Model& model, const Job& job) {
  std::vector<MeshDimension> kept;
  std::map<std::int64_t, std::int64_t> now;
  for (std::size_t d = 0; d < model.mesh.size(); ++d) {
    const MeshDimension& each = model.mesh[d];
    const bool across = std::all_of(each.ranks.begin(), each.ranks.end(),
                                    [&](std::int32_t rank) { return (rank - each.ranks[0]) % job.mesh.tensor == 0; });
    const bool script = each.ranks.size() > 1 && each.name.starts_with(kScriptDimension) && job.mesh.context <= 1;
    if (!across || !script) continue;
    auto here = placed(each, job);
    if (!here) return tl::unexpected(here.error());
    now.emplace(static_cast<std::int64_t>(d), static_cast<std::int64_t>(kept.size()));
    kept.push_back(std::move(*here));
  }
  model.mesh = std::move(kept);
  for (Op& op : model.ops) mesh::renumber_meetings(op, now);
  return {};
}

Result<Model> rank_model(Model whole, const Job& job, const PartBuilder& build) {
  const bool cut_anew = can_be_cut(whole, job);
  if (auto ok = cut_anew ? keep_groups_across(whole, job) : Result<void>(); !ok) return tl::unexpected(ok.error());
  if (!whole.mesh.empty() && !cut_anew) return recorded_rank(std::move(whole), job);
  if (!is_cut(job.mesh)) return whole;
  if (auto ok = check_runtime(job); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_mesh(job); !ok) return tl::unexpected(ok.error());
  Model model = std::move(whole);
  const bool cuts = job.mesh.tensor > 1, spreads = job.mesh.expert > 1;
  std::vector<ModuleStyle> styles;
  std::vector<bool> packed;
  if (cuts || spreads) {
    MeshOptions mesh = job.mesh;
    if (job.adapters.kind != "none") mesh.plan.clear();  // names of the plain model; its adapted one has the plan
    auto read = module_styles(model, mesh);
    if (!read) return tl::unexpected(read.error());
    styles = std::move(*read);
    packed = packed_modules(model, mesh);
    std::vector<ParallelStyle> left;
    if (cuts && spreads) left = left_whole(model, styles);
    model.parallel = std::move(left);
  }
  if (cuts) {
    if (job.mesh.sequence_parallel && makes_scores(model)) return fail(mesh::mask_of_a_part(job, true));
    if (auto ok = check_lengths(model, job, styles); !ok) return tl::unexpected(ok.error());
    if (auto ok = check_matrices(model, styles_along(styles, false)); !ok) return tl::unexpected(ok.error());
  }
  if (auto done = spreads ? cut_beside_experts(model, styles, job, build) : Result<void>(); !done)
    return tl::unexpected(done.error());
  if (cuts && !spreads) {
    if (auto done = cut_tensors(model, styles, job, nullptr); !done) return tl::unexpected(done.error());
  }
  if (cuts) mark_packed(model, packed);
  if (job.mesh.context > 1) {
    if (auto shared = share(model, job); !shared) return tl::unexpected(shared.error());
  }
  return model;
}

}  // namespace foreshard
