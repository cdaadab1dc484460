#include "cli/console/verb_examples.h"

#include <algorithm>
#include <array>

namespace foreshard::cli {
namespace {

struct VerbExample {
  std::string_view verb, line;
};

constexpr std::string_view kUsual =
    "simulate llama-3-8b/config.json --set cluster.world_size=64 --set checkpointing.policy=block";

constexpr auto kExamples = std::to_array<VerbExample>({
    {"inspect", "inspect llama-3-8b/config.json --seq 8192"},
    {"import", "import fsdp_config.yaml"},
    {"fit", "fit llama-3-8b/config.json --gpus 8xh100-sxm-80 --method full,lora --emit torchtitan,trl --out start"},
    {"export", "export job.toml --as torchtitan,accelerate --out start"},
    {"export-script", "export-script my_model.py:make --output my_model.pt2"},
    {"plan", "plan job.toml --set fsdp.runtime=fsdp1 --layout"},
    {"run", "run job.toml --nproc 2 --timeline measured.fst"},
    {"shadow", "shadow --world 64 --profile h100-sxm-80 -- python train.py"},
    {"sweep", "sweep job.toml --over model.batch=1,2,4 --over checkpointing.policy=none,block"},
    {"schedule", "schedule job.toml --budget 60GiB --emit fsdp2 --out setup.py"},
    {"validate", "validate runs.csv --markdown"},
    {"compare", "compare job.toml measured.fst"},
    {"trace", "trace kernels rank0.json.gz --by module --top 20"},
    {"diagnose", "diagnose rank0.json.gz rank1.json.gz --job job.toml"},
    {"checkpoint", "checkpoint export checkpoints --out weights --dtype bfloat16"},
    {"view", "view job.toml measured.fst"},
    {"report", "report job.toml measured.fst --output step.html"},
    {"calibrate", "calibrate job.toml --ranks 2 --output here.toml"},
    {"config", "config show job.toml"},
    {"doctor", "doctor --op-rules llama-3-8b/config.json"},
    {"version", "version --json"},
    {"completion", "completion bash"},
    {"help", "help simulate"},
});

}  // namespace

std::string example_of(std::string_view verb) {
  const auto* const at =
      std::find_if(kExamples.begin(), kExamples.end(), [&](const VerbExample& known) { return known.verb == verb; });
  return "foreshard " + std::string(at == kExamples.end() ? kUsual : at->line);
}

}  // namespace foreshard::cli
