#include "cli/exec_program/run_calibration.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/console/amount_text.h"
#include "cli/console/json_text.h"
#include "cli/exec_program/devices/calibration_machine.h"
#include "cli/exec_program/devices/run_device.h"
#include "cli/exec_program/issue_costs.h"
#include "cli/exec_program/rank_session.h"
#include "cli/session/job_source.h"
#include "cli/session/pipeline.h"
#include "core/job/job_file.h"
#include "core/job/located_error.h"
#include "core/output_file.h"
#include "exec/calibrate/calibration.h"
#include "exec/calibrate/calibration_journal.h"
#include "exec/communicators/in_process_communicator.h"
#include "exec/launch/launch.h"
#include "exec/launch/rendezvous.h"
#include "sim/machine/host_processor.h"
#include "sim/machine/profile.h"
#ifdef FORESHARD_WITH_GLOO
#include "exec/communicators/gloo_communicator.h"
#endif

namespace foreshard::cli {
namespace {

struct ConnectedRanks {
  std::vector<std::unique_ptr<exec::Rendezvous>> meetings;  // outlive the communicators
  std::vector<std::shared_ptr<exec::Communicator>> group;
};

Result<std::shared_ptr<exec::Communicator>> over_gloo([[maybe_unused]] exec::Rendezvous& meeting) {
#ifdef FORESHARD_WITH_GLOO
  return exec::make_gloo_communicator(meeting, {"calibration", {}});
#else
  return fail(
      {ErrorCode::Unsupported, "this build found no Gloo", "", "--ranks", "one rank", "more", "install libgloo-dev"});
#endif
}

/// Over TCP on this machine, as ranks that are processes have it; between threads where there is no Gloo; or as the
/// machine's devices do.
Result<ConnectedRanks> connect_ranks(int ranks, const CalibrationMachine& machine) {
  if (ranks < 2) return ConnectedRanks{};
#ifndef FORESHARD_WITH_GLOO
  if (!machine.connect) return ConnectedRanks{{}, exec::in_process_communicators(ranks)};
#endif
  auto host = exec::Rendezvous::host("127.0.0.1", ranks);
  if (!host) return fail(host.error());
  struct Connected {
    std::unique_ptr<exec::Rendezvous> meeting;
    Result<std::shared_ptr<exec::Communicator>> group;
  };
  ConnectedRanks ranks_here;
  std::vector<std::future<Connected>> coming;
  for (int rank = 0; rank < ranks; ++rank) {
    coming.push_back(std::async(std::launch::async, [&, rank, port = (*host)->port()]() -> Connected {
      auto meeting = exec::Rendezvous::meet({"127.0.0.1", port, rank, ranks, true});
      if (!meeting) return {nullptr, fail(meeting.error())};
      auto group = machine.connect ? machine.connect(**meeting) : over_gloo(**meeting);
      return {std::move(*meeting), std::move(group)};
    }));
  }
  Error error;
  for (auto& one : coming) {
    Connected connected = one.get();
    if (connected.meeting != nullptr) ranks_here.meetings.push_back(std::move(connected.meeting));
    if (connected.group)
      ranks_here.group.push_back(*connected.group);
    else
      error = connected.group.error();
  }
  ranks_here.meetings.push_back(std::move(*host));
  if (ranks_here.group.size() != static_cast<std::size_t>(ranks)) return fail(std::move(error));
  return ranks_here;
}

/// LibTorch's threads of a rank, as `run --nproc` would set them; 0 = its own choice.
int threads_of(const CalibrateFlags& flags) {
  exec::RankPlace place;
  place.world_size = place.local_world_size = flags.ranks;
  return exec::intra_op_threads(place, [](const char* name) { return std::getenv(name); });
}

/// Sets a profile's number and says that it was measured; a number that was not stays.
class MeasuredNumbers {
 public:
  MeasuredNumbers(HardwareProfile& profile, std::string here) : profile_(profile), here_(std::move(here)) {}
  template <class Number>
  void set(const char* key, Number& number, double value) {
    if (!(value > 0)) return;
    number = static_cast<Number>(value);
    profile_.sources[key] = here_;
  }
  const std::string& here() const { return here_; }

