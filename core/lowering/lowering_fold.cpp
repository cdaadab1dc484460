#include "core/lowering/lowering_fold.h"

#include <algorithm>
#include <cstring>

#include "core/lowering/graph/kept_inside.h"
#include "core/lowering/table/rule_finder.h"

namespace foreshard::lowering {

namespace {

constexpr std::int32_t kLeast = 6, kLongestPeriod = 64;

struct Hash {
  std::uint64_t value = 0x9e3779b97f4a7c15ULL;
  void add(std::uint64_t x) {
    value = (value ^ x) * 0xff51afd7ed558ccdULL;
    value ^= value >> 32;
  }
  void add(std::string_view text) {
    add(text.size());
    std::uint64_t word = 0;
    for (; text.size() >= sizeof(word); text.remove_prefix(sizeof(word))) {
      std::memcpy(&word, text.data(), sizeof(word));
      add(word);
    }
    word = 0;
    for (const char c : text) word = word << 8 | static_cast<unsigned char>(c);
    add(word);
  }
  void add(const Shape& shape) {
    add(shape.size());
    for (const std::int64_t size : shape) add(static_cast<std::uint64_t>(size));
  }
};

struct Digest {
  std::uint64_t inner = 0;
  std::vector<std::int32_t> imports;  // values made elsewhere, in order of use
};

class Folder {
 public:
  Folder(const Model& model, const std::vector<SegmentRange>& segments, const std::vector<bool>& trainable)
      : model_(model),
        segments_(segments),
        trainable_(trainable),
        made_(model.values.size(), -1),
        nth_(model.values.size(), 0) {
    for (std::size_t op = 0; op < model.ops.size(); ++op) {
      std::int32_t nth = 0;
      for (const ValueId id : model.ops[op].out) {
        if (id.valid() && made_[id.index()] < 0) {
          made_[id.index()] = static_cast<std::int32_t>(op);
          nth_[id.index()] = nth;
        }
        ++nth;
      }
    }
    for (const SegmentRange& segment : segments) digests_.push_back(digest(segment));
  }

  /// Repetitions between two segments, numbered as in the real program, by where they begin: the longest, and those
  /// before and behind it.
  std::vector<FoldedRun> runs(std::int32_t first, std::int32_t last, std::size_t most) const {
    FoldedRun longest;
    if (most == 0 || !find(first, last, longest)) return {};
    std::vector<FoldedRun> all = runs(first, longest.begin, most - 1);
    all.push_back(longest);
    const std::int32_t end = longest.begin + (longest.removed + FoldedRun::kKept) * longest.period;
    const std::vector<FoldedRun> behind = runs(end, last, most - all.size());
    all.insert(all.end(), behind.begin(), behind.end());
    return all;
  }

  std::int32_t maker(std::int32_t value) const { return made_[static_cast<std::size_t>(value)]; }

  /// The value that the operator `shift` before this one's maker made at the same place; -1 if it cannot be.
  std::int32_t twin(std::int32_t value, std::int32_t shift) const {
    const std::int32_t op = maker(value) - shift;
    if (op < 0) return -1;
    const auto& out = model_.ops[static_cast<std::size_t>(op)].out;
    const auto nth = static_cast<std::size_t>(nth_[static_cast<std::size_t>(value)]);
    return nth < out.size() && out[nth].valid() ? out[nth].value : -1;
  }

 private:
  bool find(std::int32_t first, std::int32_t last, FoldedRun& longest) const {
    std::int32_t best = 0;
    for (std::int32_t p = 1; p <= kLongestPeriod && p * kLeast <= last - first; ++p) {
      std::int32_t equal = 0;
      for (std::int32_t s = first + p; s <= last; ++s) {
        if (s < last && same(s, s - p)) {
          ++equal;
          continue;
        }
        const std::int32_t here = equal / p + 1;
        if (here >= kLeast && here * p > best) {
          best = here * p;
          longest = {s - equal - p, p, here - FoldedRun::kKept};
        }
        equal = 0;
      }
      if (best > 0) break;  // the shortest period that repeats
    }
    return best > 0;
  }

