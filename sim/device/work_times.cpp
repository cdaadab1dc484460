#include "sim/device/work_times.h"

#include <algorithm>

namespace foreshard {
namespace {

/// A unit's tensors one by one, each with its share of the bytes.
SimDuration by_parameter(const PlanUnit& unit, const Model& model, TensorWork work, Bytes bytes,
                         const WorkTimes& times) {
  const auto share = [&](Numel numel, Numel of) {
    return static_cast<Bytes>(static_cast<double>(bytes) * static_cast<double>(numel) / static_cast<double>(of));
  };
  SimDuration time = 0;
  Numel all = 0;
  if (!unit.sharded.empty()) {
    for (const ShardedParam& param : unit.sharded) all += numel_of(param.padded_local_shape);
    for (const ShardedParam& param : unit.sharded) {
      time += times.of(work, share(numel_of(param.padded_local_shape), std::max<Numel>(all, 1)));
    }
    return time;
  }
  for (const ParamId param : unit.params) all += numel_of(model.params[param.index()].shape);
  for (const ParamId param : unit.params) {
    time += times.of(work, share(numel_of(model.params[param.index()].shape), std::max<Numel>(all, 1)));
  }
  return time;
}

}  // namespace

WorkTimes::WorkTimes(const HardwareProfile& profile) {
  for (const MeasuredWork& curve : profile.work) {
    curves_[static_cast<std::size_t>(curve.kind)] = curve;
  }
  measured_ = std::all_of(curves_.begin(), curves_.end(), [](const MeasuredWork& curve) { return !curve.ns.empty(); });
}

SimDuration WorkTimes::of(TensorWork work, Bytes tensor) const {
  const MeasuredWork& curve = curves_[static_cast<std::size_t>(work)];
  if (tensor <= curve.bytes.front() || curve.bytes.size() < 2) return curve.ns.front();
  const auto above = std::upper_bound(curve.bytes.begin(), curve.bytes.end() - 1, tensor) - curve.bytes.begin();
  const auto high = static_cast<std::size_t>(above), low = high - 1;
  const double step =
      static_cast<double>(tensor - curve.bytes[low]) / static_cast<double>(curve.bytes[high] - curve.bytes[low]);
  return curve.ns[low] + static_cast<SimDuration>(step * static_cast<double>(curve.ns[high] - curve.ns[low]));
}

SimDuration instruction_work(const Plan& plan, const Model& model, const Instruction& i, Bytes bytes,
                             const WorkTimes& times) {
  const bool fsdp1 = plan.runtime == Runtime::Fsdp1;
  const BufferWhat what = i.buffer.what;
  const UnitId id = i.buffer.unit.valid() ? i.buffer.unit : i.unit;
  const PlanUnit* unit = id.valid() && id.index() < plan.units.size() ? &plan.units[id.index()] : nullptr;
  const bool whole = i.buffer.param.valid() || unit == nullptr;
  const auto each = [&](TensorWork work) {
    return whole ? times.of(work, bytes) : by_parameter(*unit, model, work, bytes, times);
  };
  switch (i.kind) {
    case InstructionKind::Add: return times.of(TensorWork::Add, bytes);
    case InstructionKind::Accumulate:  // fsdp2: the sum is made where backward returns the gradient
      return times.of(TensorWork::Add, bytes);
    case InstructionKind::Divide: return times.of(TensorWork::Scale, bytes);
    case InstructionKind::Fill:
      // The host's concatenation writes the zeros of what has no gradient (exec/flat_unit).
      return fsdp1 && what != BufferWhat::SavedGrad ? 0 : times.of(TensorWork::Fill, bytes);
    case InstructionKind::Pad: return times.of(TensorWork::Copy, bytes);
    case InstructionKind::Concat: return fsdp1 ? each(TensorWork::Copy) : 0;  // fsdp2: one copy with the copy in
    case InstructionKind::CopyIn: return each(what == BufferWhat::RsInput ? TensorWork::Join : TensorWork::Copy);
    case InstructionKind::CopyOut:
      if (fsdp1) return 0;  // NO_SHARD writes parameters back onto themselves
      return what == BufferWhat::AgBuffer ? each(TensorWork::Copy) : times.of(TensorWork::Copy, bytes);
    case InstructionKind::Cast:
      return what == BufferWhat::CastBuffer ? each(TensorWork::Copy) : times.of(TensorWork::Copy, bytes);
    default: return times.of(TensorWork::Copy, bytes);
  }
}

}  // namespace foreshard