 private:
  HardwareProfile& profile_;
  std::string here_;
};

void tell_host(MeasuredNumbers& numbers, HardwareProfile& profile, const exec::Calibration& c) {
  profile.id = "calibrated-host";
  profile.kind = "cpu";
  numbers.set("gemm_tflops", profile.gemm_tflops[DType::Float32], c.gemm_tflops);
  numbers.set("hbm_share", profile.hbm_share, 1.0);
  numbers.set("host_link_gb_per_s", profile.host_link_gb_per_s, c.copy_gb_per_s / 2);
  numbers.set("host_copy_gb_per_s", profile.host_copy_gb_per_s, c.copy_gb_per_s / 2);
  profile.op_ns = 0;
  profile.sources["op_ns"] = "dispatch happens on the stream and is in the operators' times";
  numbers.set("sm_count", profile.sm_count, std::thread::hardware_concurrency());
  const HostProcessor processor = host_processor();
  profile.host_isa = processor.isa;
  profile.host_l2_bytes = processor.l2_bytes;
  profile.sources["isa"] = "this processor's instructions, within ONEDNN_MAX_CPU_ISA";
  profile.sources["l2_bytes"] = "as the kernel says";
  numbers.set("wake_ns", profile.extra["wake_ns"], static_cast<double>(c.handover_ns));
  numbers.set("segment_forward_ns", profile.extra["segment_forward_ns"], static_cast<double>(c.segment_forward_ns));
  numbers.set("segment_backward_ns", profile.extra["segment_backward_ns"], static_cast<double>(c.segment_backward_ns));
  for (const exec::WorkCurve& curve : c.work) {
    for (std::size_t w = 0; w < kTensorWorks; ++w) {
      const auto kind = static_cast<TensorWork>(w);
      if (tensor_work_name(kind) == curve.kind) profile.work.push_back({kind, curve.bytes, curve.ns});
    }
  }
}

void tell_cards(MeasuredNumbers& numbers, HardwareProfile& profile, const exec::Calibration& c,
                const IssueCosts& issue) {
  profile.id = "calibrated-" + profile.id;
  numbers.set("gemm_tflops", profile.gemm_tflops[DType::Float32], c.gemm_tflops);
  numbers.set("gemm_tflops", profile.gemm_tflops[DType::BFloat16], c.half_gemm_tflops);
  numbers.set("gemm_tflops", profile.gemm_tflops[DType::Float16], c.half_gemm_tflops);
  numbers.set("hbm_share", profile.hbm_share, 1.0);
  numbers.set("host_link_gb_per_s", profile.host_link_gb_per_s, c.to_device_gb_per_s);
  numbers.set("host_copy_gb_per_s", profile.host_copy_gb_per_s, c.pageable_gb_per_s);
  numbers.set("op_ns", profile.op_ns, issue.forward_op_ns);
  if (issue.backward_op_ns > 0) numbers.set(kBackwardOpNs, profile.extra[kBackwardOpNs], issue.backward_op_ns);
}

HardwareProfile profile_of(const exec::Calibration& c, const IssueCosts& issue, HardwareProfile profile,
                           const CalibrateFlags& flags, const CalibrationMachine& machine) {
  profile.level = CalibrationLevel::Microbenchmark;
  profile.interval = std::max(0.15, c.spread);
  const std::string here = fmt::format("measured here, {} ranks at once, median of {}", flags.ranks, flags.repeats);
  MeasuredNumbers numbers(profile, here);
  machine.device == nullptr ? tell_host(numbers, profile, c) : tell_cards(numbers, profile, c, issue);
  numbers.set("hbm_gb_per_s", profile.hbm_gb_per_s, c.copy_gb_per_s);
  numbers.set("min_kernel_ns", profile.min_kernel_ns, static_cast<double>(c.smallest_copy_ns));
  numbers.set("launch_ns", profile.launch_ns, static_cast<double>(c.issue_ns));
  numbers.set("call_ns", profile.call_ns, static_cast<double>(c.event_ns));
  numbers.set("driver_alloc_ns", profile.driver_alloc_ns, static_cast<double>(c.allocation_ns));
  for (const exec::OperatorTime& op : c.operators) {
    profile.operators.push_back({op.signature, op.forward_ns, op.backward_ns});
  }
  for (const exec::CollectiveCurve& curve : c.collectives) {
    profile.collectives.push_back(
        {curve.kind, curve.ranks, curve.bytes, curve.ns, curve.beside_ns, curve.taken_ns, curve.cpu_ns});
  }
  if (!c.collectives.empty() && machine.device == nullptr) {  // cards keep the links that the profile knows
    const exec::CollectiveCurve& gather = c.collectives.front();
    const double rate =
        static_cast<double>(gather.bytes.back()) / static_cast<double>(std::max<SimDuration>(gather.ns.back(), 1));
    for (const char* key : {"scale_up_gb_per_s", "scale_out_gb_per_s", "channel_gb_per_s"}) profile.sources[key] = here;
    profile.scale_up_gb_per_s = profile.scale_out_gb_per_s = profile.channel_gb_per_s = rate;
  }
  profile.calibration = {
      {"software", "foreshard " FORESHARD_VERSION ", LibTorch " FORESHARD_TORCH_VERSION},
      {"machine", machine.fingerprint.empty() ? processor_text() : machine.fingerprint},
      {"method", here + fmt::format(", {} LibTorch threads a rank", threads_of(flags))},
      {"forward_residual",
       fmt::format("{:+.4f}", static_cast<double>(c.sum_forward_ns) /
                                      static_cast<double>(std::max<SimDuration>(c.whole_forward_ns, 1)) -
                                  1)},
      {"backward_residual",
       fmt::format("{:+.4f}", static_cast<double>(c.sum_backward_ns) /
                                      static_cast<double>(std::max<SimDuration>(c.whole_backward_ns, 1)) -
                                  1)},
      {"spread", fmt::format("{:.4f}", c.spread)}};
  return profile;
}

std::string summary_text(const exec::Calibration& c, const CalibrateFlags& flags) {
  std::string text = fmt::format(
      "{}\n  model      forward {}, backward {} (operators alone sum to {} and {})\n", flags.output,
      duration_text(static_cast<double>(c.whole_forward_ns)), duration_text(static_cast<double>(c.whole_backward_ns)),
      duration_text(static_cast<double>(c.sum_forward_ns)), duration_text(static_cast<double>(c.sum_backward_ns)));
  text += fmt::format("  operators  {} different ones\n  copies     {:.1f} GB/s, the smallest {}\n", c.operators.size(),
                      c.copy_gb_per_s, duration_text(static_cast<double>(c.smallest_copy_ns)));
  text += fmt::format("  host       {} a launch, {} an event\n", duration_text(static_cast<double>(c.issue_ns)),
                      duration_text(static_cast<double>(c.event_ns)));
  for (const exec::CollectiveCurve& curve : c.collectives) {
    text += fmt::format("  {:<15} {} ranks: {} for {}, {} for {}\n", curve.kind, curve.ranks,
                        duration_text(static_cast<double>(curve.ns.front())), bytes_text(curve.bytes.front()),
                        duration_text(static_cast<double>(curve.ns.back())), bytes_text(curve.bytes.back()));
  }
  return text;
}

std::string summary_json(const exec::Calibration& c, const CalibrateFlags& flags) {
  JsonText out;
  out.begin_object().field("schema", "foreshard.calibration/1").field("profile", flags.output);
  out.field("operators", c.operators.size()).field("forward_ns", c.whole_forward_ns);
  out.field("backward_ns", c.whole_backward_ns).field("sum_forward_ns", c.sum_forward_ns);
  out.field("sum_backward_ns", c.sum_backward_ns).field("spread", c.spread);
  out.field("copy_gb_per_s", c.copy_gb_per_s).field("gemm_tflops", c.gemm_tflops);
  out.field("issue_ns", c.issue_ns).field("event_ns", c.event_ns);
  out.field("issue_forward_ns", c.issue_forward_ns).field("issue_backward_ns", c.issue_backward_ns);
  out.key("collectives").begin_array();
  for (const exec::CollectiveCurve& curve : c.collectives) {
    out.begin_object().field("kind", curve.kind).field("ranks", curve.ranks);
    out.field("largest_bytes", curve.bytes.back()).field("ns", curve.ns.back()).end_object();
  }
  out.end_array().end_object();
  return out.take();
}

/// What a journal must have been begun for: the same job, machine and wishes. Clocks and power change; the machine's
/// name does not.
std::string journal_key(const Job& job, const CalibrateFlags& flags, const CalibrationMachine& machine) {
  const std::string& card = machine.fingerprint;
  const std::string where = card.empty() ? processor_text() : card.substr(0, card.find(';'));
  return fmt::format("{}\n{} ranks, {} rounds, link {} us {}, {}", job_to_toml(job), flags.ranks, flags.repeats,
                     flags.link.latency_us, flags.link.bytes_per_s, where);
}

/// The journal goes once the profile is written: until then it is all that there is.
struct Measured {
  exec::Calibration calibration;
  IssueCosts issue;
  exec::CalibrationJournal journal;
};

Result<Measured> measure(const Job& job, const CalibrateFlags& flags, const HardwareProfile& base,
                         const CalibrationMachine& machine, const Console& console) {
  const auto model = load_job_model(job, base);
  if (!model) return fail(model.error());
  const auto link = link_limit(flags.link, flags.backend != "cuda");
  if (!link) return fail(link.error());
  auto ranks = connect_ranks(flags.ranks, machine);
  for (std::size_t k = 0; ranks && k < ranks->group.size(); ++k)
    ranks->group[k] = exec::throttled(std::move(ranks->group[k]), *link);
  if (!ranks) return fail(ranks.error());
  const auto not_kept = [&console](const Error& error) {
    Console loud = console;
    loud.quiet = false;
    loud.note("note: an interruption from here on loses what was measured: " + to_text(error));
  };
  auto journal = exec::CalibrationJournal::open(flags.output + ".partial", journal_key(job, flags, machine), not_kept);
  if (!journal) return fail(journal.error());
  if (journal->size() > 0) {
    console.note(fmt::format("note: {}.partial holds {} of an interrupted calibration: they are not measured again",
                             flags.output, counted(static_cast<std::int64_t>(journal->size()), "list")));
  }
  auto measured = exec::calibrate_job(
      *model, job, {threads_of(flags), flags.repeats, ranks->group, machine.device.get(), &*journal});
  if (!measured) return fail(measured.error());
  const auto issue = issue_costs(*model, *measured);
  if (!issue) return fail(issue.error());
  return Measured{std::move(*measured), *issue, std::move(*journal)};
}

/// What the measured numbers replace.
Result<HardwareProfile> base_profile(const Job& job, bool cuda) {
  if (!cuda) return load_profile("cpu-host");
  auto profile = load_profile(job.cluster.profile);
  if (!profile || profile->kind == "gpu") return profile;
  Error error{ErrorCode::Inconsistent,
              "the job's profile is of no GPU",
              "",
              "cluster.profile",
              "a profile of kind gpu",
              profile->kind,
              ""};
  error.hint = "--set cluster.profile=h100-sxm-80, or the card that is nearest to yours: links are taken from it";
  return fail(std::move(error));
}

}  // namespace

ExitCode run_calibration(const CalibrateFlags& flags, const Console& console) {
  if (auto possible = try_outputs({flags.output}); !possible) return console.error(possible.error());
  const auto loaded = load_job(flags.job, console);
  if (!loaded) return console.error(loaded.error());
  const bool cuda = flags.backend == "cuda";
  const auto base = base_profile(loaded->job, cuda);
  if (!base) return console.error(base.error());
  const auto machine = cuda ? open_cuda_calibration(flags.ranks) : Result<CalibrationMachine>(CalibrationMachine{});
  if (!machine) return console.error(machine.error());
  const auto measured = measure(loaded->job, flags, *base, *machine, console);
  if (!measured) return console.error(located(measured.error(), *loaded));
  const exec::Calibration& calibration = measured->calibration;
  const HardwareProfile profile = profile_of(calibration, measured->issue, *base, flags, *machine);
  if (auto written = write_whole_file(flags.output, profile_text(profile)); !written) {
    Error error = written.error();
    error.hint += fmt::format("{}what was measured is kept in {}.partial: calibrate again once there is room",
                              error.hint.empty() ? "" : "; ", flags.output);
    return console.error(error);
  }
  measured->journal.remove();
  const bool told = console.result(console.json ? summary_json(calibration, flags) : summary_text(calibration, flags));
  return told ? ExitCode::Ok : ExitCode::RunFailed;
}

}  // namespace foreshard::cli
