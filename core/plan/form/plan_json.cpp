#include "core/plan/form/plan_json.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/plan/form/plan_reader.h"
#include "core/plan/form/plan_writer.h"
#include "core/text/digest.h"
#include "core/text/format_append.h"

namespace foreshard {
namespace {

/// JSON into one buffer; commas are its business, line breaks are asked for.
class JsonSink {
 public:
  void key(std::string_view name) {
    comma();
    quote(name);
    append(": ");
    after_key_ = true;
  }
  void text(std::string_view value) {
    comma();
    quote(value);
  }
  void integer(std::int64_t value) {
    comma();
    format_append(buffer_, "{}", value);
  }
  void number(double value) {
    comma();
    if (std::isfinite(value)) {
      format_append(buffer_, "{}", value);
    } else {
      append("null");
    }
  }
  void boolean(bool value) {
    comma();
    append(value ? "true" : "false");
  }
  void null() {
    comma();
    append("null");
  }
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_list() { open('['); }
  void end_list() { close(']'); }
  /// The next member or item starts a line.
  void new_line() { break_ = true; }
  /// Members that are JSON already.
  void raw(std::string_view members) {
    comma();
    append(members);
  }
  std::string take() { return fmt::to_string(buffer_) + "\n"; }

 private:
  void append(std::string_view text) { buffer_.append(text.data(), text.data() + text.size()); }
  void comma() {
    if (after_key_) {
      after_key_ = false;
      return;
    }
    if (!first_) append(break_ ? "," : ", ");
    if (break_) append("\n");
    break_ = false;
    first_ = false;
  }
  void open(char bracket) {
    comma();
    buffer_.push_back(bracket);
    first_ = true;
  }
  void close(char bracket) {
    break_ = false;
    first_ = false;
    buffer_.push_back(bracket);
  }
  void quote(std::string_view text) {
    buffer_.push_back('"');
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        buffer_.push_back('\\');
        buffer_.push_back(c);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        format_append(buffer_, "\\u{:04x}", static_cast<unsigned char>(c));
      } else {
        buffer_.push_back(c);
      }
    }
    buffer_.push_back('"');
  }

  fmt::memory_buffer buffer_;
  bool first_ = true;
  bool after_key_ = false;
  bool break_ = false;
};

using namespace detail;  // NOLINT(google-build-using-namespace): the shared members

void write_counts(JsonSink& sink, const PlanCounts& counts) {
  sink.key("counts");
  sink.begin_object();
  put_integer(sink, "all_gather", counts.all_gather);
  put_integer(sink, "reduce_scatter", counts.reduce_scatter);
  put_integer(sink, "all_reduce", counts.all_reduce);
  put_integer(sink, "broadcast", counts.broadcast);
  put_integer(sink, "h2d", counts.h2d);
  put_integer(sink, "d2h", counts.d2h);
  put_integer(sink, "limiter_waits", counts.limiter_waits);
  sink.end_object();
}

void write_head(JsonSink& sink, const Plan& plan) {
  sink.new_line();
  put(sink, "schema", "foreshard.plan/1");
  put(sink, "runtime", runtime_name(plan.runtime));
  put_integer(sink, "world_size", plan.world_size);
  put_integer(sink, "rank", plan.rank);
  put_flag(sink, "steady", plan.steady);
  sink.new_line();
  sink.key("groups");
  sink.begin_object();
  put_integers(sink, "shard", plan.groups.shard);
  put_integers(sink, "replicate", plan.groups.replicate);
  sink.end_object();
  sink.new_line();
  sink.key("divide");
  sink.begin_object();
  put_number(sink, "pre", plan.pre_divide);
  put_number(sink, "post", plan.post_divide);
  sink.end_object();
  sink.new_line();
  sink.key("streams");
  sink.begin_list();
  for (const StreamInfo& stream : plan.streams) {
    sink.begin_object();
    put(sink, "name", stream_name(stream.stream));
    put_integer(sink, "priority", stream.priority);
    sink.end_object();
  }
  sink.end_list();
}

/// Of the steady iteration: what people ask for first.
void write_order_and_counts(JsonSink& sink, const Plan& plan) {
  const PlanIteration none;
  const PlanIteration& last = plan.iterations.empty() ? none : plan.iterations.back();
  sink.new_line();
  sink.key("order");
  sink.begin_object();
  put_units(sink, "pre_forward", plan, last.pre_order);
  put_units(sink, "post_forward", plan, last.post_order);
  sink.end_object();
  sink.new_line();
  write_counts(sink, count_instructions(last));
}

template <class Write>
void write_lines(JsonSink& sink, std::string_view key, std::size_t count, Write write) {
  sink.new_line();
  sink.key(key);
  sink.begin_list();
  for (std::size_t i = 0; i < count; ++i) {
    sink.new_line();
    sink.begin_object();
    write(i);
    sink.end_object();
  }
  sink.end_list();
}