  Digest digest(const SegmentRange& segment) {
    Digest out;
    Hash hash;
    hash.add(static_cast<std::uint64_t>(segment.checkpointed) * 2 + static_cast<std::uint64_t>(segment.reentrant));
    hash.add(static_cast<std::uint64_t>(segment.use));
    ModuleId base;
    for (std::int32_t at = segment.op_begin; at < segment.op_end; ++at) {
      const Op& op = model_.ops[static_cast<std::size_t>(at)];
      hash.add(op.name);
      if (!base.valid()) base = op.module;
      hash.add(static_cast<std::uint64_t>(op.module.value - base.value));
      hash.add(static_cast<std::uint64_t>(op.call));
      for_each_arg(op, [&](const Arg& arg) { argument(hash, out, segment, arg); });
      if (op.opaque >= 0) add(hash, model_.opaques[static_cast<std::size_t>(op.opaque)], at);
      if (op.region >= 0) {
        const Region& region = model_.regions[static_cast<std::size_t>(op.region)];
        const auto kept = std::count(region.save.begin(), region.save.end(), at);
        hash.add(static_cast<std::uint64_t>(1 + kept + (keeps_collective(region, op) ? 1 : 0)));
      }
      for (const ValueId id : op.out) {
        hash.add(static_cast<std::uint64_t>(id.valid()));
        if (!id.valid()) continue;
        const ValueInfo& value = model_.values[id.index()];
        hash.add(value.shape);
        hash.add(static_cast<std::uint64_t>(value.dtype));
        if (!value.strides.empty()) hash.add(value.strides);
        if (value.held.until == Hold::Until::LastUse) continue;
        hash.add(static_cast<std::uint64_t>(value.held.until));
        if (value.held.until == Hold::Until::Autocast) continue;  // one place for all
        const bool numbered = value.held.op >= 0 && value.held.until != Hold::Until::Next;
        hash.add(static_cast<std::uint64_t>(numbered ? value.held.op - segment.op_begin : -1));
        hash.add(static_cast<std::uint64_t>(value.held.by.valid() ? value.held.by.value - base.value : -1));
      }
    }
    out.inner = hash.value;
    return out;
  }

  void add(Hash& hash, const OpaqueOp& opaque, std::int32_t at) const {
    for (const OpaqueOp::Saved& saved : opaque.saved) {
      hash.add(static_cast<std::uint64_t>(saved.value.valid() ? maker(saved.value.value) - at : 1));
      if (!saved.value.valid()) hash.add(saved.shape);
    }
    for (const OpaqueOp::Gradient& gradient : opaque.backward) {
      hash.add(static_cast<std::uint64_t>(gradient.made));
      hash.add(gradient.shape);
      hash.add(static_cast<std::uint64_t>(gradient.dtype));
      hash.add(static_cast<std::uint64_t>(gradient.storage));
      hash.add(static_cast<std::uint64_t>(gradient.of));
    }
    hash.add(static_cast<std::uint64_t>(opaque.bytes_moved));
    hash.add(static_cast<std::uint64_t>(opaque.flops));
    hash.add(static_cast<std::uint64_t>(opaque.workspace_bytes));
  }

  void argument(Hash& hash, Digest& out, const SegmentRange& segment, const Arg& arg) {
    hash.add(arg.value.index());
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) {
      const std::int32_t op = maker(value->id.value);
      if (op >= segment.op_begin && op < segment.op_end) {
        hash.add(static_cast<std::uint64_t>(op - segment.op_begin) * 16 +
                 static_cast<std::uint64_t>(nth_[value->id.index()]));
      } else {
        out.imports.push_back(value->id.value);
        hash.add(model_.values[value->id.index()].shape);
        hash.add(static_cast<std::uint64_t>(model_.values[value->id.index()].dtype));
      }
    } else if (const auto* param = std::get_if<ParamRef>(&arg.value)) {
      const ParamId storage = model_.storage_of(param->id);
      hash.add(model_.params[storage.index()].shape);
      hash.add(static_cast<std::uint64_t>(model_.params[storage.index()].dtype));
      hash.add(static_cast<std::uint64_t>(storage.index() < trainable_.size() && trainable_[storage.index()]));
    } else if (const auto* buffer = std::get_if<BufferRef>(&arg.value)) {
      hash.add(model_.buffers[static_cast<std::size_t>(buffer->index)].shape);
      hash.add(static_cast<std::uint64_t>(model_.buffers[static_cast<std::size_t>(buffer->index)].dtype));
    } else if (const auto* number = std::get_if<std::int64_t>(&arg.value)) {
      hash.add(static_cast<std::uint64_t>(*number));
    } else if (const auto* flag = std::get_if<bool>(&arg.value)) {
      hash.add(static_cast<std::uint64_t>(*flag));
    } else if (const auto* real = std::get_if<double>(&arg.value)) {
      hash.add(static_cast<std::uint64_t>(*real * 1e9));
    } else if (const auto* text = std::get_if<std::string>(&arg.value)) {
      hash.add(*text);
    } else if (const auto* dtype = std::get_if<DType>(&arg.value)) {
      hash.add(static_cast<std::uint64_t>(*dtype));
    }
  }

