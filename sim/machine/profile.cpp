#include "sim/machine/profile.h"

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "sim/machine/profile_keys.h"
#include "sim/machine/profile_table.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 4> kLevels{"datasheet", "published", "microbenchmark", "measured-step"};
constexpr double kLargest = 1e15;  // no rate, bandwidth, time or size of a machine is beyond it
constexpr double kMostOfPeak = 2;  // of attention, whose masked half is counted in

bool is_share(std::string_view extra) {
  for (const char* const share : {kEfficientShare, kCudnnShare, kNarrowShare, kNarrowestShare}) {
    if (extra == share) return true;
  }
  return false;
}
constexpr std::array<std::string_view, kTensorWorks> kTensorWork{"copy", "fill", "add",   "scale",
                                                                 "join", "norm", "adamw", "sgd"};
constexpr std::array<std::string_view, 5> kFabrics{"switch", "mesh", "cube-mesh", "pairs", "host"};
constexpr double kMostCards = 1024;  // joined by one fabric

/// Reads one profile; the first thing that is wrong is kept and ends the reading.
class Reader {
 public:
  Reader(const toml::table& root, std::string file) : root_(root), file_(std::move(file)) {}

  Result<HardwareProfile> read() {
    check_keys(root_, "",
               {"schema", "base", "id", "kind", "level", "interval", "peak_tflops", "gemm_tflops", "vector_tflops",
                "device", "host", "links", "extra", "sources", "operators", "collectives", "work", "calibration"});
    const std::string schema = text(root_, "", "schema");
    if (!error_ && schema != "foreshard.profile/1") {
      wrong(ErrorCode::Unsupported, "schema", "foreshard.profile/1", schema, "");
    }
    profile_.id = text(root_, "", "id");
    profile_.kind = choice(root_, "", "kind", {"gpu", "cpu", "virtual"});
    const std::string level = choice(root_, "", "level", {kLevels.begin(), kLevels.end()});
    const auto found = std::find(kLevels.begin(), kLevels.end(), level);
    if (found != kLevels.end()) profile_.level = static_cast<CalibrationLevel>(found - kLevels.begin());
    profile_.interval = number(root_, "", "interval", 0.0, 10.0);
    rates("peak_tflops", profile_.peak_tflops, true);
    rates("gemm_tflops", profile_.gemm_tflops, true);
    rates("vector_tflops", profile_.vector_tflops, false);
    numbers();
    strings();
    measured_operators();
    measured_collectives();
    measured_work();
    if (error_) return fail(*error_);
    return profile_;
  }

 private:
  void wrong(ErrorCode code, const std::string& place, const std::string& expected, const std::string& got,
             const std::string& hint) {
    if (!error_) error_ = Error{code, "the hardware profile cannot be used", file_, place, expected, got, hint};
  }

  static std::string path(const std::string& table, const std::string& key) {
    return table.empty() ? key : table + "." + key;
  }

  void check_keys(const toml::table& table, const std::string& name, const std::vector<std::string_view>& known) {
    for (const auto& [key, node] : table) {
      if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
      std::string list;
      for (const std::string_view k : known) list += (list.empty() ? "" : ", ") + std::string(k);
      wrong(ErrorCode::UnknownKey, path(name, std::string(key.str())), "one of " + list, std::string(key.str()), "");
    }
  }

  const toml::table* table(const std::string& name, bool required) {
    const toml::node* node = root_.get(name);
    if (node == nullptr) {
      if (required) wrong(ErrorCode::MissingKey, name, "a table [" + name + "]", "nothing", "");
      return nullptr;
    }
    if (!node->is_table()) wrong(ErrorCode::WrongType, name, "a table", "another type", "");
    return node->as_table();
  }

