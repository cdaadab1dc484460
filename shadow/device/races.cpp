#include "shadow/device/races.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

namespace fakegpu {
namespace {

struct Operation {
  int stream = -1;
  uint64_t number = 0;
  const char* what = "";
};

struct Bytes {
  uintptr_t end = 0;
  Operation writer;
  std::vector<Operation> readers;  // since then, the last one of each stream
};

struct Races {
  bool on = false, stops = false;
  std::map<uintptr_t, Bytes> bytes;  // by begin, without overlaps
  std::vector<uint64_t> known;       // to the host, as Stream::seen
  std::set<std::string> told;
  std::string text;
};

Races& races() {
  static Races* r = [] {
    auto* made = new Races;
    const char* wish = getenv("FAKEGPU_RACES");
    made->on = wish && *wish && strcmp(wish, "0") != 0;
    made->stops = wish && !strcmp(wish, "abort");
    return made;
  }();
  return *r;
}

bool covers(const std::vector<uint64_t>& seen, const Operation& op) {
  return (size_t)op.stream < seen.size() && seen[op.stream] >= op.number;
}

bool comes_behind(const Stream* s, const Operation& earlier) {
  return earlier.stream < 0 || earlier.stream == s->id || covers(s->seen, earlier) || covers(races().known, earlier);
}

void tell(const Operation& now, const char* does, const Operation& earlier, const char* did) {
  Races& r = races();
  const std::string line = std::string(now.what) + " on stream " + std::to_string(now.stream) + " " + does + " what " +
                           earlier.what + " on stream " + std::to_string(earlier.stream) + " " + did +
                           ", and does not wait for it";
  if (!r.told.insert(line).second) return;
  r.text += line + "\n";
  Line("race").s("name", line).n("stream", now.stream);
  fprintf(stderr, "fakegpu: race: %s\n", line.c_str());
  if (r.stops) abort();
}

}  // namespace

void tell_fault(const std::string& text) {
  Races& r = races();
  if (!r.told.insert(text).second) return;
  r.text += text + "\n";
  fprintf(stderr, "fakegpu: fault: %s\n", text.c_str());
  if (r.stops) abort();
}

namespace {

// Makes `at` a boundary.
void split(std::map<uintptr_t, Bytes>& all, uintptr_t at) {
  auto it = all.upper_bound(at);
  if (it == all.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Bytes behind = it->second;
  it->second.end = at;
  all.emplace(at, std::move(behind));
}

void look_at(const Stream* s, Access access, const Bytes& part, const Operation& now) {
  const bool writes = access == Access::Writes;
  if (!comes_behind(s, part.writer)) tell(now, writes ? "writes" : "reads", part.writer, "writes");
  if (!writes) return;
  for (const Operation& reader : part.readers) {
    if (!comes_behind(s, reader)) tell(now, "writes", reader, "reads");
  }
}

void note(Access access, Bytes& part, const Operation& now) {
  if (access == Access::Writes) {
    part.writer = now;
    part.readers.clear();
    return;
  }
  auto same = std::find_if(part.readers.begin(), part.readers.end(),
                           [&](const Operation& reader) { return reader.stream == now.stream; });
  if (same == part.readers.end()) {
    part.readers.push_back(now);
  } else {
    *same = now;
  }
}

}  // namespace

void touches(const Stream* s, Access access, const void* p, size_t n, const char* what) {
  Races& r = races();
  if (!r.on || !n || !p || s->capture) return;
  const Operation now{s->id, s->seen[s->id], what};
  const auto begin = (uintptr_t)p, end = begin + n;
  split(r.bytes, begin);
  split(r.bytes, end);
  uintptr_t at = begin;
  for (auto it = r.bytes.lower_bound(begin); it != r.bytes.end() && it->first < end; ++it) {
    if (it->first > at) {  // a gap: nobody has touched it
      it = r.bytes.emplace(at, Bytes{it->first, {}, {}}).first;
    }
    look_at(s, access, it->second, now);
    note(access, it->second, now);
    at = it->second.end;
  }
  if (at < end) note(access, r.bytes.emplace(at, Bytes{end, {}, {}}).first->second, now);
  if (access == Access::Writes) {  // one writer: one part again
    auto first = r.bytes.find(begin);
    first->second = Bytes{end, now, {}};
    r.bytes.erase(std::next(first), r.bytes.lower_bound(end));
  }
}

namespace {

constexpr const char* kPointwise = "std::array<char*, ";

// (int count, functor, std::array<char*, N> operands, ...): the first is the result. Elements are of a byte at least.
void pointwise_touches(const Stream* s, const std::string& name, void** args) {
  const int operands = atoi(name.c_str() + name.find(kPointwise) + strlen(kPointwise));
  const auto count = (size_t) * (const int*)args[0];
  auto* const* data = (char* const*)args[2];
  for (int i = std::min(operands, 8) - 1; i >= 0; --i) {
    touches(s, i == 0 ? Access::Writes : Access::Reads, data[i], count, "a pointwise kernel");
  }
}

bool has(const std::string& text, const char* what) { return text.find(what) != std::string::npos; }

// How many tensors a pointwise functor works on, its result among them; 0: not known.
int operands_of(const std::string& functor) {
  const size_t lambda = functor.rfind("{lambda(");
  if (lambda != std::string::npos) {
    const size_t begin = lambda + strlen("{lambda("), end = functor.find(')', begin);
    if (end == std::string::npos) return 0;
    const std::string inputs = functor.substr(begin, end - begin);
    return inputs.empty() ? 1 : 2 + (int)std::count(inputs.begin(), inputs.end(), ',');
  }
  if (has(functor, "FillFunctor")) return 1;
  if (has(functor, "UnaryFunctor<") || has(functor, "OnSelf_add<") || has(functor, "OnOther_add<")) return 2;
  return has(functor, "BinaryFunctor<") || has(functor, "CUDAFunctor_add<") ? 3 : 0;
}

// (int count, lambda) over strided operands: the lambda has captured an OffsetCalculator of 25 dimensions (their
// number, dividers of three words, strides by operand), then the addresses. The first is the result.
void strided_touches(const Stream* s, const std::string& name, void** args) {
  static constexpr const char* kFunctor = "gpu_kernel_impl_nocast<";
  const size_t at = name.find(kFunctor), end = name.find("(at::TensorIteratorBase&", at);
  if (at == std::string::npos || end == std::string::npos) return;
  const int operands = operands_of(name.substr(at, end - at));
  const size_t calculator = 4 + 25 * 12 + 25 * 4 * (size_t)operands;
  auto* const* data = (char* const*)((const char*)args[1] + (calculator + 7) / 8 * 8);
  for (int i = operands - 1; i >= 0; --i) {
    if (!is_device_ptr(data[i])) return;
    touches(s, i == 0 ? Access::Writes : Access::Reads, data[i], 1, "a kernel over strided operands");
  }
}

// Lists of tensors, (TensorListMetadata<depth> lists, functor, ...): addresses by list and tensor, lengths,
// then the tensor of each block. Which lists are written the functor knows: reads alone are claimed.
void lists_touch(const Stream* s, const std::string& name, unsigned blocks, void** args) {
  static constexpr int kMostTensors[] = {110, 64, 48, 36, 30};
  static constexpr const char* kLists = "::TensorListMetadata<";
  const size_t at = name.find(kLists);
  if (at == std::string::npos) return;
  const int depth = atoi(name.c_str() + at + strlen(kLists));
  if (depth < 1 || depth > 5) return;
  const int most = kMostTensors[depth - 1];
  auto* const* addresses = (char* const*)args[0];
  const auto* lengths = (const int64_t*)(addresses + (size_t)depth * most);
  const auto* tensor_of_block = (const unsigned char*)(lengths + most);
  int tensors = 0;
  for (unsigned b = 0; b < std::min(blocks, 320u); b++) tensors = std::max(tensors, tensor_of_block[b] + 1);
  for (int list = 0; list < depth; list++) {
    for (int t = 0; t < std::min(tensors, most); t++) {
      touches(s, Access::Reads, addresses[(size_t)list * most + t], (size_t)lengths[t],
              "a kernel over lists of tensors");
    }
  }
}

bool ends_with(const std::string& text, const char* end) {
  const size_t n = strlen(end);
  return text.size() >= n && text.compare(text.size() - n, n, end) == 0;
}

enum class Parameter { Other, Read, Written };

Parameter parameter_of(std::string text) {
  for (const char* word : {" restrict", " __restrict__"}) {
    if (ends_with(text, word)) text.resize(text.size() - strlen(word));
  }
  if (!ends_with(text, "*") || ends_with(text, "**") || ends_with(text, "* const*")) return Parameter::Other;
  return ends_with(text, " const*") ? Parameter::Read : Parameter::Written;
}

// A kernel's own parameters, where they are pointers to elements: "f<...>(float*, float const*, int)".
std::vector<Parameter> parameters_of(const std::string& name) {
  std::vector<Parameter> parameters;
  if (!ends_with(name, ")")) return parameters;
  std::string one;
  int depth = 0;
  for (size_t i = name.size() - 1; i-- > 0;) {
    const char c = name[i];
    if (strchr(")>]}", c)) depth++;
    if (strchr("(<[{", c) && depth-- == 0) break;
    if (c == ',' && depth == 0) {
      std::reverse(one.begin(), one.end());
      parameters.push_back(parameter_of(one));
      one.clear();
    } else if (!(c == ' ' && depth == 0 && i > 0 && name[i - 1] == ',')) {
      one += c;
    }
  }
  std::reverse(one.begin(), one.end());
  parameters.push_back(parameter_of(one));
  std::reverse(parameters.begin(), parameters.end());
  return parameters;
}

// Of how many elements is not said: the first.
void pointers_touch(const Stream* s, const void* kernel, const std::string& name, void** args) {
  static auto* known = new std::map<const void*, std::vector<Parameter>>;
  const auto [entry, fresh] = known->try_emplace(kernel);
  if (fresh) entry->second = parameters_of(name);
  for (const Parameter wanted : {Parameter::Read, Parameter::Written}) {
    for (size_t i = 0; i < entry->second.size(); i++) {
      const void* p = entry->second[i] == wanted ? *(void* const*)args[i] : nullptr;
      if (p == nullptr || !is_device_ptr(p)) continue;
      touches(s, wanted == Parameter::Read ? Access::Reads : Access::Writes, p, 1, "a kernel");
    }
  }
}

}  // namespace

void kernel_touches(const Stream* s, const void* kernel, const std::string& name, unsigned blocks, void** args) {
  if (!races().on || !args || s->capture) return;
  if (has(name, "vectorized_elementwise_kernel<") || has(name, "unrolled_elementwise_kernel<")) {
    if (has(name, kPointwise)) pointwise_touches(s, name, args);
  } else if (has(name, "elementwise_kernel<")) {
    strided_touches(s, name, args);
  } else if (has(name, "multi_tensor_apply_kernel")) {
    lists_touch(s, name, blocks, args);
  } else {
    pointers_touch(s, kernel, name, args);
  }
}

void host_knows(const std::vector<uint64_t>& seen) {
  Races& r = races();
  if (!r.on) return;
  if (r.known.size() < seen.size()) r.known.resize(seen.size(), 0);
  for (size_t i = 0; i < seen.size(); i++) r.known[i] = std::max(r.known[i], seen[i]);
}

void forget_accesses(const void* p, size_t n) {
  Races& r = races();
  if (!r.on || !n) return;
  const auto begin = (uintptr_t)p, end = begin + n;
  split(r.bytes, begin);
  split(r.bytes, end);
  r.bytes.erase(r.bytes.lower_bound(begin), r.bytes.lower_bound(end));
}

}  // namespace fakegpu

extern "C" {

// The races so far, one a line; empty: none.
const char* fakegpu_races() {
  std::lock_guard<std::recursive_mutex> lk(fakegpu::lock());
  static std::string* text = new std::string;
  return (*text = fakegpu::races().text).c_str();
}
// Forgets what was found and what was touched.
void fakegpu_races_reset() {
  std::lock_guard<std::recursive_mutex> lk(fakegpu::lock());
  fakegpu::Races& r = fakegpu::races();
  r.bytes.clear();
  r.told.clear();
  r.text.clear();
}

}  // extern "C"