  bool same_region(std::int32_t a, std::int32_t b) const {
    const auto at = [&](std::int32_t s) { return segments_[static_cast<std::size_t>(s)].region; };
    return (a > 0 && at(a) == at(a - 1)) == (b > 0 && at(b) == at(b - 1));
  }

  bool same(std::int32_t s, std::int32_t before) const {
    const Digest& a = digests_[static_cast<std::size_t>(s)];
    const Digest& b = digests_[static_cast<std::size_t>(before)];
    if (a.inner != b.inner || a.imports.size() != b.imports.size() || !same_region(s, before)) return false;
    const std::int32_t shift =
        segments_[static_cast<std::size_t>(s)].op_begin - segments_[static_cast<std::size_t>(before)].op_begin;
    for (std::size_t i = 0; i < a.imports.size(); ++i) {
      if (a.imports[i] == b.imports[i]) continue;
      if (maker(a.imports[i]) < 0 || maker(b.imports[i]) < 0) return false;
      const bool from_block =
          maker(a.imports[i]) - maker(b.imports[i]) == shift &&
          nth_[static_cast<std::size_t>(a.imports[i])] == nth_[static_cast<std::size_t>(b.imports[i])];
      if (!from_block) return false;
    }
    return true;
  }

  const Model& model_;
  const std::vector<SegmentRange>& segments_;
  const std::vector<bool>& trainable_;
  std::vector<std::int32_t> made_, nth_;
  std::vector<Digest> digests_;
};

/// How many tensors, results and dimensions a formula relies on; an operator with fewer falls back to the default rule.
struct Needs {
  std::size_t tensors = 1, results = 1;
  std::size_t dims = 0;  // of the last tensor relied on
};

Needs needs_of(OpFormula formula) {
  switch (formula) {
    case OpFormula::Mm: return {2, 1, 2};
    case OpFormula::Addmm: return {3, 1, 2};
    case OpFormula::Bmm: return {2, 1, 3};
    case OpFormula::Baddbmm: return {3, 1, 3};
    case OpFormula::Linear: return {2, 1, 2};
    case OpFormula::Embedding: return {2, 1, 0};
    case OpFormula::MaskedFill: return {2, 1, 0};
    case OpFormula::Where: return {3, 1, 0};
    case OpFormula::NllLoss: return {2, 2, 0};
    case OpFormula::LayerNorm: return {1, 3, 1};
    case OpFormula::Dropout: return {1, 2, 0};
    case OpFormula::FlashAttention:
    case OpFormula::EfficientAttention: return {3, 2, 4};
    case OpFormula::Gather:
    case OpFormula::IndexSelect:
    case OpFormula::Index:
    case OpFormula::Extremum:
    case OpFormula::IndexPut:  // what is put may be a number
    case OpFormula::MseLoss: return {2, 1, 0};
    case OpFormula::Convolution: return {2, 1, 1};
    case OpFormula::ConvolutionBackward: return {3, 1, 1};
    case OpFormula::ScatterAdd:
    case OpFormula::IndexAdd: return {3, 1, 0};
    case OpFormula::Pick: return {1, 2, 0};
    case OpFormula::GroupedMm:
    case OpFormula::TriangularSolve: return {2, 1, 3};
    case OpFormula::QuantisedLinear:
    case OpFormula::IntegerLinear: return {2, 1, 1};
    case OpFormula::Float8Linear: return {2, 1, 2};
    case OpFormula::FusedLoss: return {3, 3, 1};
    case OpFormula::EuclideanDist: return {2, 1, 2};
    case OpFormula::AffineGrid: return {1, 1, 3};
    case OpFormula::FlexAttention: return {3, 3, 4};
    case OpFormula::FlexBlockMask: return {0, 8, 0};
    case OpFormula::None: return {0, 0, 0};
    default: return {1, 1, 0};
  }
}

const OpRule& rule_for(const Model& model, const Op& op, RuleFinder& rules) {
  const OpRule* rule = rules.find(op.name);
  if (rule == nullptr) return default_op_rule();
  const Needs needs = needs_of(rule->formula);
  std::size_t tensors = 0, dims = 0;
  for_each_arg(op, [&](const Arg& arg) {
    const Shape* shape = nullptr;
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) shape = &model.values[value->id.index()].shape;
    if (const auto* param = std::get_if<ParamRef>(&arg.value)) shape = &model.params[param->id.index()].shape;
    if (const auto* buffer = std::get_if<BufferRef>(&arg.value))
      shape = &model.buffers[static_cast<std::size_t>(buffer->index)].shape;
    if (shape == nullptr) return;
    if (++tensors == needs.tensors) dims = shape->size();
  });
  const auto results =
      static_cast<std::size_t>(std::count_if(op.out.begin(), op.out.end(), [](ValueId id) { return id.valid(); }));
  const bool made = results >= needs.results || rule->form == OpForm::InPlace;  // on a buffer: no result of its own
  return tensors >= needs.tensors && made && dims >= needs.dims ? *rule : default_op_rule();
}