  std::string text(const toml::table& table, const std::string& name, const std::string& key) {
    const toml::node* node = table.get(key);
    if (node == nullptr) {
      wrong(ErrorCode::MissingKey, path(name, key), "a text", "nothing", "");
      return {};
    }
    const auto value = node->value_exact<std::string>();
    if (!value) wrong(ErrorCode::WrongType, path(name, key), "a text", "another type", "");
    return value.value_or("");
  }

  std::string choice(const toml::table& table, const std::string& name, const std::string& key,
                     const std::vector<std::string_view>& words) {
    const std::string value = text(table, name, key);
    if (error_ || std::find(words.begin(), words.end(), value) != words.end()) return value;
    std::string list;
    for (const std::string_view word : words) list += (list.empty() ? "" : " | ") + std::string(word);
    wrong(ErrorCode::OutOfRange, path(name, key), list, value, "");
    return value;
  }

  double number(const toml::table& table, const std::string& name, const std::string& key, double low, double high) {
    const toml::node* node = table.get(key);
    if (node == nullptr) {
      wrong(ErrorCode::MissingKey, path(name, key), "a number", "nothing", "");
      return low;
    }
    const auto value = node->is_number() ? node->value<double>() : std::nullopt;
    if (!value) {
      wrong(ErrorCode::WrongType, path(name, key), "a number", "another type", "");
      return low;
    }
    if (!(*value >= low && *value <= high)) {
      std::ostringstream bounds, got;
      bounds << "a number from " << low << " to " << high;
      got << *value;
      wrong(ErrorCode::OutOfRange, path(name, key), bounds.str(), got.str(), "");
      return low;
    }
    return *value;
  }

  void rates(const std::string& name, std::map<DType, double>& into, bool required) {
    const toml::table* rows = table(name, required);
    if (rows == nullptr) return;
    for (const auto& [key, node] : *rows) {
      const std::string word(key.str());
      const auto dtype = parse_dtype(word);
      if (!dtype) {
        wrong(ErrorCode::UnknownKey, path(name, word), "a dtype such as bfloat16", word, "");
        return;
      }
      into[*dtype] = number(*rows, name, word, 1e-6, 1e6);
    }
    if (into.empty()) wrong(ErrorCode::MissingKey, name, "at least one dtype", "an empty table", "");
  }

  void numbers() {
    for (const char* name : {"device", "host", "links"}) {
      const toml::table* rows = table(name, true);
      if (rows == nullptr) return;
      std::vector<std::string_view> known;
      for (const NumberKey& k : kNumbers) {
        if (std::string_view(k.table) != name) continue;
        known.push_back(k.key);
        const double high = k.small != nullptr ? 1e6 : kLargest;
        const double value = number(*rows, name, k.key, k.low, high);
        if (k.number != nullptr) profile_.*k.number = value;
        if (k.integer != nullptr) profile_.*k.integer = static_cast<SimDuration>(value);
        if (k.small != nullptr) profile_.*k.small = static_cast<int>(value);
      }
      if (std::string_view(name) == "device") {
        known.push_back("architecture");
        if (rows->contains("architecture")) architecture(*rows);
      }
      if (std::string_view(name) == "host") {
        known.push_back("cpu");
        profile_.host_cpu = choice(*rows, name, "cpu", {"intel", "amd"});
        if (profile_.kind == "cpu") processor(*rows, known);
      }
      if (std::string_view(name) == "links") {
        profile_.channels = static_cast<int>(number(*rows, name, "channels", 1, 64));
        links(*rows, known);
      }
      check_keys(*rows, name, known);
    }
  }

  void architecture(const toml::table& rows) {
    const std::string said = text(rows, "device", "architecture");
    const auto card = parse_architecture(said);
    if (!card) return wrong(ErrorCode::OutOfRange, "device.architecture", "sm_90, gfx942, ..., or none", said, "");
    profile_.architecture = *card;
    architecture_said_ = true;
  }

