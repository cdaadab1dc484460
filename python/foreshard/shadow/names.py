"""What units and modules are called in a plan, whatever PyTorch has wrapped around them."""

from __future__ import annotations

import inspect
import sys
import types

_CHECKPOINT = "_checkpoint_wrapped_module"
_names1: dict[int, str] = {}  # FSDP1: id of a flat parameter's handle -> name
_names2: dict[int, str] = {}  # FSDP2: id of a group of parameters -> name, where several roots are parts of one model


def clean(name: str) -> str:
    """A unit's name without the wrappers that a plan does not have."""
    parts = (part for part in (name or "").split(".") if part not in ("_fsdp_wrapped_module", _CHECKPOINT, "_orig_mod"))
    return ".".join(parts)


def beside_wrapper(name: str) -> str:
    """As clean(), but a module inside a checkpoint wrapper is told from the wrapper (capture's `units`)."""
    return f"{clean(name)}.{_CHECKPOINT}" if name.endswith(f".{_CHECKPOINT}") else clean(name)


def name_handle(handle, name: str) -> None:
    _names1[id(handle)] = name


def fsdp1_name(handle) -> str:
    return _names1.get(id(handle), "")


def fsdp2_name(group) -> str:
    """Modules sharded as one unit: the first names it, as in a plan."""
    return _names2.get(id(group)) or clean((group._module_fqn or "").split(",")[0])


def name_groups(root) -> None:
    """From now on units are called as in `root`, which holds the script's roots."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

    for name, module in root.named_modules():
        group = getattr(_get_module_fsdp_state(module), "_fsdp_param_group", None)
        if group is not None:
            _names2.setdefault(id(group), clean(name))


def has_fsdp2() -> bool:
    """Whether the script has come to FSDP2 at all: asking PyTorch would bring it in."""
    return "torch.distributed.fsdp._fully_shard._fsdp_state" in sys.modules


def fsdp2_parameters(root) -> list:
    """What FSDP2 keeps for each parameter of the modules in `root`; nothing where the script has no FSDP2."""
    if root is None or not has_fsdp2():
        return []
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

    groups = [getattr(_get_module_fsdp_state(module), "_fsdp_param_group", None) for module in root.modules()]
    return [parameter for group in dict.fromkeys(groups) for parameter in getattr(group, "fsdp_params", [])]


class Unmanaged:
    """A DTensor that FSDP2 does not manage (a module's own parameter, one in a flat parameter of FSDP1's), in the words of FSDP2's FSDPParam."""

    is_dtensor = True

    def __init__(self, module, name, parameter, spec):
        self._module_info = types.SimpleNamespace(module=module, param_name=name, shared_modules=[], shared_param_names=[])
        self.sharded_param = self._unsharded_param = parameter
        self._tp_spec = spec
        self._spmd_mesh = spec.mesh


def in_flat_parameters(root) -> list[Unmanaged]:
    """DTensors that FSDP1 has flattened: their local tensors, and what these were parts of."""
    found = []
    for wrapper in root.modules():
        flat = getattr(getattr(wrapper, "_handle", None), "flat_param", None)
        for info, spec in zip(getattr(flat, "_param_infos", ()), getattr(flat, "_param_extensions", ())):
            if spec is not None:
                found.append(Unmanaged(info.module, info.param_name, types.SimpleNamespace(shape=spec.shape), spec))
    return found


def spec(parameter):
    """How a DTensor lay before FSDP2 sharded it; PyTorch 2.15 has another name for that."""
    return parameter._tp_spec if hasattr(parameter, "_tp_spec") else parameter._unsharded_dtensor_spec


def mesh_parameters(root) -> list:
    """What is known of each parameter that may lie on a mesh: FSDP2's, and DTensors of FSDP1 or of no FSDP."""
    managed = fsdp2_parameters(root)
    if root is None or "torch.distributed.tensor" not in sys.modules:
        return managed
    from torch.distributed.tensor import DTensor

    own = {(id(module), name): (module, each) for module in root.modules() for name, each in module._parameters.items() if isinstance(each, DTensor)}
    for info in (each._module_info for each in managed):
        for module, name in ((info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names)):
            own.pop((id(module), name), None)
    return managed + in_flat_parameters(root) + [Unmanaged(module, name, each, each._spec) for (_, name), (module, each) in own.items()]


