"""torchrun and whatever starts ranks by it (accelerate launch): one rank of the virtual world takes the place of them all."""

from __future__ import annotations

import os
import sys

from . import WORLD_GIVEN
from .hooks import after_import


def begin() -> None:
    if os.environ.get(WORLD_GIVEN) == "1":
        _as_started_by_torchrun()
    after_import("torch.distributed.launcher.api", _patch)
    after_import("torch.multiprocessing", _spawn)


def _as_started_by_torchrun() -> None:
    """Scripts tell by its own variables who started them, and make a world of one where they do not know."""
    world, rank, per_node = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"))
    for name, value in rank_environment(world, rank, per_node).items():
        os.environ.setdefault(name, value)


def _spawn(module):
    """torch.multiprocessing.spawn(main, nprocs=N): this process is one of the N."""

    def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        rank = int(os.environ.get("RANK", "0")) % nprocs
        if os.environ.get(WORLD_GIVEN) != "1":
            os.environ.update(rank_environment(nprocs, rank, nprocs))
        fn(rank, *args)

    module.spawn = spawn


def rank_environment(world: int, rank: int, per_node: int) -> dict[str, str]:
    """As torchrun sets it."""
    per_node = max(1, min(per_node, world))
    return {
        "WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_WORLD_SIZE": str(per_node), "LOCAL_RANK": str(rank % per_node),
        "GROUP_RANK": str(rank // per_node), "GROUP_WORLD_SIZE": str(-(-world // per_node)), "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world), "ROLE_NAME": "default", "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("MASTER_PORT", "29500"), "TORCHELASTIC_RUN_ID": "shadow",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
    }  # fmt: skip


def _patch(module) -> None:
    def launch_agent(config, command, words):
        if os.environ.get(WORLD_GIVEN) != "1":
            per_node = config.nproc_per_node
            world = config.max_nodes * per_node
            os.environ.update(rank_environment(world, int(os.environ.get("RANK", "0")), per_node))
        if callable(command):
            return {0: command(*words)}
        sys.stdout.flush()
        sys.stderr.flush()
        os.execvp(command, [command, *words])

    module.launch_agent = launch_agent