void write_instruction(JsonSink& sink, const Plan& plan, const Instruction& i, std::int64_t id) {
  put_integer(sink, "id", id);
  put(sink, "kind", instruction_kind_name(i.kind));
  put(sink, "stream", stream_name(i.stream));
  put_unit(sink, "unit", plan, i.unit);
  put(sink, "phase", phase_name(i.phase));
  put(sink, "origin", i.origin == Origin::Fsdp ? "fsdp" : "autograd");
  write_instruction_details(sink, plan, i);
}

void write_iterations(JsonSink& sink, const Plan& plan) {
  std::int64_t id = 0;
  write_lines(sink, "iterations", plan.iterations.size(), [&](std::size_t k) {
    const PlanIteration& iteration = plan.iterations[k];
    put_integer(sink, "index", iteration.index);
    put_integer(sink, "micro_batch", iteration.micro_batches);
    put_texts(sink, "actions", iteration.actions);
    write_counts(sink, count_instructions(iteration));
    write_lines(sink, "instructions", iteration.instructions.size(),
                [&](std::size_t i) { write_instruction(sink, plan, iteration.instructions[i], id++); });
    sink.new_line();
    sink.key("end");
    sink.begin_object();
    write_iteration_end(sink, plan, iteration);
    sink.end_object();
  });
}

Error bad_json(const std::string& file, ErrorCode code, std::string message, std::string place, std::string got) {
  return {.code = code,
          .message = std::move(message),
          .file = file,
          .place = std::move(place),
          .expected = "a plan as written by `foreshard plan --json`",
          .got = std::move(got),
          .hint = "docs/formats/plan.md has the format"};
}

}  // namespace

std::string plan_to_json(const Plan& plan, const PlanJsonOptions& options) {
  JsonSink sink;
  sink.begin_object();
  write_head(sink, plan);
  write_lines(sink, "units", plan.units.size(), [&](std::size_t i) {
    write_unit(sink, plan, i);
    if (i < options.unit_members.size() && !options.unit_members[i].empty()) sink.raw(options.unit_members[i]);
  });
  write_lines(sink, "communicators", plan.communicators.size(),
              [&](std::size_t i) { write_communicator(sink, plan, i); });
  write_order_and_counts(sink, plan);
  write_lines(sink, "segments", plan.segments.size(), [&](std::size_t i) { write_segment(sink, plan, i); });
  sink.new_line();
  put_texts(sink, "params", plan.param_names);
  sink.new_line();
  put_texts(sink, "names", plan.names);
  write_iterations(sink, plan);
  write_lines(sink, "checks", plan.checks.size(), [&](std::size_t i) { write_check(sink, plan.checks[i]); });
  write_lines(sink, "traps", plan.traps.size(), [&](std::size_t i) { write_trap(sink, plan.traps[i]); });
  sink.new_line();
  put_texts(sink, "warnings", options.warnings ? plan.warnings : std::vector<std::string>());
  sink.new_line();
  if (plan.failure) {
    sink.key("failure");
    sink.begin_object();
    write_failure(sink, *plan.failure);
    sink.end_object();
  } else {
    put_null(sink, "failure");
  }
  sink.end_object();
  return sink.take();
}

std::string plan_digest(const Plan& plan) {
  return digest_of(plan_to_json(plan, {.unit_members = {}, .warnings = false}));
}

Result<Plan> plan_from_json(std::string_view text, const std::string& file) {
  if (text.size() > kMaxPlanBytes) {
    return fail(
        bad_json(file, ErrorCode::TooLarge, "this is too large for a plan", {}, fmt::format("{} bytes", text.size())));
  }
  bool deep = false;
  // Values below the limit are dropped, so that nothing later recurses over them.
  const nlohmann::json::parser_callback_t limit = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    deep = deep || depth > kMaxPlanDepth;
    return !deep;
  };
  try {
    const nlohmann::json document = nlohmann::json::parse(text, limit);
    if (deep) return fail(bad_json(file, ErrorCode::TooDeep, "the plan is nested too deeply", {}, "deeper nesting"));
    if (!document.is_object()) {
      return fail(bad_json(file, ErrorCode::WrongType, "a plan is a JSON object", {}, document.type_name()));
    }
    return read_plan(document, file);
  } catch (const nlohmann::json::parse_error& error) {
    return fail(bad_json(file, ErrorCode::BadSyntax, "this is not valid JSON", fmt::format("offset {}", error.byte),
                         error.what()));
  } catch (const nlohmann::json::out_of_range& error) {  // a number that no double holds
    return fail(bad_json(file, ErrorCode::OutOfRange, "a number is too large", {}, error.what()));
  }
}

}  // namespace foreshard
