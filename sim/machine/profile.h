// A hardware profile: what a machine can do, each number with its source. Read from TOML files in profiles/
// (docs/formats/profile.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/cpu/cpu_isa.h"
#include "core/dtype.h"
#include "core/result.h"
#include "core/units.h"
#include "sim/machine/card.h"

namespace foreshard {

enum class CalibrationLevel : std::uint8_t { Datasheet, Published, Microbenchmark, MeasuredStep };
std::string_view calibration_level_name(CalibrationLevel level);  // "datasheet", ...

/// One operator of a model, measured over its real shapes; see core/operators/operator_signature.h.
struct MeasuredOperator {
  std::string signature;
  SimDuration forward_ns = -1, backward_ns = -1;  // -1: not measured (nothing to differentiate)
  bool operator==(const MeasuredOperator&) const = default;
};

/// Time of one collective by size, measured between `ranks` ranks of one machine.
struct MeasuredCollective {
  std::string kind;  // "all_gather", ...
  int ranks = 2;
  std::vector<Bytes> bytes;  // ascending: the full buffer, as sim/network/collectives.h counts
  std::vector<SimDuration> ns;
  // On a host, where ranks and their threads share the cores; empty, or one for each size: the time while all ranks
  // compute, what their compute loses meanwhile, and the time that cores are busy with it (of one rank, alone).
  std::vector<SimDuration> beside_ns = {}, taken_ns = {}, cpu_ns = {};
  bool operator==(const MeasuredCollective&) const = default;
};

/// What a rank does beside the model's operators.
enum class TensorWork : std::uint8_t {
  Copy,
  Fill,
  Add,
  Scale,
  Join,   // a gradient's rows to the places of their ranks
  Norm,   // its share of the total norm
  AdamW,  // a step of one parameter, with the job's own options
  Sgd,
};
inline constexpr std::size_t kTensorWorks = 8;
std::string_view tensor_work_name(TensorWork work);  // "copy", ...

/// Its time by the size of the tensor that it is done to, on a host: what calls of the dispatcher cost is in it.
struct MeasuredWork {
  TensorWork kind = TensorWork::Copy;
  std::vector<Bytes> bytes;  // ascending
  std::vector<SimDuration> ns;
  bool operator==(const MeasuredWork&) const = default;
};

/// Keys of HardwareProfile::extra: 10^12 float32 operations per second on tensor cores, by the data sheet and as
/// reached. cuDNN's convolutions run so unless they are told not to (torch.backends.cudnn.allow_tf32), products of
/// matrices do not.
inline constexpr const char* kTf32Peak = "tf32_tflops";
inline constexpr const char* kTf32Reached = "tf32_gemm_tflops";
/// Of [extra]: shares of peak of attention by other kernels than FlashAttention's, long and causal, and of a product's
/// rate where its matrices' rows lie at multiples of 4 or 8 bytes, and of 2.
inline constexpr const char* kEfficientShare = "efficient_attention_share";
inline constexpr const char* kCudnnShare = "cudnn_attention_share";
inline constexpr const char* kNarrowShare = "product_share_at_4_bytes";
inline constexpr const char* kNarrowestShare = "product_share_at_2_bytes";
/// Of [extra]: ns to dispatch an operator of backward, where it is not op_ns.
inline constexpr const char* kBackwardOpNs = "backward_op_ns";

/// How the cards of a node reach each other.
enum class Fabric : std::uint8_t {
  Switch,    // each card has all of its links to every other one
  Mesh,      // one link between any two cards (xGMI), or several (boards of four cards without a switch)
  CubeMesh,  // DGX-1: six links a card, none to three of the others
  Pairs,     // bridges join two cards, pairs meet over the host
  Host,      // PCIe alone
};
std::string_view fabric_name(Fabric fabric);  // "switch", "mesh", "cube-mesh", "pairs", "host"

struct HardwareProfile {
  std::string id;
  std::string kind = "gpu";  // gpu | cpu | virtual
  CalibrationLevel level = CalibrationLevel::Datasheet;
  double interval = 0.25;  // half width of the 90 % interval of step time at this level, relative