def named(root, parameters) -> list[tuple[str, object]]:
    """The same with their names in `root`: PyTorch's own lack the module where several are one unit."""
    called = {id(module): clean(name) for name, module in root.named_modules()} if root is not None else {}
    infos = [(each._module_info, each) for each in parameters]
    return [(f"{called.get(id(info.module), '')}.{info.param_name}".removeprefix("."), each) for info, each in infos]


def variables(frame) -> dict:
    """A frame's names and what they stand for. Until Python 3.13 a function's frame keeps what `f_locals` has shown, so that a step's
    tensors would live as long as the function; what the script itself asks for (`locals()`) is the same dictionary, and stays."""
    shown = frame.f_locals
    found = dict(shown)
    mine = 3  # the frame, this name, the argument of getrefcount
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(shown) <= mine:
        shown.clear()
    return found


def of_script(thing) -> str:
    """The variable that the script has for it, or the attribute of an object that it has (a trainer's); empty: none."""
    frame, attribute = sys._getframe(1), ""
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(("torch.", "foreshard.")):
            for name, value in variables(frame).items():
                if value is thing and name.isidentifier():
                    return name
                inside = getattr(value, "__dict__", None) if not isinstance(value, (type, types.ModuleType)) else None
                if not attribute and type(inside) is dict:
                    attribute = next((key for key, each in inside.items() if each is thing and str(key).isidentifier()), "")
        frame = frame.f_back
    return attribute


def class_of(module) -> type:
    """The module's class as written: fully_shard, and replicate on its ground, put one of their own in front."""
    kind = type(module)
    if kind.__name__.startswith(("FSDP", "Replicate")) and "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FSDPModule

        if issubclass(kind, FSDPModule):
            return next(each for each in kind.__mro__ if not issubclass(each, FSDPModule))
    return kind


def sharded_shapes(root, parts: bool) -> dict[int, dict[str, tuple]]:
    """FSDP2, as flat_shapes(): a root that stays gathered has parameters in the dtype that it computes in. `parts`: this rank's of DTensors."""
    found: dict[int, dict[str, tuple]] = {}
    for parameter in fsdp2_parameters(root):
        info, sharded = parameter._module_info, parameter.sharded_param
        shape = parameter._orig_size if parts else sharded.shape
        row = (f"{id(parameter)}", tuple(shape), sharded.dtype, sharded.requires_grad)
        found.setdefault(id(info.module), {})[info.param_name] = row
        for module, name in zip(info.shared_modules, info.shared_param_names):
            found.setdefault(id(module), {})[name] = row
    return found


def flat_shapes(root) -> dict[int, dict[str, tuple]]:
    """FSDP1: id of a module -> name -> (key, shape, dtype, needs a gradient) of the parameters that lie in flat ones."""
    found: dict[int, dict[str, tuple]] = {}
    for wrapper in root.modules():
        handle = getattr(wrapper, "_handle", None)
        if handle is None or not hasattr(handle, "flat_param"):
            continue
        flat = handle.flat_param
        originals = getattr(flat, "_params", None) or [flat] * len(flat._shapes)
        for i, (info, shape, part) in enumerate(zip(flat._param_infos, flat._shapes, flat._param_extensions)):
            whole = tuple(shape if part is None else part.shape)  # a DTensor's, whose part of this rank was flattened
            row = (f"{id(handle)}.{i}", whole, flat.dtype, originals[i].requires_grad)
            found.setdefault(id(info.module), {})[info.param_name] = row
        for info in flat._shared_param_infos:
            first = found[id(info.prim_module)][info.prim_param_name]
            found.setdefault(id(info.module), {})[info.param_name] = first
    return found