  void links(const toml::table& rows, std::vector<std::string_view>& known) {
    known.push_back("channels");
    if (rows.contains("generation")) {
      known.push_back("generation");
      return generation(rows);
    }
    known.insert(known.end(), {"fabric", "cards", "pair_links", "rails", "ring_share", "switch_sum_share"});
    if (profile_.kind == "gpu" && !architecture_said_) {
      return wrong(ErrorCode::MissingKey, "device.architecture", "sm_90, gfx942, ...", "nothing", "");
    }
    if (profile_.kind == "gpu" || rows.contains("fabric")) {
      const std::string fabric = choice(rows, "links", "fabric", {kFabrics.begin(), kFabrics.end()});
      const auto at = std::find(kFabrics.begin(), kFabrics.end(), fabric) - kFabrics.begin();
      if (!error_) profile_.fabric = static_cast<Fabric>(at);
    }
    const auto optional = [&](const char* key, double low, double high, double otherwise) {
      return rows.contains(key) ? number(rows, "links", key, low, high) : otherwise;
    };
    profile_.cards = static_cast<int>(optional("cards", 1, kMostCards, profile_.cards));
    profile_.pair_links = static_cast<int>(optional("pair_links", 1, kMostCards, profile_.pair_links));
    profile_.rails = static_cast<int>(optional("rails", 1, kMostCards, profile_.cards));
    profile_.ring_share = optional("ring_share", 1e-3, 2, profile_.ring_share);
    profile_.switch_sum_share = optional("switch_sum_share", 0, 2, profile_.switch_sum_share);
  }

  /// Files from before a profile said what its cards and links are: what their generation stood for.
  void generation(const toml::table& rows) {
    struct Meaning {
      std::string_view name;
      CardArchitecture card;
      double ring_share, switch_sum_share;
    };
    using enum CardArchitecture::Maker;
    static constexpr std::array<Meaning, 5> kMeanings{{{"volta", {Nvidia, 70}, 1.12, 0},
                                                       {"ampere", {Nvidia, 80}, 0.98, 0},
                                                       {"hopper", {Nvidia, 90}, 1, 0.685},
                                                       {"blackwell", {Nvidia, 100}, 0.955, 0.604},
                                                       {"none", {}, 1, 0}}};
    const std::string said = choice(rows, "links", "generation", {"volta", "ampere", "hopper", "blackwell", "none"});
    for (const Meaning& one : kMeanings) {
      if (one.name != said) continue;
      if (!architecture_said_) profile_.architecture = one.card;
      profile_.ring_share = one.ring_share;
      profile_.switch_sum_share = one.switch_sum_share;
    }
    old_links_ = true;
  }

  /// With them their keys of [extra].
  void extra_of_generation() {
    const auto take = [&](const char* key, double otherwise) {
      const auto found = profile_.extra.find(key);
      if (found == profile_.extra.end()) return otherwise;
      const double value = found->second;
      profile_.extra.erase(found);
      return value;
    };
    if (take("nvls", 1) == 0) profile_.switch_sum_share = 0;
    if (take("cube_mesh", 0) > 0) profile_.fabric = Fabric::CubeMesh;
    if (const double cards = take("mesh_cards", 0); cards > 1) {
      profile_.fabric = Fabric::Mesh;
      profile_.cards = profile_.rails = static_cast<int>(std::min(cards, kMostCards));
    }
  }

  /// Of a host that is the device; what is left out is that of a server from before instructions for bfloat16.
  void processor(const toml::table& rows, std::vector<std::string_view>& known) {
    known.insert(known.end(), {"isa", "l2_bytes", "collective_spread"});
    if (rows.contains("isa")) {
      const std::string isa = choice(rows, "host", "isa", {kCpuIsaNames.begin(), kCpuIsaNames.end()});
      profile_.host_isa = parse_cpu_isa(isa).value_or(profile_.host_isa);
    }
    if (rows.contains("l2_bytes"))
      profile_.host_l2_bytes = static_cast<Bytes>(number(rows, "host", "l2_bytes", 4096, kLargest));
    if (const toml::node* spread = rows.get("collective_spread")) collective_spread(*spread);
  }

