#include "tests/virtual_gpu/planned_calls.h"

#include <algorithm>

namespace foreshard::exec {
namespace {

std::string nccl_call(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::AllGather: return "ncclAllGather";
    case InstructionKind::ReduceScatter: return "ncclReduceScatter";
    case InstructionKind::AllReduce: return "ncclAllReduce";
    default: return {};
  }
}

std::string at_instruction(const PlannedCall& want) { return "instruction " + std::to_string(want.instruction) + ": "; }

}  // namespace

std::vector<PlannedCall> planned_calls(const Plan& plan, const PlanIteration& iteration,
                                       std::map<EventId, Stream>& recorded_on) {
  std::vector<PlannedCall> calls;
  for (std::size_t i = 0; i < iteration.instructions.size(); ++i) {
    const Instruction& in = iteration.instructions[i];
    switch (in.kind) {
      case InstructionKind::RecordEvent:
      case InstructionKind::LimiterPush: recorded_on[in.event] = in.stream; break;
      case InstructionKind::WaitStream:
        if (in.stream == Stream::Host) {
          calls.push_back({"cudaEventSynchronize", in.other, {}, 0, i});
        } else if (in.stream != in.other) {
          calls.push_back({"cudaStreamWaitEvent", in.stream, in.other, 0, i});
        }
        break;
      case InstructionKind::WaitEvent:
        calls.push_back({"cudaStreamWaitEvent", in.stream, recorded_on.at(in.event), 0, i});
        break;
      case InstructionKind::HostWait:
        if (in.event.valid()) calls.push_back({"cudaEventSynchronize", recorded_on.at(in.event), {}, 0, i});
        break;
      case InstructionKind::D2h:  // a number that the host reads, of no unit
        if (in.blocking && in.buffer == BufferName{}) calls.push_back({"cudaEventSynchronize", in.stream, {}, 0, i});
        break;
      default:
        if (const std::string api = nccl_call(in.kind); !api.empty() && plan.group_size(in) > 1) {
          calls.push_back({api, in.stream, {}, in.numel * itemsize(in.dtype), i, in.communicator});
        }
    }
  }
  return calls;
}

std::vector<DeviceCall> calls_of_interest(std::vector<DeviceCall> calls) {
  static const std::set<std::string> kApis = {"ncclAllGather", "ncclReduceScatter",   "ncclAllReduce",
                                              "ncclBroadcast", "cudaStreamWaitEvent", "cudaEventSynchronize"};
  std::erase_if(calls, [](const DeviceCall& call) { return kApis.count(call.api) == 0; });
  return calls;
}

std::string difference(const std::vector<PlannedCall>& planned, const std::vector<DeviceCall>& calls,
                       DeviceNames& names) {
  for (std::size_t i = 0; i < std::min(planned.size(), calls.size()); ++i) {
    const PlannedCall& want = planned[i];
    const DeviceCall& call = calls[i];
    if (call.api != want.api) return at_instruction(want) + want.api + " is planned, " + call.api + " was called";
    if (call.bytes != want.bytes) {
      return at_instruction(want) + std::to_string(want.bytes) + " bytes are planned, not " +
             std::to_string(call.bytes);
    }
    if (call.stream >= 0 && !names.same(want.stream, call.stream)) {
      return at_instruction(want) + call.api + " on the device's stream " + std::to_string(call.stream);
    }
    if (want.communicator.valid() && !names.same(want.communicator, call.communicator)) {
      return at_instruction(want) + call.api + " on the device's communicator " + std::to_string(call.communicator);
    }
    if (want.waits_for && !names.same(*want.waits_for, call.event_stream)) {
      return at_instruction(want) + "waits for the device's stream " + std::to_string(call.event_stream);
    }
  }
  if (planned.size() == calls.size()) return {};
  return std::to_string(planned.size()) + " calls are planned, " + std::to_string(calls.size()) + " were made";
}

}  // namespace foreshard::exec
