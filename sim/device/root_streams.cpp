#include "sim/device/root_streams.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/plan/graph/root_of_units.h"

namespace foreshard {
namespace {

constexpr std::size_t kMade = 3;  // of one priority, in the order in which a root makes them:
constexpr std::array<Stream, kMade> kOfFsdp1{Stream::U, Stream::G, Stream::Q};
constexpr std::array<Stream, kMade> kOfFsdp2{Stream::C, Stream::A, Stream::S};
constexpr std::size_t kPoolStreams = 32;  // torch's, of one priority
constexpr std::size_t kFirstHigh = kStreamCount;
constexpr std::size_t kFirstUsual = kFirstHigh + kPoolStreams - kMade;
constexpr std::size_t kUsual = 1 + kPlayedStreams - kFirstUsual;  // fewer than torch's: there are no more numbers

const std::array<Stream, kMade>& letters_of(Runtime runtime) { return runtime == Runtime::Fsdp1 ? kOfFsdp1 : kOfFsdp2; }

bool is_of_roots(Stream stream) { return stream_of_root(stream, 1) != stream; }

bool names_unit(const Plan& plan, const Instruction& i) { return i.unit.valid() && i.unit.index() < plan.units.size(); }

/// By unit: its root's place in the order in which roots first use a stream; 0 for those that never do.
std::vector<std::size_t> places_of_roots(const Plan& plan, const std::vector<UnitId>& root_of) {
  std::vector<UnitId> order;
  for (const PlanIteration& iteration : plan.iterations) {
    for (const Instruction& i : iteration.instructions) {
      if (!is_of_roots(i.stream) || !names_unit(plan, i)) continue;
      const UnitId root = root_of[i.unit.index()];
      if (std::find(order.begin(), order.end(), root) == order.end()) order.push_back(root);
    }
  }
  std::vector<std::size_t> places(root_of.size(), 0);
  for (std::size_t u = 0; u < root_of.size(); ++u) {
    const auto at = std::find(order.begin(), order.end(), root_of[u]);
    if (at != order.end()) places[u] = static_cast<std::size_t>(at - order.begin());
  }
  return places;
}

}  // namespace

Stream stream_of_root(Stream letter, std::size_t root) {
  if (letter == Stream::H) {
    const std::size_t place = root % kUsual;
    return place == 0 ? letter : static_cast<Stream>(kFirstUsual + place - 1);
  }
  const bool fsdp1 = std::find(kOfFsdp1.begin(), kOfFsdp1.end(), letter) != kOfFsdp1.end();
  const std::array<Stream, kMade>& letters = fsdp1 ? kOfFsdp1 : kOfFsdp2;
  const auto* const at = std::find(letters.begin(), letters.end(), letter);
  if (at == letters.end()) return letter;
  const std::size_t place = (root * kMade + static_cast<std::size_t>(at - letters.begin())) % kPoolStreams;
  return place < kMade ? letters[place] : static_cast<Stream>(kFirstHigh + place - kMade);
}

std::string played_stream_name(Stream stream, Runtime runtime) {
  const auto place = static_cast<std::size_t>(stream);
  if (place < kStreamCount) return std::string(stream_name(stream));
  if (place >= kFirstUsual) return "H" + std::to_string(place - kFirstUsual + 2);
  const std::size_t high = place - kFirstHigh + kMade;
  return std::string(stream_name(letters_of(runtime)[high % kMade])) + std::to_string(high / kMade + 1);
}

std::optional<Plan> with_root_streams(const Plan& plan, const Model& model, const Job& job) {
  if ((plan.runtime != Runtime::Fsdp1 && plan.runtime != Runtime::Fsdp2) || job.fsdp.wrap.root) return std::nullopt;
  const std::vector<std::size_t> places = places_of_roots(plan, root_of_units(model, plan));
  const std::size_t last = places.empty() ? 0 : *std::max_element(places.begin(), places.end());
  if (last == 0) return std::nullopt;
  std::optional<Plan> played = plan;
  for (PlanIteration& iteration : played->iterations) {
    for (Instruction& i : iteration.instructions) {
      if (!names_unit(plan, i)) continue;
      i.stream = stream_of_root(i.stream, places[i.unit.index()]);
      i.other = stream_of_root(i.other, places[i.unit.index()]);
    }
  }
  for (std::size_t root = 1; root <= last; ++root)
    for (const StreamInfo& first : plan.streams)
      if (is_of_roots(first.stream)) played->streams.push_back({stream_of_root(first.stream, root), first.priority});
  return played;
}

}  // namespace foreshard
