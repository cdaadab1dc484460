#include "cli/calibrate/measured_run.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace foreshard::cli {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Reads the cells of one row; the first bad one is kept.
class RowReader {
 public:
  RowReader(const CsvTable& table, const CsvTable::Row& row, const std::string& file)
      : table_(table), row_(row), file_(file) {}

  std::string text(std::string_view column) const { return std::string(trimmed(table_.cell(row_, column))); }

  std::int64_t integer(std::string_view column, std::int64_t otherwise) {
    const std::string cell = text(column);
    if (cell.empty()) return otherwise;
    const auto value = number<std::int64_t>(cell);
    if (!value || *value < 0 || *value > (std::int64_t{1} << 50)) wrong(column, "a count", cell);
    return value.value_or(otherwise);
  }

  std::optional<double> real(std::string_view column) {
    const std::string cell = text(column);
    if (cell.empty()) return std::nullopt;
    const auto value = number<double>(cell);
    if (!value || !(*value >= 0 && *value < 1e15)) wrong(column, "a number", cell);
    return value;
  }

  void wrong(std::string_view column, std::string_view expected, const std::string& got) {
    if (error_) return;
    error_ = Error{ErrorCode::WrongType,
                   "the table cannot be read",
                   file_,
                   "line " + std::to_string(row_.line) + ", column " + std::string(column),
                   std::string(expected),
                   got,
                   ""};
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  const CsvTable& table_;
  const CsvTable::Row& row_;
  const std::string& file_;
  std::optional<Error> error_;
};

void read_layers(RowReader& reader, MeasuredRun& run) {
  const std::string cell = reader.text("n_layers");
  if (cell.empty()) return;
  const std::size_t plus = cell.find('+');
  const auto first = number<std::int64_t>(trimmed(std::string_view(cell).substr(0, plus)));
  const auto second = plus == std::string::npos
                          ? std::optional<std::int64_t>(0)
                          : number<std::int64_t>(trimmed(std::string_view(cell).substr(plus + 1)));
  if (!first || !second || *first < 0 || *second < 0) {
    reader.wrong("n_layers", "a count, or encoder+decoder", cell);
    return;
  }
  run.layers = plus == std::string::npos ? *first : *second;
  run.encoder_layers = plus == std::string::npos ? 0 : *first;
}

MeasuredRun read_run(RowReader& reader) {
  MeasuredRun run;
  run.id = reader.text("id");
  if (run.id.empty()) reader.wrong("id", "a name", "nothing");
  run.source = reader.text("source");
  run.model = reader.text("model");
  read_layers(reader, run);
  run.hidden = reader.integer("hidden", 0);
  run.heads = reader.integer("n_heads", 0);
  run.kv_heads = reader.integer("n_kv_heads", run.heads);
  run.ffn = reader.integer("ffn_hidden", 0);
  run.vocab = reader.integer("vocab", 0);
  run.params = reader.integer("n_params", 0);
  run.tied = reader.text("tied_embeddings") == "1";
  run.gpu = reader.text("gpu");
  run.gpus = reader.integer("gpus", 0);
  run.gpus_per_node = reader.integer("gpus_per_node", 0);
  run.interconnect = reader.text("interconnect");
  run.runtime = reader.text("runtime");
  run.sharding = reader.text("sharding");
  run.tp = reader.integer("tp", 1);
  run.pp = reader.integer("pp", 1);
  run.cp = reader.integer("cp", 1);
  run.ep = reader.integer("ep", 1);
  run.wrap = reader.text("wrap");
  run.param_dtype = reader.text("param_dtype");
  run.reduce_dtype = reader.text("reduce_dtype");
  run.master_dtype = reader.text("master_dtype");
  run.optimizer = reader.text("optimizer");
  run.checkpointing = reader.text("activation_checkpointing");
  run.compile = reader.text("compile");
  run.backward_prefetch = reader.text("backward_prefetch");
  run.forward_prefetch = reader.text("forward_prefetch");
  run.limiter = reader.text("limit_all_gathers");
  run.batch = reader.integer("local_batch", 0);
  run.micro_batches = reader.integer("grad_accum", 0);
  run.seq = reader.integer("seq_len", 0);
  run.memory_notes = reader.text("extra_memory_notes");
  run.notes = reader.text("notes");
  run.confidence = reader.text("confidence");
  run.allocated_gib = reader.real("peak_allocated_gib");
  run.active_gib = reader.real("peak_active_gib");
  run.reserved_gib = reader.real("peak_reserved_gib");
  run.tokens_per_s = reader.real("tokens_per_s_per_gpu");
  run.step_s = reader.real("step_time_s");
  run.mfu = reader.real("mfu");
  return run;
}

}  // namespace

std::string MeasuredRun::memory_note(std::string_view key) const {
  std::string_view rest = memory_notes;
  while (!rest.empty()) {
    const std::size_t end = rest.find(';');
    const std::string_view pair = trimmed(rest.substr(0, end));
    if (pair.starts_with(key) && pair.substr(key.size()).starts_with("="))
      return std::string(pair.substr(key.size() + 1));
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return {};
}

std::optional<double> MeasuredRun::memory_number(std::string_view key) const {
  const std::string text = memory_note(key);
  return text.empty() ? std::nullopt : number<double>(text);
}

Result<std::vector<MeasuredRun>> read_measured_runs(const CsvTable& table, const std::string& file) {
  std::vector<MeasuredRun> runs;
  for (const CsvTable::Row& row : table.rows()) {
    RowReader reader(table, row, file);
    runs.push_back(read_run(reader));
    if (reader.error()) return fail(*reader.error());
  }
  return runs;
}

}  // namespace foreshard::cli
