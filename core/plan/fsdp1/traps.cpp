// The traps of the semantics page, section 24, that show while the plan is built: 2, 4, 5, 6, 7, 8, 11.
#include <algorithm>
#include <array>

#include "core/plan/fsdp1/run.h"

namespace foreshard::fsdp1 {
namespace {

struct TrapText {
  std::int32_t number;
  const char* name;
  const char* rules;
  const char* text;
  const char* remedy;
  bool refused;
};

constexpr std::array<TrapText, 7> kTraps{{
    {2, "lost reduction", "R9",
     "with param mixed precision each use of a unit has its own accumulation node, and the hook is on the first use's: "
     "that use "
     "misses the loss, so post-backward never runs, nothing is reduced and the parameters are not updated",
     "compute in fp32, or let the first use reach the loss", true},
    {4, "frozen front stays gathered", "R14, R15",
     "nobody unshards the unit again in backward, so the catch-all skips it: its full buffer stays alive across "
     "iterations",
     "use_orig_params = true, or FULL_SHARD for these units", false},
    {5, "offload drops micro-batches", "C5, G1",
     "with CPU offload and without no_sync every micro-batch overwrites the host gradient: only the last one counts",
     "train.no_sync = true", true},
    {6, "pageable first copies", "C1",
     "the first unshard of each unit copies from unpinned memory and the host may block",
     "leave the first iteration out of measurements", false},
    {7, "no-grad forward keeps parameters", "O2, F2-11",
     "a forward without grad leaves the unit gathered and the next forward does not gather it again",
     "count these bytes in evaluation; change no parameter between the two", false},
    {8, "explicit unshard reorders backward", "R17, R18, F2-7",
     "views made before the root's forward are older than the root's, so the root's post-backward comes first",
     "let pre-forward gather the unit", false},
    {11, "BACKWARD_POST misses its target", "O7, P7b, P8",
     "the unit before this one in post-forward order is already in use, done, or never used: a gather is exposed or "
     "wasted",
     "backward_prefetch = BACKWARD_PRE", false},
}};

}  // namespace

void Run::note_trap(std::int32_t number, const UnitState* u) {
  auto noted = std::find_if(plan.traps.begin(), plan.traps.end(), [&](const Trap& t) { return t.number == number; });
  if (noted == plan.traps.end()) {
    const auto known =
        std::find_if(kTraps.begin(), kTraps.end(), [&](const TrapText& t) { return t.number == number; });
    const Trap trap{number, known->name, known->rules, {}, known->text, known->remedy, known->refused};
    const auto behind =
        std::find_if(plan.traps.begin(), plan.traps.end(), [&](const Trap& t) { return t.number > number; });
    noted = plan.traps.insert(behind, trap);
  }
  if (u == nullptr || std::find(noted->units.begin(), noted->units.end(), u->unit->name) != noted->units.end()) return;
  noted->units.push_back(u->unit->name);
}

}  // namespace foreshard::fsdp1
