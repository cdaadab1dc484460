// Where work comes from: from a kernel to the call that launched it, its operators, module and Python frames; and from
// a call, an operator or a frame to the work that was launched inside it.
//
// Built in one pass over the timeline (4 bytes a slice, 16 an arrow); a question costs O(log n + depth). Keeps a
// reference to the timeline. May be asked from several threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

struct SliceOrigin {
  SpanId call;                       // that launched the work; of a host's slice the slice itself
  std::vector<SpanId> operators;     // around the call, innermost first; no named ranges, not the call
  std::vector<SpanId> ranges;        // named ranges around it, innermost first
  SpanId forward;                    // of a backward: the forward operator, where the recording says it
  std::vector<SpanId> frames;        // Python, innermost first; of a backward those of its forward
  std::vector<std::string> modules;  // "LlamaModel_0", "LlamaMLP_3": outermost first; else the unit's path
};

class SliceOrigins {
 public:
  explicit SliceOrigins(const Timeline& timeline);

  SliceOrigin of(SpanId span) const;

  /// Work on devices that was launched inside a host's slice, in order of launch; at most `limit`.
  std::vector<SpanId> work_of(SpanId span, std::size_t limit) const;

  /// Slices of hosts (Python frames, operators, ranges, calls) around a moment of a thread, outermost first.
  std::vector<SpanId> around(LaneId host, SimTime time) const;

  SpanId call_of(SpanId work) const;
  bool is_host(SpanId span) const { return span.valid() && at(span).lane.valid() && host_[at(span).lane.index()]; }

 private:
  struct Arrow {
    std::int32_t key = -1, other = -1;
  };
  const Span& at(SpanId id) const { return t_.spans[id.index()]; }
  SpanId innermost(std::int32_t lane, SimTime time) const;
  SpanId parent(SpanId span) const { return SpanId(parents_[span.index()]); }
  std::vector<SpanId> chain(std::int32_t lane, SimTime time) const;  // innermost first
  void find_threads();
  void find_parents();
  void find_arrows();
  SpanId forward_of(const std::vector<SpanId>& chain) const;
  void add_modules(SliceOrigin& origin, const Span& span) const;

  const Timeline& t_;
  std::vector<bool> host_;                                          // by lane: a thread or its Python frames
  std::vector<std::int32_t> python_;                                // by lane: the lane of the thread's frames, or -1
  std::vector<std::pair<std::size_t, std::size_t>> of_lane_;        // its spans: [first, last)
  std::vector<std::int32_t> parents_;                               // by span, hosts only
  std::vector<Arrow> calls_;                                        // work -> call, by work
  std::vector<Arrow> works_;                                        // call -> work, by call
  std::vector<Arrow> forwards_;                                     // backward operator -> forward operator
  std::unordered_map<std::uint64_t, std::int32_t> of_instruction_;  // rank and instruction -> call, of our own
};

/// How the profiler names a frame of a module's call.
inline constexpr std::string_view kModuleFrame = "nn.Module: ";

/// "nn.Module: LlamaMLP_3" -> "LlamaMLP_3"; "" for other frames, and for FSDP's own wrapper.
std::string_view module_of_frame(std::string_view frame);

}  // namespace foreshard
