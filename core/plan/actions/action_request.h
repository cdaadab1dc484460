// What a plan is asked for beside training: wrapping the model, showing full parameters, saving and loading. Plain
// values with PyTorch's defaults, and their text form.
//
// Text: actions separated by commas, each a word with options after colons: "init:sync,summon:rank0_only:no_writeback,
// save:sharded:optimizer:offload,load:full". Rules I, U and K.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace foreshard {

enum class PlanAction : std::uint8_t { Init, Summon, Save, Load };
std::string_view plan_action_name(PlanAction action);  // "init", ...

/// K1. Default: full for fsdp1; fsdp2's own DTensors are `Sharded`.
enum class StateKind : std::uint8_t { Full, Local, Sharded };
std::string_view state_kind_name(StateKind kind);

struct ActionRequest {
  PlanAction action = PlanAction::Init;
  // init
  bool sync_module_states = false;  // "sync": I5
  bool device_id = true;            // "no_device_id": nothing is moved (I2)
  // summon (U1), and save and load as far as they have it
  bool recurse = true;          // "no_recurse"
  bool writeback = true;        // "no_writeback"
  bool rank0_only = false;      // "rank0_only"
  bool offload_to_cpu = false;  // "offload"
  bool with_grads = false;      // "with_grads"
  // save and load
  StateKind kind = StateKind::Full;  // "full", "local", "sharded"
  bool kind_given = false;
  bool optimizer = false;    // "optimizer": its state too (K5, K6)
  bool all_at_once = false;  // "all_at_once": every unit unsharded before the first tensor is copied (K7)
  bool operator==(const ActionRequest&) const = default;
};

/// Errors: unknown words, options of another action, nothing asked for, the same action twice.
Result<std::vector<ActionRequest>> parse_actions(std::string_view text);

/// The text that parse_actions reads back.
std::string action_text(const ActionRequest& request);

}  // namespace foreshard
