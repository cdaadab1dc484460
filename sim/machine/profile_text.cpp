// A profile as the file that it is read from.
#include <toml++/toml.h>

#include <sstream>
#include <string_view>
#include <utility>

#include "sim/machine/profile.h"
#include "sim/machine/profile_keys.h"

namespace foreshard {

namespace {

/// What calibration measured: arrays of tables.
void insert_measurements(const HardwareProfile& p, toml::table& root) {
  toml::array operators, collectives, work;
  const auto list = [](const std::vector<std::int64_t>& numbers) {
    toml::array items;
    for (const std::int64_t number : numbers) items.push_back(number);
    return items;
  };
  for (const MeasuredOperator& op : p.operators) {
    toml::table row{{"signature", op.signature}};
    if (op.forward_ns >= 0) row.insert("forward_ns", op.forward_ns);
    if (op.backward_ns >= 0) row.insert("backward_ns", op.backward_ns);
    operators.push_back(std::move(row));
  }
  for (const MeasuredCollective& curve : p.collectives) {
    toml::table row{{"kind", curve.kind}, {"ranks", curve.ranks}, {"bytes", list(curve.bytes)}, {"ns", list(curve.ns)}};
    if (!curve.beside_ns.empty()) row.insert("beside_ns", list(curve.beside_ns));
    if (!curve.taken_ns.empty()) row.insert("taken_ns", list(curve.taken_ns));
    if (!curve.cpu_ns.empty()) row.insert("cpu_ns", list(curve.cpu_ns));
    collectives.push_back(std::move(row));
  }
  for (const MeasuredWork& curve : p.work) {
    work.push_back(
        toml::table{{"kind", tensor_work_name(curve.kind)}, {"bytes", list(curve.bytes)}, {"ns", list(curve.ns)}});
  }
  if (!operators.empty()) root.insert("operators", std::move(operators));
  if (!collectives.empty()) root.insert("collectives", std::move(collectives));
  if (!work.empty()) root.insert("work", std::move(work));
}

}  // namespace

std::string profile_text(const HardwareProfile& p) {
  toml::table root{{"schema", "foreshard.profile/1"},
                   {"id", p.id},
                   {"kind", p.kind},
                   {"level", calibration_level_name(p.level)},
                   {"interval", p.interval}};
  const auto rates = [&](const char* name, const std::map<DType, double>& from) {
    if (from.empty()) return;
    toml::table rows;
    for (const auto& [dtype, rate] : from) rows.insert(dtype_name(dtype), rate);
    root.insert(name, std::move(rows));
  };
  rates("peak_tflops", p.peak_tflops);
  rates("gemm_tflops", p.gemm_tflops);
  rates("vector_tflops", p.vector_tflops);
  for (const char* name : {"device", "host", "links"}) {
    toml::table rows;
    for (const NumberKey& k : kNumbers) {
      if (std::string_view(k.table) != name) continue;
      if (k.number != nullptr) rows.insert(k.key, p.*k.number);
      if (k.integer != nullptr) rows.insert(k.key, static_cast<std::int64_t>(p.*k.integer));
      if (k.small != nullptr) rows.insert(k.key, p.*k.small);
    }
    if (std::string_view(name) == "device") rows.insert("architecture", architecture_name(p.architecture));
    if (std::string_view(name) == "host") rows.insert("cpu", p.host_cpu);
    if (std::string_view(name) == "host" && p.kind == "cpu") {
      rows.insert("isa", cpu_isa_name(p.host_isa));
      rows.insert("l2_bytes", p.host_l2_bytes);
      toml::array spread;
      for (const double part : p.collective_spread) spread.push_back(part);
      if (!spread.empty()) rows.insert("collective_spread", std::move(spread));
    }
    if (std::string_view(name) == "links") {
      rows.insert("channels", p.channels);
      rows.insert("fabric", fabric_name(p.fabric));
      rows.insert("cards", p.cards);
      if (p.pair_links != 1) rows.insert("pair_links", p.pair_links);
      rows.insert("rails", p.rails);
      rows.insert("ring_share", p.ring_share);
      rows.insert("switch_sum_share", p.switch_sum_share);
    }
    root.insert(name, std::move(rows));
  }
  const auto texts = [&](const char* name, const std::map<std::string, std::string>& from, bool always) {
    toml::table rows;
    for (const auto& [key, value] : from) rows.insert(key, value);
    if (always || !from.empty()) root.insert(name, std::move(rows));
  };
  texts("sources", p.sources, true);
  texts("calibration", p.calibration, false);
  toml::table extra;
  for (const auto& [key, value] : p.extra) extra.insert(key, value);
  if (!p.extra.empty()) root.insert("extra", std::move(extra));
  insert_measurements(p, root);
  std::ostringstream out;
  out << root << '\n';
  return out.str();
}

}  // namespace foreshard
