#include "cli/validate/collective_row.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "cli/calibrate/fitted_rows.h"
#include "sim/machine/profile.h"
#include "sim/network/collectives.h"

namespace foreshard::cli {
namespace {

std::optional<double> real(const std::string& cell) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || !(value >= 0 && value < 1e18)) return std::nullopt;
  return value;
}

/// The profile of a card that the hardware's text names.
std::string profile_of(const std::string& hardware) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kCards{{{"GB300", "gb300"},
                                                                                  {"GB200", "gb200"},
                                                                                  {"B300", "b300"},
                                                                                  {"B200", "b200"},
                                                                                  {"H200", "h200-sxm-141"},
                                                                                  {"H100 NVL", "h100-nvl"},
                                                                                  {"H100 PCIe", "h100-pcie-80"},
                                                                                  {"H100", "h100-sxm-80"},
                                                                                  {"A100 PCIe", "a100-pcie-80"},
                                                                                  {"A100", "a100-sxm-80"},
                                                                                  {"V100", "v100-sxm"},
                                                                                  {"L40S", "l40s"},
                                                                                  {"4090", "rtx-4090"},
                                                                                  {"MI300X", "mi300x"},
                                                                                  {"MI325X", "mi325x"},
                                                                                  {"MI355X", "mi355x"}}};
  for (const auto& [word, id] : kCards) {
    if (hardware.find(word) != std::string::npos) return std::string(id);
  }
  return {};
}

/// "EFA 8x400 Gb/s per node": GB/s per GPU, 0 if the text names no network.
double network_of(const std::string& hardware, std::int64_t ranks_per_node) {
  const std::size_t unit = hardware.find(" Gb/s");
  if (unit == std::string::npos) return 0;
  std::size_t begin = unit;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(hardware[begin - 1])) != 0) --begin;
  double gigabits = std::strtod(hardware.c_str() + begin, nullptr);
  if (begin > 0 && hardware[begin - 1] == 'x') {
    std::size_t count = begin - 1;
    while (count > 0 && std::isdigit(static_cast<unsigned char>(hardware[count - 1])) != 0) --count;
    gigabits *= std::max(1.0, std::strtod(hardware.c_str() + count, nullptr));
  }
  const bool per_node = hardware.find("per node", unit) != std::string::npos;
  return gigabits / 8 / static_cast<double>(per_node ? std::max<std::int64_t>(ranks_per_node, 1) : 1);
}

std::optional<CollectiveKind> kind_of(const std::string& name) {
  if (name == "all_gather") return CollectiveKind::AllGather;
  if (name == "reduce_scatter") return CollectiveKind::ReduceScatter;
  if (name == "all_reduce") return CollectiveKind::AllReduce;
  if (name == "broadcast") return CollectiveKind::Broadcast;
  if (name == "all_to_all" || name == "alltoall") return CollectiveKind::AllToAll;
  if (name == "send_receive" || name == "sendrecv") return CollectiveKind::SendReceive;
  return std::nullopt;
}

std::optional<CollectiveAlgorithm> algorithm_of(const std::string& name) {
  if (name == "ring") return CollectiveAlgorithm::Ring;
  if (name == "tree") return CollectiveAlgorithm::Tree;
  if (name == "nvls") return CollectiveAlgorithm::Nvls;
  if (name == "nvls_tree" || name == "nvls-tree") return CollectiveAlgorithm::NvlsTree;
  return std::nullopt;  // NCCL's choice
}

double bus_factor(CollectiveKind kind, std::int64_t ranks) {
  const double n = static_cast<double>(std::max<std::int64_t>(ranks, 1));
  if (kind == CollectiveKind::Broadcast || kind == CollectiveKind::SendReceive) return 1;
  return (kind == CollectiveKind::AllReduce ? 2.0 : 1.0) * (n - 1) / n;
}

/// Only a bandwidth is printed, and half of its last digit is more than a twentieth of it.
bool is_coarse(const CollectiveRow& row) { return !row.time_us && row.bus && *row.bus < 0.1; }

