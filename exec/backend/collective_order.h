// The order of collectives on one rank (R4): those of a communicator run one after the other, as they were issued,
// whatever streams they are on. Every rank issues them in the same order, so none waits for one that its peers hold
// back.
//
//   stream U  [ gather 1 ]----------.             [ gather 3 ]
//   stream G               [ reduce 2, waits ]---'
#pragma once

#include <map>
#include <memory>

#include "exec/backend/backend.h"
#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// Owned by a backend, called by its issuer.
class CollectiveOrder {
 public:
  /// `issue` puts the collective on its stream; before it the stream waits for the communicator's last one, if that was
  /// on another stream.
  template <class F>
  void in_turn(Backend& backend, const Issue& where, const std::shared_ptr<Communicator>& communicator, F&& issue) {
    if (communicator->orders_streams()) return issue();
    Last& last = last_[communicator.get()];
    if (last.end.valid() && last.stream != where.stream) backend.wait_event(where, last.end);
    issue();
    last = {communicator, where.stream, backend.record_event(where)};
  }

 private:
  struct Last {
    std::shared_ptr<Communicator> communicator;  // kept: an address must not come back as another's
    StreamIndex stream;
    Event end;
  };
  std::map<const Communicator*, Last> last_;
};

}  // namespace foreshard::exec
