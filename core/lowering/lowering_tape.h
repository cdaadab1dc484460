// The tape: what eager PyTorch's reference counts do to storages, written down kernel by kernel.
//
// A Ref is a counted handle of a tensor; a tensor holds its storage. The last Ref of a storage that goes away writes
// the free into the pass that is running, a new tensor writes the allocation. Internal to lowering; single-threaded,
// bytes throughout.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "core/lowering/lowering.h"
#include "core/operators/layout.h"

namespace foreshard::lowering {

using foreshard::broadcast_sizes;
using foreshard::broadcast_strides;
using foreshard::contiguous_layout;
using foreshard::contiguous_strides;
using foreshard::Dims;
using foreshard::dims_of;
using foreshard::elementwise_layout;
using foreshard::kMaxDims;
using foreshard::Layout;
using foreshard::view_strides;
using foreshard::wrap_dim;

class Tape;

/// Counted handle of a tensor. Empty stands for an undefined tensor.
class Ref {
 public:
  Ref() = default;
  Ref(Tape* tape, std::int32_t id) : tape_(tape), id_(id) {}  // adopts one count
  Ref(const Ref& other);
  Ref(Ref&& other) noexcept : tape_(other.tape_), id_(other.id_) { other.id_ = -1; }
  Ref& operator=(Ref other) noexcept {
    std::swap(tape_, other.tape_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Ref() { reset(); }
  void reset();
  explicit operator bool() const { return id_ >= 0; }
  std::int32_t id() const { return id_; }

 private:
  Tape* tape_ = nullptr;
  std::int32_t id_ = -1;
};

struct Tensor {
  Layout layout;
  std::int32_t storage = -1;
  std::int32_t refs = 0;
  std::int32_t node = -1;  // autograd node that made it
  std::int32_t output_nr = 0;
  bool requires_grad = false;
  std::int64_t offset = 0;  // of the first element in its storage, as far as views say it
  bool view = false;        // made by a view operator: keeps its base, so gradients are never summed into it
};

struct Storage {
  Bytes bytes = 0;
  std::int32_t refs = 0;
  std::int32_t instance = -1;  // whose slot; -1: external (parameters, inputs, what the plan owns)
  std::int32_t slot = -1;
  std::int32_t made_in = -1;  // pass number, to tell temporaries
};

enum class PassKind : std::uint8_t { Forward, Recompute, Backward };

/// A slot as an instance knows it, and what another instance frees of it.
struct RawEvent {
  std::int32_t instance = 0;
  std::int32_t slot = 0;
  bool alloc = true;
  bool noted = false;  // MemoryEvent's
};

struct RawPass {
  std::vector<Kernel> kernels;
  std::vector<RawEvent> events;
};

struct RawInstance {
  std::array<RawPass, 3> passes;  // by PassKind
  std::vector<Slot> slots;
  std::vector<ParamId> param_grads;
  std::vector<std::int32_t> param_grad_slots;  // parallel: the storage it lies in, which may be another parameter's too
  std::vector<FinishedGradient> gradients;     // parallel, without their parameters
  std::int32_t early_backward = 0;             // SegmentTemplate's
};

class Tape {
 public:
  explicit Tape(std::size_t instances) : instances_(instances) {}

  // --- passes ---
  void begin(std::size_t instance, PassKind kind);
  std::size_t instance() const { return instance_; }
  void end();
  bool running() const { return pass_ != nullptr; }

  // --- tensors ---
  Ref make(const Layout& layout, SlotCategory category);                // allocates
  Ref make_bytes(Bytes bytes, SlotCategory category);                   // a bare workspace
  Ref external(const Layout& layout);                                   // storage that others own
  Ref alias(const Ref& of, const Layout& layout, bool is_view = true);  // shares the storage, from its offset on
  Tensor& at(const Ref& ref) { return tensors_[static_cast<std::size_t>(ref.id())]; }
  const Layout& layout(const Ref& ref) { return at(ref).layout; }
  Storage& storage_of(const Ref& ref) { return storages_[static_cast<std::size_t>(at(ref).storage)]; }
  bool sole_owner(const Ref& ref) { return at(ref).refs == 1 && storage_of(ref).refs == 1; }
  /// The storage stays allocated when its last Ref goes: the plan frees it.
  void give_away(const Ref& ref, SlotCategory category, ParamId param);

  /// The compute stream uses a storage of another one's pool, which is not given away before it is done
  /// (record_stream).
  void note_use(const Ref& ref);
  /// While one lives, storages are made in the pool of activation offload's stream.
  class Aside {
   public:
    explicit Aside(Tape& tape) : tape_(tape) { tape_.aside_ = true; }
    ~Aside() { tape_.aside_ = false; }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    Tape& tape_;
  };

  /// Closes the kernel whose allocations were just made. `kernel`'s event ranges are filled here.
  void kernel(Kernel kernel);

  std::vector<RawInstance>& instances() { return instances_; }
  /// A parameter's gradient is final in the pass that is running, and the plan's from here on. `copied`: by the last
  /// kernel.
  void finish_gradient(const Ref& gradient, ParamId param, bool copied);
  PassKind kind() const { return kind_; }
  /// A storage's number is not given to another when it is gone.
  void keep_numbers() { keeps_numbers_ = true; }

 private:
  friend class Ref;
  void add_ref(std::int32_t id) { ++tensors_[static_cast<std::size_t>(id)].refs; }
  void drop_ref(std::int32_t id);
  void free_storage(const Storage& storage);
  std::int32_t new_tensor();
  void open_before();

  std::vector<RawInstance> instances_;
  std::vector<Tensor> tensors_;
  std::vector<Storage> storages_;
  std::vector<std::int32_t> spare_tensors_, spare_storages_;
  RawPass* pass_ = nullptr;
  std::size_t instance_ = 0;
  PassKind kind_ = PassKind::Forward;
  std::int32_t pass_number_ = 0;
  bool keeps_numbers_ = false, aside_ = false;
  std::int32_t before_begin_ = -1;  // >= 0: allocations of a kernel to come have begun here
};

inline Ref::Ref(const Ref& other) : tape_(other.tape_), id_(other.id_) {
  if (id_ >= 0) tape_->add_ref(id_);
}
inline void Ref::reset() {
  if (id_ >= 0) {
    const std::int32_t id = id_;
    id_ = -1;
    tape_->drop_ref(id);
  }
}

}  // namespace foreshard::lowering
