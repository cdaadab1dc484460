#include "sim/fit/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <utility>

#include "core/mesh/rank_model.h"
#include "sim/search/prepare_job.h"

namespace foreshard {
namespace {

using fit_axes::Batch;
using fit_axes::Variant;
using fit_axes::with_settings;

// A batch that was not tried may compute a little faster a token than those that were.
constexpr double kUnseenBatches = 0.97;
// Of what cannot be planned, reasons that are worth a line.
constexpr std::size_t kMostReasons = 4;

void append(std::vector<std::string>& set, const std::vector<std::string>& more) {
  set.insert(set.end(), more.begin(), more.end());
}

using Degrees = std::array<std::int64_t, 3>;  // of the mesh: tensor, context, expert

Degrees degrees_of(const Job& job) { return {job.mesh.tensor, job.mesh.context, job.mesh.expert}; }

/// Degrees beside tensor parallelism's that cut this job's model; a model that cannot be read has none.
std::vector<MeshAxis> degrees_beside(const Job& job) {
  Job plain = job;
  plain.fsdp.runtime = Runtime::Fsdp2;
  plain.fsdp.strategy = Strategy::FullShard;
  plain.mesh.tensor = plain.mesh.context = plain.mesh.expert = 1;
  const auto profile = load_profile(plain.cluster.profile);
  if (!profile) return {};
  const auto model = load_job_model(plain, *profile);
  if (!model) return {};
  std::vector<MeshAxis> axes = mesh_degrees(plain, *model, *profile).axes;
  std::erase_if(axes, [](const MeshAxis& axis) { return axis.key == "mesh.tensor"; });
  return axes;
}

/// Fastest first; equals in the order of the axes, that is by simplicity.
std::vector<const FitLine*> ranked(const std::vector<FitLine>& lines) {
  std::vector<const FitLine*> out;
  for (const FitLine& line : lines)
    if (line.best() != nullptr) out.push_back(&line);
  std::stable_sort(out.begin(), out.end(), [](const FitLine* a, const FitLine* b) {
    return a->best()->ns_per_token < b->best()->ns_per_token;
  });
  return out;
}

const FitTrial* smallest_misfit(const FitLine& line, std::int64_t above) {
  const FitTrial* out = nullptr;
  for (const FitTrial& trial : line.trials)
    if (!trial.fits && trial.batch.batch > above && (out == nullptr || trial.batch.batch < out->batch.batch))
      out = &trial;
  return out;
}

std::string slower_by(const FitTrial& other, const FitTrial& best) {
  return fmt::format("{:.1f} % slower", 100.0 * (other.ns_per_token / best.ns_per_token - 1.0));
}

/// How the nearest other jobs do: one other recomputation, one other layout, one more sequence.
std::vector<std::string> reasons(const FitLine& chosen, const std::vector<FitLine>& lines) {
  const FitTrial& best = *chosen.best();
  std::vector<std::string> out;
  if (const FitTrial* misfit = smallest_misfit(chosen, best.batch.batch))
    out.push_back(fmt::format("{} sequences at a time do not fit", misfit->batch.batch));
  for (const FitLine& line : lines) {
    if (&line == &chosen || line.refused || line.cut) continue;
    const bool layout = line.layout != chosen.layout, recomputation = line.recomputation != chosen.recomputation;
    if (layout == recomputation) continue;
    const std::string& what = layout ? line.layout : line.recomputation;
    if (const FitTrial* other = line.best()) {
      out.push_back(fmt::format("{}: {} ({} at a time)", what, slower_by(*other, best), other->batch.batch));
    } else {
      out.push_back(fmt::format("{}: does not fit", what));
    }
  }
  return out;
}

/// One method's search.
class Search {
 public:
  Search(const FitRequest& request, std::string method, SharedParts& shared)
      : request_(request), shared_(shared), bench_(shared) {
    out_.method = std::move(method);
  }

  Result<FitMethod> run() {
    auto base = with_settings(request_.job, method_set());
    if (!base) {
      out_.refused = base.error();
      return std::move(out_);
    }
    base_ = std::move(*base);
    if (auto context = find_context(); !context) return fail(context.error());
    const auto batches = fit_axes::batches(base_, request_.tokens_per_step);
    if (!batches) return fail(batches.error());
    std::vector<FitLine> lines = said(fit_lines(base_, request_));
    if (lines.empty()) return nothing_to_say();
    try_lines(lines, *batches);
    if (std::all_of(lines.begin(), lines.end(), [](const FitLine& line) { return line.refused.has_value(); }))
      return fail(*lines.front().refused);
    for (const FitLine& line : lines) out_.cut += line.cut ? 1 : 0;
    out_.lines = lines.size();
    note_refusals(lines);
    return finish(lines);
  }

