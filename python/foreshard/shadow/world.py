"""The ranks that are not there: a store that answers for them, and collectives of Python objects that all ranks agree on.

Tensors on the device go through the virtual device's NCCL. Groups on the host (gloo) become PyTorch's own fake group: what
a rank sends is what it receives.
"""

from __future__ import annotations

import functools
import os

from . import WORLD_GIVEN
from .hooks import after_import
from .notes import note


def begin() -> None:
    global _given
    if os.environ.get(WORLD_GIVEN) == "1":
        _given = int(os.environ.get("WORLD_SIZE", "0"))
    after_import("torch.distributed.distributed_c10d", _patch)
    after_import("torch.distributed.checkpoint.default_planner", _patch_planner)


_given = 0  # ranks that the verb was told of
_begun: tuple[int, int] | None = None  # ranks and this one's number, of the script's first group; a trainer may clear its environment


def _tell_of_own_world(size: int) -> None:
    if _given and size != _given:
        note(f"the script makes a world of {size}, not the {_given} that were given: it reads another launcher's variables, or sets its own")


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1")) if _begun is None else _begun[0]


def rank() -> int:
    return int(os.environ.get("RANK", "0")) if _begun is None else _begun[1]


def _played_store(c10d):
    class PlayedStore(c10d.Store):
        """What this rank has set, and for every other key what a rank that is not there would have sent."""

        def __init__(self):
            super().__init__()
            self._values: dict[str, bytes] = {}

        def set(self, key, value):
            self._values[key] = value if isinstance(value, bytes) else str(value).encode()

        def get(self, key):
            return self._values.get(key, b"\x5a" * 128)  # the virtual NCCL's unique id

        def add(self, key, amount):
            # The others come to every barrier when this rank does.
            self._values[key] = str(int(self._values.get(key, b"0")) + amount * world_size()).encode()
            return int(self._values[key])

        def compare_set(self, key, expected, desired):
            if key not in self._values:
                self.set(key, desired)
            return self._values[key]

        def wait(self, *args):
            return None

        def check(self, keys):
            return not any("dump" in str(key) for key in keys)  # nobody asks for a flight recorder's

        def delete_key(self, key):
            return self._values.pop(key, None) is not None

        def num_keys(self):
            return len(self._values)

        def has_extended_api(self):
            return False

        def clone(self):
            return self

    return PlayedStore()


def _without_gloo(backend):
    """Host groups of the virtual world."""
    if backend is None:
        return "cpu:fake,cuda:nccl"
    parts = str(backend).lower().replace("gloo", "fake").split(",")
    # PyTorch hands the options that it makes for NCCL on to what is listed behind it; the fake group takes none of them.
    return ",".join(sorted(parts, key=lambda part: "fake" not in part))


def _with_gloo(backend: str) -> str:
    """As the script would have it told."""
    return backend.replace("fake", "gloo")


_stores = []  # the C++ side does not keep a Python store alive
_asked: dict[str, str] = {}  # the backend that the script asked for, by the group's name


def _patch(c10d) -> None:
    init, new_group = c10d.init_process_group, c10d.new_group

    def with_fake(backend):
        _without_intra_node()
        played = _without_gloo(backend)
        if "fake" in played:
            import torch.testing._internal.distributed.fake_pg  # noqa: F401 - registers it
        return played

    @functools.wraps(init)
    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name="",
                           pg_options=None, device_id=None, **more):  # fmt: skip
        global _begun
        size = world_size if world_size and world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        number = rank if rank is not None and rank >= 0 else int(os.environ.get("RANK", "0"))
        os.environ["WORLD_SIZE"], os.environ["RANK"] = str(size), str(number)
        _begun = _begun or (size, number)
        _tell_of_own_world(size)
        _stores.append(_played_store(c10d))
        # Bound to a device, communicators are split from each other, by colours that one process alone cannot count.
        init(with_fake(backend), timeout=timeout, world_size=size, rank=number, store=_stores[-1], group_name=group_name,
             pg_options=pg_options, **more)  # fmt: skip
        if getattr(c10d.GroupMember.WORLD, "bound_device_id", None) is not None:  # 2.15 binds by itself
            c10d.GroupMember.WORLD.bound_device_id = None
        _asked.clear()
        _asked[c10d.GroupMember.WORLD.group_name] = str(backend or ("undefined" if device_id is None else "nccl")).lower()

    @functools.wraps(new_group)
    def group(ranks=None, timeout=None, backend=None, *args, **kwargs):
        made = new_group(ranks, timeout, with_fake(backend) if backend else None, *args, **kwargs)
        if isinstance(made, c10d.ProcessGroup):  # else this rank is not in it
            _asked[made.group_name] = str(backend).lower() if backend else c10d.get_backend()
        return made

    c10d.init_process_group, c10d.new_group = init_process_group, group
    _patch_objects(c10d)
    _patch_names(c10d)


def _without_intra_node() -> None:
    if os.environ.get("ENABLE_INTRA_NODE_COMM", "0") not in ("", "0"):
        note("ENABLE_INTRA_NODE_COMM is off: PyTorch's own all-reduce between a node's ranks meets them at a store, and is not played; NCCL's is")
        os.environ["ENABLE_INTRA_NODE_COMM"] = "0"


def _patch_names(c10d) -> None:
    """Scripts decide by a backend's name whether they can work on the host: it is the one that they asked for."""
    get_backend, get_config = c10d.get_backend, c10d.get_backend_config

    @functools.wraps(get_backend)
    def backend_of(group=None):
        played = get_backend(group)
        return c10d.Backend(_asked.get((group or c10d.GroupMember.WORLD).group_name, _with_gloo(played)))

    @functools.wraps(get_config)
    def config_of(group=None):
        return _with_gloo(get_config(group))

    c10d.get_backend, c10d.get_backend_config = backend_of, config_of


def _patch_planner(planner) -> None:
    """Every rank's part of a checkpoint is said to be this one's: together they overlap, and leave gaps."""
    planner._validate_global_plan = lambda plans, metadata: True


def _patch_objects(c10d) -> None:
    def told():
        note("collectives of Python objects: every rank says what this one says")

    def all_gather_object(object_list, obj, group=None):
        told()
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
        told()
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None):
        told()

    def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None):
        told()
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[c10d.get_rank(group)]

    def monitored_barrier(*args, **kwargs):
        return None

    for function in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list, monitored_barrier):
        original = getattr(c10d, function.__name__)
        setattr(c10d, function.__name__, functools.wraps(original)(function))
    c10d.ProcessGroup.monitored_barrier = monitored_barrier
