// Hand-made training states: whole tensors with known values, and the pieces that ranks of any layout hold of them.
#pragma once

#include <random>
#include <vector>

#include "core/model/model.h"
#include "exec/checkpoint/train_state.h"

namespace foreshard::exec {

/// Uneven on purpose: sizes that do not divide, a scalar, a tensor shorter than the world, a tied name, two buffers
/// (one persistent), one frozen parameter without optimizer state.
Model odd_model();

/// Whole values of all tensors, moments too; the same for the same seed.
TrainState whole_state(const Model& model, std::uint64_t seed);

enum class LayoutKind { Flat, Rows, Columns, Replicated, Hybrid };

/// What each rank holds: fsdp1's flat units cut anywhere (several parameters, boundaries inside them), fsdp2's rows and
/// columns, replicas, hybrid groups of two. Buffers are whole everywhere.
std::vector<TrainState> laid_out(const TrainState& whole, LayoutKind kind, int world_size, std::mt19937& random);

/// The same places, but every element 0 and optimizer_steps 0.
TrainState emptied(const TrainState& state);

/// True if each piece holds the elements of the whole tensor that it names.
bool holds(const TrainState& part, const TrainState& whole);

}  // namespace foreshard::exec