 private:
  std::vector<std::string> method_set() const {
    auto set = method_settings(out_.method);
    return set ? std::move(*set) : std::vector<std::string>();
  }

  /// Lines that the programs can be told.
  std::vector<FitLine> said(std::vector<FitLine> lines) {
    if (!request_.sayable) return lines;
    const auto unsayable = [&](const FitLine& line) { return !line.refused && !request_.sayable(line.job, line.set); };
    const auto last = std::remove_if(lines.begin(), lines.end(), unsayable);
    out_.unsayable = static_cast<std::size_t>(lines.end() - last);
    lines.erase(last, lines.end());
    return lines;
  }

  Result<FitMethod> nothing_to_say() {
    return fail({.code = ErrorCode::Unsupported,
                 .message = "no job of this search can be told to the programs asked for",
                 .file = {},
                 .place = "--emit",
                 .expected = "programs that share a way to say it",
                 .got = fmt::format("{} ways, none of them in all", out_.unsayable),
                 .hint = "emit for one program at a time"});
  }

  /// Layouts that reshard say what each recomputation computes; what takes longer than the best by that alone is cut.
  void try_lines(std::vector<FitLine>& lines, const std::vector<Batch>& batches) {
    LineSearch search(shared_, request_.threads, [&](std::size_t done, std::size_t total) {
      if (request_.progress) request_.progress(out_.method, done, total);
    });
    std::vector<FitLine> first, rest;
    std::map<Degrees, std::string> probes;  // the layout that is tried first
    for (const FitLine& line : lines) probes.emplace(degrees_of(line.job), line.layout);
    std::vector<bool> is_first;
    for (FitLine& line : lines) {
      is_first.push_back(probes.at(degrees_of(line.job)) == line.layout);
      (is_first.back() ? first : rest).push_back(std::move(line));
    }
    search.run(first, batches, request_.tokens_per_step);
    cut(first, rest);
    search.run(rest, batches, request_.tokens_per_step);
    std::size_t a = 0, b = 0;
    for (std::size_t k = 0; k < lines.size(); ++k) lines[k] = std::move(is_first[k] ? first[a++] : rest[b++]);
    out_.simulated += search.simulated();
  }

  static void cut(const std::vector<FitLine>& tried, std::vector<FitLine>& rest) {
    const std::vector<const FitLine*> order = ranked(tried);
    if (order.empty()) return;
    std::map<std::pair<Degrees, std::string>, double> compute;
    for (const FitLine& line : tried) {
      for (const FitTrial& trial : line.trials) {
        if (!trial.fits) continue;
        const auto [at, added] =
            compute.emplace(std::pair(degrees_of(line.job), line.recomputation), trial.compute_ns_per_token);
        if (!added) at->second = std::min(at->second, trial.compute_ns_per_token);
      }
    }
    for (FitLine& line : rest) {
      const auto at = compute.find(std::pair(degrees_of(line.job), line.recomputation));
      line.cut = at != compute.end() && at->second * kUnseenBatches > order.front()->best()->ns_per_token;
    }
  }

  /// A program that was captured or exported at one size.
  static bool has_one_length(const Error& error) { return error.place == "model.seq"; }

  /// The layout and recomputation that need least memory, among those that can be said.
  Result<void> find_context() {
    for (const FitLine& line : said(fit_lines(base_, request_))) {
      if (line.refused || line.job.checkpointing.policy != CheckpointPolicy::Block) continue;
      if (out_.longest && !is_cut(line.job.mesh)) continue;  // the first without a mesh needs least of those
      auto found = longest_context(line.job, bench_);
      if (!found) {
        if (has_one_length(found.error()) && !request_.context_first) {
          out_.not_tried.push_back("other lengths: " + found.error().message);
          return {};
        }
        if (!out_.longest && !is_cut(line.job.mesh)) return fail(found.error());
        continue;
      }
      out_.simulated += found->simulated;
      if (out_.longest && out_.longest->tokens >= found->tokens) continue;
      out_.longest = *found;
      out_.longest_set = line.set;
      out_.smallest = line.job;
      out_.smallest_set = line.set;
    }
    out_.unsayable = 0;
    if (!request_.context_first || !out_.longest || out_.longest->tokens == 0) return {};
    base_.model.seq = out_.longest->tokens;
    base_.model.seq_given = true;
    context_set_ = {fmt::format("model.seq={}", base_.model.seq)};
    return {};
  }