std::string first_part(const std::string& hardware) { return hardware.substr(0, hardware.find(" (")); }

}  // namespace

Result<std::vector<CollectiveRow>> read_collective_rows(const CsvTable& table, const std::string& file) {
  std::vector<CollectiveRow> rows;
  for (const CsvTable::Row& line : table.rows()) {
    const auto text = [&](std::string_view column) { return table.cell(line, column); };
    CollectiveRow row{text("id"),        text("hardware"), text("collective"),
                      text("algorithm"), text("source"),   text("notes")};
    for (const std::string_view column : {"world_size", "nodes", "message_bytes", "time_us", "bus_gb_per_s"}) {
      const std::string& cell = text(column);
      if (cell.empty()) continue;
      const auto value = real(cell);
      if (!value) {
        return fail({ErrorCode::WrongType, "the table cannot be read", file,
                     "line " + std::to_string(line.line) + ", column " + std::string(column), "a number", cell, ""});
      }
      if (column == "world_size") row.world = static_cast<std::int64_t>(std::clamp(*value, 1.0, 1e6));
      if (column == "nodes") row.nodes = static_cast<std::int64_t>(std::clamp(*value, 1.0, 1e6));
      if (column == "message_bytes") row.bytes = static_cast<std::int64_t>(std::min(*value, 1e15));
      if (column == "time_us") row.time_us = value;
      if (column == "bus_gb_per_s") row.bus = value;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

CollectivePrediction predict_collective(const CollectiveRow& row) {
  CollectivePrediction result;
  const std::string id = profile_of(row.hardware);
  if (id.empty()) {
    result.skipped = "no profile for " + row.hardware;
    return result;
  }
  auto profile = load_profile(id);
  if (!profile) {
    result.skipped = to_text(profile.error());
    return result;
  }
  result.level = calibration_level_name(profile->level);
  if (row.collective.starts_with("memcpy")) {
    result.quantity = "gb_per_s";
    result.group = "host copies";
    result.algorithm = "copy engine";
    result.predicted = profile->host_link_gb_per_s;
    result.low = result.predicted / 1.1;
    result.high = result.predicted * 1.1;
    result.measured = row.bus.value_or(0);
    if (!row.bus) result.skipped = "no bandwidth is recorded";
    return result;
  }
  const auto kind = kind_of(row.collective);
  if (!kind) result.skipped = "collective " + row.collective + " is not modelled";
  if (row.bytes == 0) result.skipped = "the message size is not recorded";
  if (!row.time_us && !(row.bus && *row.bus > 0)) result.skipped = "neither time nor bandwidth is recorded";
  if (!result.skipped.empty()) return result;
  const double network = network_of(row.hardware, row.world / row.nodes);
  if (network > 0) profile->scale_out_gb_per_s = network;
  const GroupPlacement group{static_cast<int>(row.world), static_cast<int>(row.nodes)};
  const CollectiveEstimate estimate =
      estimate_collective(*profile, *kind, group, row.bytes, algorithm_of(row.algorithm));
  if (estimate.us <= 0) {
    result.skipped = "algorithm " + row.algorithm + " does not exist there";
    return result;
  }
  result.algorithm = std::string(algorithm_name(estimate.choice.algorithm)) + " " +
                     std::string(protocol_name(estimate.choice.protocol));
  result.predicted = estimate.us;
  result.low = estimate.low_us;
  result.high = estimate.high_us;
  // The bandwidth carries more digits than the time where both are printed, but only from some size on.
  result.measured =
      row.time_us ? *row.time_us : static_cast<double>(row.bytes) * bus_factor(*kind, row.world) / (*row.bus * 1e3);
  result.counted = !is_fitted("collectives", row.id, row.bytes) && !is_coarse(row);
  constexpr std::int64_t kMebibyte = 1 << 20;
  result.group =
      first_part(row.hardware) + " " + row.collective + (row.bytes > kMebibyte ? ", above 1 MiB" : ", 1 MiB and below");
  return result;
}

}  // namespace foreshard::cli
