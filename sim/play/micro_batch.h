// One turn of the training loop's inner part: the batch is made before forward, and dropped with the loss and the
// outputs after backward. FSDP1's lazy initialisation happens in the first. Part of one PlanPlayer.
#pragma once

#include <vector>

#include "sim/play/initialisation.h"
#include "sim/play/instructions/play_context.h"
#include "sim/play/segments/segment_player.h"

namespace foreshard {

class MicroBatch {
 public:
  MicroBatch(PlayContext& context, SegmentPlayer& segments, std::vector<ResidentBuffer> buffers);

  /// False: out of memory.
  bool begin();
  /// The engine has returned; then, once the memory of backward has been told, the loop drops what it holds.
  void leave_engine() { segments_.free_held(true); }
  void drop();
  /// Forward and loss are over: of the batch goes what nobody has a name for.
  void let_inputs_go();
  /// A forward has returned: its names are for the new outputs.
  void forward_returned();
  /// So is the loss's, whose storage may be that of all its terms (mse_loss).
  void loss_made();
  bool keeps() const { return !kept_.empty(); }

 private:
  bool make_inputs();
  bool initialise_lazily();
  bool make_caches();

  PlayContext& context_;
  SegmentPlayer& segments_;
  std::vector<ResidentBuffer> model_buffers_;  // until they are cast
  std::vector<BlockHandle> inputs_, let_go_;
  std::vector<BlockHandle> kept_;  // of the pass before (train.keeps_outputs)
  bool lazy_initialised_ = false, caches_made_ = false;
};

}  // namespace foreshard
