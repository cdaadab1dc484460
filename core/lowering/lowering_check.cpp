#include "core/lowering/lowering_check.h"

#include "core/lowering/lowering_machine.h"

namespace foreshard::lowering {

namespace {

Error broken(std::string place, std::string message, std::string expected, std::string got) {
  Error error;
  error.code = ErrorCode::Inconsistent;
  error.message = std::move(message);
  error.file = "";
  error.place = std::move(place);
  error.expected = std::move(expected);
  error.got = std::move(got);
  error.hint = "mend the operator program";
  return error;
}

}  // namespace

Result<void> check_program(const Model& model, const std::vector<SegmentRange>& segments) {
  std::int32_t next = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (segments[s].op_begin != next || segments[s].op_end < next)
      return fail(broken("segments[" + std::to_string(s) + "]", "segments do not follow one another",
                         std::to_string(next), std::to_string(segments[s].op_begin)));
    next = segments[s].op_end;
  }
  if (next != static_cast<std::int32_t>(model.ops.size()))
    return fail(broken("segments", "segments do not cover the operator program", std::to_string(model.ops.size()),
                       std::to_string(next)));
  for (std::size_t v = 0; v < model.values.size(); ++v)
    if (model.values[v].shape.size() > kMaxDims - 1)
      return fail(broken("values[" + std::to_string(v) + "]", "a tensor has too many dimensions",
                         "at most " + std::to_string(kMaxDims - 1), std::to_string(model.values[v].shape.size())));
  const auto inside = [](std::int32_t index, std::size_t size) {
    return index >= 0 && static_cast<std::size_t>(index) < size;
  };
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    const Op& op = model.ops[i];
    bool good = !op.module.valid() || inside(op.module.value, model.modules.size());
    for_each_arg(op, [&](const Arg& arg) {
      if (const auto* value = std::get_if<ValueRef>(&arg.value))
        good = good && inside(value->id.value, model.values.size());
      if (const auto* param = std::get_if<ParamRef>(&arg.value))
        good = good && inside(param->id.value, model.params.size()) &&
               model.params[param->id.index()].shape.size() < kMaxDims;
      if (const auto* buffer = std::get_if<BufferRef>(&arg.value))
        good = good && inside(buffer->index, model.buffers.size()) &&
               model.buffers[static_cast<std::size_t>(buffer->index)].shape.size() < kMaxDims;
    });
    for (const ValueId id : op.out) good = good && (!id.valid() || inside(id.value, model.values.size()));
    if (!good)
      return fail(broken("ops[" + std::to_string(i) + "] " + op.name,
                         "an operator refers to something that is not there", "an index in range", "one out of range"));
  }
  for (const ValueId id : model.outputs)
    if (id.valid() && !inside(id.value, model.values.size()))
      return fail(broken("outputs", "an output is not there", "an index in range", std::to_string(id.value)));
  return {};
}

}  // namespace foreshard::lowering
