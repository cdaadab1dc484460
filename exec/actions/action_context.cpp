#include "exec/actions/action_context.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <stdexcept>
#include <utility>

namespace foreshard::exec {

ActionContext::ActionContext(ActionSetup of)
    : setup(std::move(of)),
      layout(setup.source),
      stream(setup.backend.create_stream(stream_name(Stream::D), 0)),
      buffers(setup.backend, stream),
      optimizer(setup.source, buffers, layout) {}

ActionBuffer ActionContext::home_of(ParamId param) const {
  const ParamHome place = layout.place(param);
  const bool of_unit = place.unit.valid() && setup.plan.runtime == Runtime::Fsdp1;
  ActionBuffer home{{BufferWhat::Param, place.unit, param}, 0, false};
  if (place.own) home.name = {BufferWhat::Shard, place.unit, param};
  if (!place.own && of_unit) home.name = {BufferWhat::Shard, place.unit, {}};
  home.on_host = !buffers.has(home);
  return home;
}

void ActionContext::work(bool on_host, Work what) {
  Work quiet = [what = std::move(what)] {
    at::NoGradGuard no_grad;
    what();
  };
  if (on_host) {
    if (setup.backend.synchronize()) quiet();
  } else {
    setup.backend.launch({stream, id}, std::move(quiet));
  }
}

BufferName ActionContext::full_of(UnitId unit) const {
  const BufferName precise{BufferWhat::FullPrecision, unit, {}};
  return has(precise) || has(precise, 0, true) ? precise : BufferName{BufferWhat::Full, unit, {}};
}

void ActionContext::collective(const Instruction& i, CollectiveWork what) {
  const auto found = setup.communicators.find(i.communicator);
  setup.backend.collective({stream, id}, found != nullptr ? found : alone_, std::move(what));
}

void ActionContext::settle() const {
  if (const auto done = setup.backend.synchronize(); !done) throw std::runtime_error(done.error().text);
}

void ActionContext::fill_param(const BufferName& buffer, bool on_host) {
  work(on_host, [this, buffer, on_host] { tensor(buffer, 0, on_host).copy_(initial(buffer.param)); });
}

}  // namespace foreshard::exec
