// The operators of a model cut over a mesh ("mesh.*", core/lowering/mesh_rules.h says what each does) as LibTorch
// operators: this rank's numbers and its meetings with the ranks beside it, in forward and in backward.
//
// They are registered with the dispatcher, so that programs call them as any other. Whom a dimension meets is said by a
// MeshScope on the thread that runs the forward; backward keeps that in its nodes. Ranks of a group must run the same
// operators in the same order, as one program does. What a peer does wrong is thrown by the communicator.
#pragma once

#include <memory>
#include <vector>

#include "exec/communicators/communicator.h"

namespace foreshard::exec {

/// By Model::mesh: the ranks that a dimension of the program meets; null in a dimension of one rank.
using MeshGroups = std::vector<std::shared_ptr<Communicator>>;

/// While it lives, operators of this thread meet these groups.
class MeshScope {
 public:
  explicit MeshScope(const MeshGroups& groups);
  ~MeshScope();
  MeshScope(const MeshScope&) = delete;
  MeshScope& operator=(const MeshScope&) = delete;

 private:
  const MeshGroups* outer_;
};

}  // namespace foreshard::exec
