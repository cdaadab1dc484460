#include "core/lowering/segment_autograd.h"

#include <algorithm>

#include "core/lowering/lowering_machine.h"
#include "core/lowering/table/rule_finder.h"

namespace foreshard {
namespace {

/// A value while the program is walked: does it need a gradient, and whose memory is it if it is a parameter's.
struct Seen {
  bool wants = false;
  ParamId param;
  ValueId value = {};
};

class Walk {
 public:
  Walk(const Model& model, const std::vector<bool>& trainable)
      : model_(model), trainable_(trainable), values_(model.values.size()) {}

  /// Where the next calls' kept arguments go (kept_arguments).
  void keep_in(std::vector<std::uint8_t>& kept) { kept_ = &kept; }

  /// What the call keeps; nullptr stands for a rule that is not there.
  void run(const Op& op, std::int32_t index, SegmentAutograd* segment) {
    const OpRule* const found = rules_.find(op.name);
    const OpRule& rule = found != nullptr ? *found : default_op_rule();
    args_.clear();
    lowering::for_each_arg(op, [&](const Arg& arg) { see(arg); });
    const bool any = std::any_of(args_.begin(), args_.end(), [](const Seen& arg) { return arg.wants; });
    const bool in_place = rule.form == OpForm::InPlace;
    const bool differentiable = any && !is_constant(rule) && gives_floating(op);
    if (differentiable && segment != nullptr) {
      if (op.opaque >= 0)
        note_opaque(model_.opaques[static_cast<std::size_t>(op.opaque)], index, *segment);
      else
        note(rule, op, index, *segment);
    }
    const bool views =
        is_view_form(rule.form) || in_place || rule.form == OpForm::Reshape || rule.form == OpForm::CopyIfNeeded;
    std::size_t i = 0;
    for (const ValueId id : op.out) {
      if (!id.valid()) continue;
      Seen& made = values_[id.index()];
      made = {};
      if (differentiable) made.wants = has_gradient(rule, i, model_.values[id.index()].dtype);
      if (rule.form == OpForm::ExpandEach && i < args_.size()) made.wants = args_[i].wants;
      if (is_constant(rule) && in_place && !args_.empty()) made.wants = args_[0].wants;
      made.wants = made.wants || model_.values[id.index()].requires_grad;
      if (views && !args_.empty()) made.param = args_[0].param;
      ++i;
    }
  }

 private:
  void see(const Arg& arg) {
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) {
      args_.push_back(values_[value->id.index()]);
      args_.back().value = value->id;
    } else if (const auto* param = std::get_if<ParamRef>(&arg.value)) {
      const ParamId storage = model_.storage_of(param->id);
      args_.push_back({storage.index() < trainable_.size() && trainable_[storage.index()], storage});
    } else if (std::holds_alternative<BufferRef>(arg.value)) {
      args_.push_back({});
    }
  }

  bool gives_floating(const Op& op) const {
    return std::any_of(op.out.begin(), op.out.end(),
                       [&](ValueId id) { return id.valid() && is_floating(model_.values[id.index()].dtype); });
  }

  void note(const OpRule& rule, const Op& op, std::int32_t index, SegmentAutograd& segment) {
    std::uint8_t wants = 0;
    for (std::size_t i = 0; i < args_.size() && i < 8; ++i)
      if (args_[i].wants) wants = static_cast<std::uint8_t>(wants | 1U << i);
    const auto results =
        static_cast<std::size_t>(std::count_if(op.out.begin(), op.out.end(), [](ValueId id) { return id.valid(); }));
    for_each_save(rule, op, args_.size(), results, wants, [&](const SaveRule& save) {
      segment.last_save = index;
      if (save.result) return;
      add_read(segment, args_[save.index].param);
      if (kept_ != nullptr) kept_->push_back(save.index);
    });
  }

  void note_opaque(const OpaqueOp& opaque, std::int32_t index, SegmentAutograd& segment) {
    if (!opaque.saved.empty()) segment.last_save = index;
    for (const OpaqueOp::Saved& saved : opaque.saved) {
      if (!saved.value.valid()) continue;
      add_read(segment, values_[saved.value.index()].param);
      for (std::size_t i = 0; kept_ != nullptr && i < args_.size(); ++i)
        if (args_[i].value == saved.value) kept_->push_back(static_cast<std::uint8_t>(i));
    }
  }

  static void add_read(SegmentAutograd& segment, ParamId param) {
    auto& reads = segment.backward_reads;
    if (param.valid() && std::find(reads.begin(), reads.end(), param) == reads.end()) reads.push_back(param);
  }

  const Model& model_;
  const std::vector<bool>& trainable_;
  std::vector<Seen> values_;
  std::vector<Seen> args_;
  RuleFinder rules_;
  std::vector<std::uint8_t>* kept_ = nullptr;
};

}  // namespace

bool puts_tensor(const Op& op) {
  return op.args.size() < 3 || std::holds_alternative<ValueRef>(op.args[2].value) ||
         std::holds_alternative<ParamRef>(op.args[2].value) || std::holds_alternative<BufferRef>(op.args[2].value);
}

std::vector<SaveRule> saves_of_call(const OpRule& rule, const Op& op, std::size_t args, std::size_t results,
                                    std::uint8_t wants) {
  std::vector<SaveRule> saves;
  for_each_save(rule, op, args, results, wants, [&](const SaveRule& save) { saves.push_back(save); });
  return saves;
}

std::vector<std::vector<std::uint8_t>> kept_arguments(const Model& model, const std::vector<bool>& trainable) {
  std::vector<std::vector<std::uint8_t>> kept(model.ops.size());
  Walk walk(model, trainable);
  for (std::size_t op = 0; op < kept.size(); ++op) {
    SegmentAutograd own;
    walk.keep_in(kept[op]);
    walk.run(model.ops[op], static_cast<std::int32_t>(op), &own);
  }
  return kept;
}

std::vector<SegmentAutograd> segment_autograd(const Model& model, std::span<const OpRange> segments,
                                              const std::vector<bool>& trainable) {
  std::vector<SegmentAutograd> out(segments.size());
  std::vector<std::int32_t> segment_of(model.ops.size(), -1);
  for (std::size_t s = 0; s < segments.size(); ++s)
    for (std::int32_t op = segments[s].begin; op < segments[s].end; ++op)
      segment_of[static_cast<std::size_t>(op)] = static_cast<std::int32_t>(s);
  Walk walk(model, trainable);
  for (std::size_t op = 0; op < model.ops.size(); ++op) {
    const std::int32_t s = segment_of[op];
    walk.run(model.ops[op], static_cast<std::int32_t>(op), s < 0 ? nullptr : &out[static_cast<std::size_t>(s)]);
  }
  return out;
}

}  // namespace foreshard