  void collective_spread(const toml::node& node) {
    constexpr double kMost = 1000;
    std::vector<double>& spread = profile_.collective_spread;
    double sum = 0;
    const toml::array* items = node.as_array();
    for (std::size_t k = 0; items != nullptr && k < items->size(); ++k) {
      const auto item = items->get(k)->is_number() ? items->get(k)->value<double>() : std::nullopt;
      if (!item || !(*item > 0 && *item <= kMost) || (k > 0 && *item < spread.back())) break;
      spread.push_back(*item);
      sum += *item;
    }
    const auto count = static_cast<double>(spread.size());
    if (items == nullptr || spread.empty() || spread.size() != items->size() || std::abs(sum / count - 1) > 0.01) {
      wrong(ErrorCode::OutOfRange, "host.collective_spread", "ascending numbers above 0 that are 1 on average",
            items == nullptr ? "another type" : "others", "foreshard calibrate writes them");
    }
  }

  void strings() {
    if (const toml::table* rows = table("sources", true)) {
      for (const auto& [key, node] : *rows) {
        profile_.sources[std::string(key.str())] = text(*rows, "sources", std::string(key.str()));
      }
    }
    if (const toml::table* rows = table("calibration", false)) {
      for (const auto& [key, node] : *rows) {
        profile_.calibration[std::string(key.str())] = text(*rows, "calibration", std::string(key.str()));
      }
    }
    if (const toml::table* rows = table("extra", profile_.kind == "virtual")) {
      for (const auto& [key, node] : *rows) {
        const std::string word(key.str());
        const bool share = is_share(word);  // something is divided by it
        profile_.extra[word] = number(*rows, "extra", word, share ? 1e-3 : 0, share ? kMostOfPeak : kLargest);
      }
    }
    if (old_links_) return extra_of_generation();
    for (const auto& [key, now] : {std::pair("nvls", "links.switch_sum_share"), std::pair("mesh_cards", "links.fabric"),
                                   std::pair("cube_mesh", "links.fabric")}) {
      if (!profile_.extra.contains(key)) continue;
      wrong(ErrorCode::UnknownKey, path("extra", key), now, key, "it went with links.generation");
    }
  }

  /// Each table of an array of tables, with its name for errors.
  template <class F>
  void each(const char* name, F read) {
    const toml::node* node = root_.get(name);
    if (node == nullptr) return;
    const toml::array* rows = node->as_array();
    if (rows == nullptr) return wrong(ErrorCode::WrongType, name, "an array of tables", "another type", "");
    for (std::size_t i = 0; i < rows->size() && !error_; ++i) {
      const std::string place = std::string(name) + "[" + std::to_string(i) + "]";
      const toml::table* row = (*rows)[i].as_table();
      if (row == nullptr) return wrong(ErrorCode::WrongType, place, "a table", "another type", "");
      read(*row, place);
    }
  }

  void measured_operators() {
    each("operators", [this](const toml::table& row, const std::string& place) {
      check_keys(row, place, {"signature", "forward_ns", "backward_ns"});
      MeasuredOperator op{text(row, place, "signature"), -1, -1};
      if (row.contains("forward_ns"))
        op.forward_ns = static_cast<SimDuration>(number(row, place, "forward_ns", 0, kLargest));
      if (row.contains("backward_ns"))
        op.backward_ns = static_cast<SimDuration>(number(row, place, "backward_ns", 0, kLargest));
      profile_.operators.push_back(std::move(op));
    });
  }