void add_steps(const Model& model, const SegmentRange& segment, std::int32_t instance, RuleFinder& rules,
               Program& program) {
  for (std::int32_t op = segment.op_begin; op < segment.op_end; ++op) {
    program.steps.push_back({op, instance, &rule_for(model, model.ops[static_cast<std::size_t>(op)], rules)});
  }
  program.reentrant.push_back(segment.reentrant);
  program.region_module.push_back(segment.module);
  program.use.push_back(segment.use);
  program.checkpoint_region.push_back(
      segment.checkpointed ? (segment.region >= 0 ? segment.region : 1'000'000 + instance) : -1);
}

}  // namespace

Fold unfolded(const Model& model, const std::vector<SegmentRange>& segments) {
  Fold out;
  RuleFinder rules;
  for (std::size_t s = 0; s < segments.size(); ++s)
    add_steps(model, segments[s], static_cast<std::int32_t>(s), rules, out.program);
  out.program.instance_count = segments.size();
  return out;
}

namespace {

/// What a run leaves out, and what follows it.
struct Gap {
  std::int32_t begin = 0, end = 0;                        // segments of the real program
  std::int32_t first_gone = 0, first_back = 0, tail = 0;  // operators: left out, there again, behind the next block
};

Gap gap_of(const Model& model, const std::vector<SegmentRange>& segments, const FoldedRun& run) {
  const auto op_at = [&](std::int32_t s) {
    return s < static_cast<std::int32_t>(segments.size()) ? segments[static_cast<std::size_t>(s)].op_begin
                                                          : static_cast<std::int32_t>(model.ops.size());
  };
  const std::int32_t begin = run.begin + FoldedRun::kHead * run.period, end = begin + run.removed * run.period;
  return {begin, end, op_at(begin), op_at(end), op_at(end + run.period)};
}

/// What the block after a gap takes from the last block left out is what the last block before the gap made. False: it
/// is used from afar, and the blocks are not alike after all.
bool stand_in(const Model& model, const Folder& folder, const std::vector<Gap>& gaps, Program& program) {
  const auto gap_with = [&](std::int32_t op) {
    return std::find_if(gaps.begin(), gaps.end(),
                        [&](const Gap& gap) { return op >= gap.first_gone && op < gap.first_back; });
  };
  bool possible = true;
  for (const Step& step : program.steps) {
    for_each_arg(model.ops[static_cast<std::size_t>(step.op)], [&](const Arg& arg) {
      const auto* value = std::get_if<ValueRef>(&arg.value);
      if (value == nullptr) return;
      const auto gap = gap_with(folder.maker(value->id.value));
      if (gap == gaps.end()) return;
      const std::int32_t twin = folder.twin(value->id.value, gap->first_back - gap->first_gone);
      if (step.op >= gap->tail || twin < 0)
        possible = false;
      else
        program.stands_for.emplace(value->id.value, twin);
    });
  }
  for (const ValueId id : model.outputs)
    if (id.valid() && gap_with(folder.maker(id.value)) != gaps.end()) possible = false;
  return possible;
}

}  // namespace

Fold fold(const Model& model, const std::vector<SegmentRange>& segments, const std::vector<bool>& trainable,
          std::size_t most_runs) {
  if (most_runs == 0) return unfolded(model, segments);
  const Folder folder(model, segments, trainable);
  const auto count = static_cast<std::int32_t>(segments.size());
  Fold out;
  out.runs = folder.runs(0, count, most_runs);
  std::vector<Gap> gaps;
  std::int32_t removed = 0;
  for (FoldedRun& run : out.runs) {
    gaps.push_back(gap_of(model, segments, run));
    run.begin -= removed;
    removed += run.removed * run.period;
  }
  RuleFinder rules;
  for (std::int32_t s = 0, instance = 0; s < count; ++s) {
    if (std::any_of(gaps.begin(), gaps.end(), [s](const Gap& gap) { return s >= gap.begin && s < gap.end; })) continue;
    add_steps(model, segments[static_cast<std::size_t>(s)], instance++, rules, out.program);
  }
  out.program.instance_count = static_cast<std::size_t>(count - removed);
  if (stand_in(model, folder, gaps, out.program)) return out;
  return fold(model, segments, trainable, out.runs.size() > 1 ? 1 : 0);
}

}  // namespace foreshard::lowering