  // Device: rates in 10^12 per second and 10^9 bytes per second, as reached by the best known kernel, not the data
  // sheet's.
  std::map<DType, double> peak_tflops;  // data sheet, MFU's denominator
  std::map<DType, double> gemm_tflops;  // reached
  std::map<DType, double> vector_tflops;
  double attention_share = 0.6;  // of peak
  double hbm_gb_per_s = 0.0;
  double hbm_share = 0.7;  // reached by memory-bound kernels
  Bytes memory_bytes = 0;
  int sm_count = 0;
  CardArchitecture architecture;
  SimDuration min_kernel_ns = 0;

  // Host.
  SimDuration launch_ns = 0;  // host time to issue a kernel
  SimDuration op_ns = 0;      // host time of an operator's dispatch beside its launches
  SimDuration call_ns = 0;    // event record, stream wait
  SimDuration driver_alloc_ns = 0;
  double host_link_gb_per_s = 0.0;
  double host_copy_gb_per_s = 0.0;  // pageable

  // Of a host that is the device (kind "cpu"): what decides about its kernels' own memory.
  CpuIsa host_isa = CpuIsa::Avx512;
  Bytes host_l2_bytes = 2 * kMiB;  // second cache of a core
  // How the times of single collectives lie about their mean where ranks share cores and wait for each other: means of
  // equally many of them, ascending, 1 on average. Empty: they are equal.
  std::vector<double> collective_spread;

  // Links between ranks; see sim/network/collectives.h for the model.
  Fabric fabric = Fabric::Switch;
  int cards = 8;                    // of a node, joined by the fabric
  int pair_links = 1;               // of a mesh: between any two cards
  int rails = 8;                    // network ports of a node; together scale_out_gb_per_s for each card
  double scale_up_gb_per_s = 0.0;   // per direction and GPU
  double scale_out_gb_per_s = 0.0;  // per GPU
  int channels = 0;
  double channel_gb_per_s = 0.0;
  double ring_share = 1.0;         // of channels x channel_gb_per_s, what the rings of a whole node reach
  double switch_sum_share = 0.0;   // of scale_up_gb_per_s, what sums in the switch reach (NVLS); 0: it adds nothing
  std::string host_cpu = "intel";  // intel | amd: NCCL's LL cap and post overhead
  std::map<std::string, std::string> sources;  // key -> where the number was read
  // What `foreshard calibrate` measured here: trusted before the rates above.
  std::vector<MeasuredOperator> operators;
  std::vector<MeasuredCollective> collectives;
  std::vector<MeasuredWork> work;
  std::map<std::string, std::string> calibration;  // software, fingerprint, residuals
  // kind "virtual": the clock of the virtual device (FAKEGPU_*); kind "cpu": wake_ns, until a thread that slept goes
  // on, segment_forward_ns and segment_backward_ns, what a segment costs beside its operators
  std::map<std::string, double> extra;

  // Out of line: dozens of sources copy and drop one.
  HardwareProfile();
  HardwareProfile(const HardwareProfile&);
  HardwareProfile(HardwareProfile&&) noexcept;
  HardwareProfile& operator=(const HardwareProfile&);
  HardwareProfile& operator=(HardwareProfile&&) noexcept;
  ~HardwareProfile();
  bool operator==(const HardwareProfile&) const = default;
};

/// A profile id of profiles/ or a path to a file. What it does not say, the profile that its key `base` names does.
/// Errors name file, key, expected, got.
Result<HardwareProfile> load_profile(const std::string& id_or_path);
/// The same file again: parse_profile(profile_text(p)) == p.
std::string profile_text(const HardwareProfile& profile);
Result<HardwareProfile> parse_profile(const std::string& toml, const std::string& file);
std::vector<std::string> known_profiles();

/// What a card's id ends with where its profile is of four on a board without a switch, or of the kernels of before
/// mid-2024.
inline constexpr const char* kBoardOfFour = "-x4";
inline constexpr const char* kOldKernels = "-2023";
/// The profile of a card with such an ending; empty: none is shipped.
std::string profile_variant(const std::string& id, const char* ending);

}  // namespace foreshard
