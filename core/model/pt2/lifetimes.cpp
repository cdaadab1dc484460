#include "core/model/pt2/lifetimes.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "core/text/digest.h"

namespace foreshard {
namespace {

constexpr std::size_t kMaxDepth = 256;

bool is_word(char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

void mix(std::uint64_t& hash, std::uint64_t value) {
  hash = (hash ^ value) * 0xff51afd7ed558ccdULL;
  hash ^= hash >> 32;
}
void mix(std::uint64_t& hash, std::string_view text) { mix(hash, fnv1a(text)); }

/// One running function and the names it has given.
struct Activation {
  std::uint64_t key = 0;
  std::map<std::string, std::vector<ValueId>> names;
};

class Namer {
 public:
  Namer(const Pt2Program& program, const std::vector<Pt2Origin>& origins, Model& model)
      : program_(program), origins_(origins), model_(model), held_(model.values.size(), -1) {}

  void run() {
    const std::size_t ops = std::min(origins_.size(), model_.ops.size());
    for (std::size_t i = 0; i < ops; ++i) {
      const std::vector<std::uint64_t>& keys = keys_of(origins_[i]);
      std::size_t common = 0;
      while (common < open_.size() && common < keys.size() && open_[common].key == keys[common]) ++common;
      close(common, i);
      for (std::size_t d = open_.size(); d < keys.size(); ++d) open_.push_back({keys[d], {}});
      name_results(i, i + 1 < ops ? &origins_[i + 1] : nullptr);
    }
    close(0, ops);
    write();
  }

 private:
  const std::vector<Pt2Line>* lines_of(const Pt2Origin& origin) const {
    return origin.trace < 0 ? nullptr : &program_.traces[static_cast<std::size_t>(origin.trace)];
  }

  /// One key for each function that is running, outermost first: equal keys, one call. Modules of one class called from
  /// one line are told apart by the module stack: its entries are the functions named "forward", innermost last.
  const std::vector<std::uint64_t>& keys_of(const Pt2Origin& origin) {
    const auto [at, fresh] = keys_.try_emplace({origin.trace, origin.stack});
    const std::vector<Pt2Line>* lines = lines_of(origin);
    if (!fresh || lines == nullptr) return at->second;
    static const std::vector<Pt2Frame> kNoModules;
    const auto& modules = origin.stack < 0 ? kNoModules : program_.stacks[static_cast<std::size_t>(origin.stack)];
    auto entered =
        static_cast<std::ptrdiff_t>(modules.size()) -
        std::count_if(lines->begin(), lines->end(), [](const Pt2Line& l) { return l.function == "forward"; });
    std::uint64_t hash = 0;
    for (std::size_t d = 0; d < lines->size(); ++d) {
      const Pt2Line& line = (*lines)[d];
      if (d > 0) mix(hash, static_cast<std::uint64_t>((*lines)[d - 1].number));  // called from there
      mix(hash, line.file);
      mix(hash, line.function);
      if (line.function == "forward" && entered++ >= 0 && entered <= static_cast<std::ptrdiff_t>(modules.size())) {
        const Pt2Frame& module = modules[static_cast<std::size_t>(entered - 1)];
        mix(hash, module.path);
        mix(hash, static_cast<std::uint64_t>(module.call));
      }
      at->second.push_back(hash);
    }
    return at->second;
  }

  /// True if the line at depth `d` goes on in the next operator.
  bool goes_on(const Pt2Origin& here, const Pt2Origin* next, std::size_t d) {
    const std::vector<Pt2Line>* lines = lines_of(here);
    const std::vector<Pt2Line>* others = next == nullptr ? nullptr : lines_of(*next);
    if (others == nullptr || d >= others->size()) return false;
    const std::vector<std::uint64_t> keys = keys_of(here);
    const std::vector<std::uint64_t>& later = keys_of(*next);
    if (later[d] != keys[d] || (*others)[d].number != (*lines)[d].number) return false;
    // The same function called anew from here: a loop over modules runs the line again.
    const bool deeper = d + 1 < keys.size() && d + 1 < later.size();
    return !deeper || later[d + 1] == keys[d + 1] || (*others)[d + 1].function != (*lines)[d + 1].function;
  }

  void name_results(std::size_t op, const Pt2Origin* next) {
    const std::vector<Pt2Line>* lines = lines_of(origins_[op]);
    if (lines == nullptr) return;
    for (std::size_t d = lines->size(); d-- > 0 && !goes_on(origins_[op], next, d);) {
      for (const std::string& name : assigned_names((*lines)[d].code)) {
        std::vector<ValueId>& values = open_[d].names[name];
        for (const ValueId old : values) hold(old, op);  // until the name is given away
        values = model_.ops[op].out;
      }
    }
  }

  void close(std::size_t depth, std::size_t op) {
    for (std::size_t d = depth; d < open_.size(); ++d) {
      for (const auto& [name, values] : open_[d].names)
        for (const ValueId id : values) hold(id, op == 0 ? 0 : op - 1);
    }
    open_.resize(std::min(depth, open_.size()));
  }

  void hold(ValueId id, std::size_t op) {
    if (!id.valid()) return;
    std::int32_t& held = held_[id.index()];
    held = std::max(held, static_cast<std::int32_t>(op));
  }

  /// Only what outlives its last use is said.
  void write() {
    std::vector<std::int32_t> last(model_.values.size(), -1);
    for (std::size_t i = 0; i < model_.ops.size(); ++i) {
      const auto use = [&](const auto& self, const Arg& arg) -> void {
        if (const auto* value = std::get_if<ValueRef>(&arg.value))
          last[value->id.index()] = static_cast<std::int32_t>(i);
        if (const auto* list = std::get_if<ArgList>(&arg.value))
          for (const Arg& item : *list) self(self, item);
      };
      for (const Arg& arg : model_.ops[i].args) use(use, arg);
      for (const NamedArg& arg : model_.ops[i].kwargs) use(use, arg.arg);
      for (const ValueId id : model_.ops[i].out)
        if (id.valid()) last[id.index()] = std::max(last[id.index()], static_cast<std::int32_t>(i));
    }
    for (std::size_t v = 0; v < held_.size(); ++v) {
      if (held_[v] > last[v]) model_.values[v].held = {Hold::Until::Op, held_[v], {}};
    }
  }

  const Pt2Program& program_;
  const std::vector<Pt2Origin>& origins_;
  Model& model_;
  std::vector<std::int32_t> held_;  // by value: operator
  std::vector<Activation> open_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::uint64_t>> keys_;
};

}  // namespace

void assume_lifetimes(const Pt2Program& program, const std::vector<Pt2Origin>& origins, Model& model) {
  model.lifetimes = Lifetimes::Assumed;
  Namer(program, origins, model).run();
}

std::vector<std::string> assigned_names(std::string_view line) {
  std::vector<std::string> names;
  std::string_view rest = trimmed(line);
  for (;;) {
    std::size_t end = 0;
    while (end < rest.size() && is_word(rest[end])) ++end;
    if (end == 0 || (rest[0] >= '0' && rest[0] <= '9')) return {};
    names.emplace_back(rest.substr(0, end));
    rest = trimmed(rest.substr(end));
    if (rest.starts_with(',')) {
      rest = trimmed(rest.substr(1));
      continue;
    }
    if (rest.starts_with(':')) {  // an annotation: "x: Tensor = ..."
      const std::size_t equals = rest.find('=');
      if (equals == rest.npos) return {};
      rest = rest.substr(equals);
    }
    static constexpr std::string_view kAugmented = "+-*/@";
    if (rest.size() > 1 && kAugmented.find(rest[0]) != kAugmented.npos && rest[1] == '=') return names;
    return rest.starts_with('=') && !rest.starts_with("==") ? names : std::vector<std::string>{};
  }
}

std::vector<Pt2Line> parse_stack_trace(std::string_view text) {
  std::vector<Pt2Line> lines;
  bool wants_code = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    constexpr std::string_view kFile = "File \"", kLine = "\", line ", kIn = ", in ";
    if (!row.starts_with(kFile)) {
      if (wants_code && !row.empty()) lines.back().code = row;
      wants_code = false;
      continue;
    }
    const std::size_t number = row.rfind(kLine), in = row.rfind(kIn);
    if (number == row.npos || in == row.npos || in < number || lines.size() >= kMaxDepth) continue;
    Pt2Line& line = lines.emplace_back();
    line.file = row.substr(kFile.size(), number - kFile.size());
    line.function = row.substr(in + kIn.size());
    const char* const digits = row.data() + number + kLine.size();
    std::from_chars(digits, row.data() + in, line.number);
    wants_code = true;
  }
  return lines;
}

}  // namespace foreshard