  void note_refusals(const std::vector<FitLine>& lines) {
    std::vector<std::string> seen;
    for (const FitLine& line : lines) {
      if (!line.refused || std::find(seen.begin(), seen.end(), line.refused->message) != seen.end()) continue;
      seen.push_back(line.refused->message);
      if (seen.size() > kMostReasons) break;
      const bool layout = line.refused->place.find("checkpointing") == std::string::npos;
      out_.not_tried.push_back(fmt::format("{}: {}", layout ? line.layout : line.recomputation, line.refused->message));
    }
  }

  Result<FitMethod> finish(const std::vector<FitLine>& lines) {
    const std::vector<const FitLine*> order = ranked(lines);
    for (const FitLine* line : order) {
      if (out_.choices.size() == request_.choices) break;
      FitChoice choice;
      choice.set = method_set();
      append(choice.set, context_set_);
      append(choice.set, line->set);
      append(choice.set, batch_settings(line->best()->batch));
      auto job = with_settings(request_.job, choice.set);
      if (!job) return fail(job.error());
      auto prediction = bench_.predict(*job);
      if (!prediction) return fail(prediction.error());
      ++out_.simulated;
      const auto parts = bench_.prepare(*job);
      const std::int64_t tokens = parts ? parts->model->tokens_per_batch : 0;
      choice.sequence = tokens > 0 ? tokens / job->model.batch : job->model.seq;
      choice.job = std::move(*job);
      choice.layout = line->layout;
      choice.recomputation = line->recomputation;
      choice.prediction = std::move(*prediction);
      choice.why = reasons(*line, lines);
      out_.choices.push_back(std::move(choice));
    }
    if (out_.choices.empty()) {
      for (const FitLine& line : lines)
        if (!line.refused && line.job.checkpointing.policy == CheckpointPolicy::Block) {
          out_.smallest = line.job;
          out_.smallest_set = line.set;
          break;
        }
    }
    return std::move(out_);
  }

  const FitRequest& request_;
  SharedParts& shared_;
  Workbench bench_;
  FitMethod out_;
  Job base_;
  std::vector<std::string> context_set_;
};

}  // namespace

Result<std::vector<std::string>> method_settings(const std::string& method) {
  if (method == "full") return std::vector<std::string>{};
  // The frozen base is stored as it is computed in; its adapters are what is trained.
  if (method == "lora") return std::vector<std::string>{"adapters.kind=lora", "model.dtype=bfloat16"};
  return fail({.code = ErrorCode::Usage,
               .message = "there is no method of this name",
               .file = {},
               .place = "--method",
               .expected = "full, lora, or both with a comma between",
               .got = method,
               .hint = {}});
}

std::vector<FitLine> fit_lines(const Job& job, const FitRequest& request) {
  std::vector<FitLine> out;
  const auto add = [&](const Variant& layout, const Variant& recomputation, const std::vector<std::string>& more) {
    FitLine line;
    line.layout = layout.text;
    line.recomputation = recomputation.text;
    line.set = layout.set;
    append(line.set, recomputation.set);
    append(line.set, more);
    auto made = with_settings(job, line.set);
    if (made && request.one_precision) {
      append(line.set, fit_axes::one_precision(*made).set);
      made = with_settings(job, line.set);
    }
    if (made) {
      line.job = std::move(*made);
    } else {
      line.job = job;
      line.refused = made.error();
    }
    out.push_back(std::move(line));
  };
  for (const Variant& layout : fit_axes::layouts(job, degrees_beside(job)))
    for (const Variant& recomputation : fit_axes::recomputations()) add(layout, recomputation, {});
  return out;
}

Result<FitAnswer> fit(const FitRequest& request) {
  const auto begun = std::chrono::steady_clock::now();
  FitAnswer answer;
  SharedParts shared;
  for (const std::string& method : request.methods) {
    if (auto known = method_settings(method); !known) return fail(known.error());
    auto found = Search(request, method, shared).run();
    if (!found) return fail(found.error());
    answer.methods.push_back(std::move(*found));
  }
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return answer;
}

}  // namespace foreshard