  void measured_collectives() {
    each("collectives", [this](const toml::table& row, const std::string& place) {
      check_keys(row, place, {"kind", "ranks", "bytes", "ns", "beside_ns", "taken_ns", "cpu_ns"});
      MeasuredCollective curve;
      curve.kind = choice(row, place, "kind", {"all_gather", "reduce_scatter", "all_reduce", "broadcast"});
      curve.ranks = static_cast<int>(number(row, place, "ranks", 2, 1e6));
      curve.bytes = whole_numbers(row, place, "bytes");
      curve.ns = whole_numbers(row, place, "ns");
      check_curve(place, curve.bytes, curve.ns.size());
      const std::array<std::pair<const char*, std::vector<SimDuration>*>, 3> loads{
          {{"beside_ns", &curve.beside_ns}, {"taken_ns", &curve.taken_ns}, {"cpu_ns", &curve.cpu_ns}}};
      for (const auto& [key, times] : loads) {
        if (error_ || !row.contains(key)) continue;
        *times = whole_numbers(row, place, key);
        check_curve(place, curve.bytes, times->size());
      }
      if (!error_) profile_.collectives.push_back(std::move(curve));
    });
  }

  void measured_work() {
    each("work", [this](const toml::table& row, const std::string& place) {
      check_keys(row, place, {"kind", "bytes", "ns"});
      const std::string kind = choice(row, place, "kind", {kTensorWork.begin(), kTensorWork.end()});
      const auto found = std::find(kTensorWork.begin(), kTensorWork.end(), kind) - kTensorWork.begin();
      MeasuredWork curve{static_cast<TensorWork>(found), whole_numbers(row, place, "bytes"),
                         whole_numbers(row, place, "ns")};
      check_curve(place, curve.bytes, curve.ns.size());
      if (!error_) profile_.work.push_back(std::move(curve));
    });
  }

  void check_curve(const std::string& place, const std::vector<Bytes>& bytes, std::size_t times) {
    if (error_) return;
    const bool ascending = std::is_sorted(bytes.begin(), bytes.end(), std::less_equal<>());
    if (!bytes.empty() && bytes.size() == times && ascending && bytes.front() > 0) return;
    wrong(ErrorCode::Inconsistent, place, "ascending sizes above 0 and as many times",
          std::to_string(bytes.size()) + " sizes, " + std::to_string(times) + " times", "");
  }

  std::vector<std::int64_t> whole_numbers(const toml::table& row, const std::string& place, const std::string& key) {
    std::vector<std::int64_t> numbers;
    const toml::node* node = row.get(key);
    if (node == nullptr || !node->is_array()) {
      wrong(node == nullptr ? ErrorCode::MissingKey : ErrorCode::WrongType, path(place, key), "a list of numbers",
            node == nullptr ? "nothing" : "another type", "");
      return numbers;
    }
    for (const toml::node& item : *node->as_array()) {
      const auto value = item.value_exact<std::int64_t>();
      if (!value || *value < 0 || static_cast<double>(*value) > kLargest) {
        wrong(ErrorCode::WrongType, path(place, key), "whole numbers from 0 on", "something else", "");
        return numbers;
      }
      numbers.push_back(*value);
    }
    return numbers;
  }

  const toml::table& root_;
  std::string file_;
  HardwareProfile profile_;
  bool architecture_said_ = false, old_links_ = false;
  std::optional<Error> error_;
};

}  // namespace

HardwareProfile::HardwareProfile() = default;
HardwareProfile::HardwareProfile(const HardwareProfile&) = default;
HardwareProfile::HardwareProfile(HardwareProfile&&) noexcept = default;
HardwareProfile& HardwareProfile::operator=(const HardwareProfile&) = default;
HardwareProfile& HardwareProfile::operator=(HardwareProfile&&) noexcept = default;
HardwareProfile::~HardwareProfile() = default;

std::string_view tensor_work_name(TensorWork work) { return kTensorWork[static_cast<std::size_t>(work)]; }

std::string_view fabric_name(Fabric fabric) { return kFabrics[static_cast<std::size_t>(fabric)]; }
std::string_view calibration_level_name(CalibrationLevel level) { return kLevels[static_cast<std::size_t>(level)]; }

Result<HardwareProfile> read_profile(const toml::table& root, const std::string& file) {
  return Reader(root, file).read();
}

}  // namespace foreshard
