#include "exec/operators/unwritten_values.h"

#include <set>
#include <string_view>
#include <unordered_map>

namespace foreshard::exec {
namespace {

bool only_allocates(std::string_view name) {
  return name == "aten::empty" || name == "aten::empty_like" || name == "aten::empty_strided" ||
         name == "aten::empty_permuted" || name == "aten::new_empty" || name == "aten::new_empty_strided";
}

/// Takes of its tensor no more than shape and type.
bool reads_no_values(std::string_view name) {
  return only_allocates(name) || name.ends_with("_like") || name.starts_with("aten::new_");
}

/// What becomes of the memory that one operator's argument names.
enum class Use { Nothing, Writes, Views, Reads };

Use use_of(const OperatorCall& call, std::size_t argument) {
  const c10::FunctionSchema& schema = call.handle.schema();
  if (reads_no_values(schema.name())) return Use::Nothing;
  const c10::AliasInfo* alias = schema.arguments()[argument].alias_info();
  if (alias == nullptr) return Use::Reads;
  return alias->isWrite() ? Use::Writes : Use::Views;
}

}  // namespace

std::optional<UnwrittenRead> first_unwritten_read(std::span<const OperatorCall> calls) {
  std::unordered_map<std::int32_t, std::size_t> memory;  // of a value: the operator that allocated it
  std::set<std::size_t> unwritten;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const OperatorCall& call = calls[i];
    std::optional<std::size_t> viewed;
    for (std::size_t a = 0; a < call.arguments.list.size(); ++a) {
      for (const Arg& arg : call.arguments.list[a].tensors) {
        const auto* value = std::get_if<ValueRef>(&arg.value);
        const auto made = value != nullptr ? memory.find(value->id.value) : memory.end();
        if (made == memory.end()) continue;
        switch (use_of(call, a)) {
          case Use::Nothing: break;
          case Use::Writes: unwritten.erase(made->second); [[fallthrough]];
          case Use::Views: viewed = made->second; break;
          case Use::Reads:
            if (unwritten.contains(made->second)) return UnwrittenRead{i, made->second};
        }
      }
    }
    if (only_allocates(call.handle.schema().name())) {
      viewed = i;
      if (!call.content.defined()) unwritten.insert(i);
    }
    if (!viewed) continue;
    for (const ValueId id : call.out) {
      if (id.valid()) memory[id.value] = *viewed;
    }
  }
  return std::nullopt;
}

}  // namespace foreshard::exec
