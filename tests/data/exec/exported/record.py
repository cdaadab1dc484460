"""Runs archives of torch.export forward and backward in PyTorch and records sums of outputs and gradients.

Usage: record.py FOLDER_OF_ARCHIVES OUT.json [--most PARAMETERS]. Weights and buffers without values in the archive, and all inputs, are made by
the formulas below, which tests/exec/exported_programs_test.cpp repeats. Every floating output gets the gradient fill(numel, 3).
"""
import argparse
import json
import pathlib

import torch

GOLDEN = 0.6180339887498949


def fill(n, shift):
    """n numbers in [-0.5, 0.5), spread evenly."""
    i = torch.arange(n, dtype=torch.float64)
    return (i * GOLDEN + 0.1 * shift) % 1.0 - 0.5


def made(name, shape, dtype, is_param):
    n = 1
    for s in shape:
        n *= s
    leaf = name.rsplit(".", 1)[-1]
    if not is_param:
        if leaf == "running_var":
            return torch.ones(shape, dtype=dtype)
        if leaf in ("position_ids",):
            return torch.arange(shape[-1]).expand(shape).to(dtype).clone()
        return torch.zeros(shape, dtype=dtype)
    value = fill(n, sum(name.encode()) % 97).reshape(shape)
    return (1 + 0.1 * value if len(shape) == 1 else 0.1 * value).to(dtype)


def user_input(index, value):
    shape = []
    for d, s in enumerate(value.shape):
        if isinstance(s, int):
            shape.append(s)
        else:
            shape.append(2 if d == 0 else 8 if d == 1 and not value.dtype.is_floating_point else int(s.node.hint))
    n = 1
    for s in shape:
        n *= s
    if value.dtype.is_floating_point:
        return fill(n, index).reshape(shape).to(value.dtype)
    if value.dtype == torch.bool:
        return torch.ones(shape, dtype=torch.bool)
    return ((torch.arange(n) * 7 + 3) % 5).reshape(shape).to(value.dtype)


def draws(ep):
    """Whether the program has dropout that is switched on: its numbers are nobody else's."""
    for module in ep.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            args = dict(zip(("input", "p", "train"), node.args)) if "dropout" in str(node.target) else {}
            attention = node.args[4] if "scaled_dot_product" in str(node.target) and len(node.args) > 4 else 0.0
            if (args.get("train") and args.get("p")) or attention or node.kwargs.get("dropout_p"):
                return True
    return False


def record(path, most):
    ep = torch.export.load(path)
    if draws(ep):
        return {"skipped": "it draws random numbers"}
    count = sum(p.numel() for p in ep.parameters())
    if count > most:
        return {"skipped": f"{count} parameters"}
    for node in ep.graph_module.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    for module in ep.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if "device" in node.kwargs:
                    node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
            module.recompile()
    placeholders = [n for n in ep.graph_module.graph.nodes if n.op == "placeholder"]
    values, params, buffers, shared, number = [], {}, {}, {}, 0
    for node, spec in zip(placeholders, ep.graph_signature.input_specs):
        kind = spec.kind.name
        meta = node.meta["val"]
        if kind == "USER_INPUT":
            if isinstance(meta, torch.Tensor):
                values.append(user_input(number, meta).requires_grad_(False))
                number += 1
            else:
                values.append(spec.arg.value if hasattr(spec.arg, "value") else meta)
            continue
        held = ep.state_dict.get(spec.target, ep.constants.get(spec.target))
        real = isinstance(held, torch.Tensor) and type(held) in (torch.Tensor, torch.nn.Parameter) and held.device.type == "cpu"
        is_param = kind == "PARAMETER"
        t = held.detach().clone() if real else made(spec.target, tuple(int(s) for s in meta.shape), meta.dtype, is_param)
        if is_param and real and held.data_ptr() in shared:
            t = shared[held.data_ptr()]
        elif is_param:
            t.requires_grad_(meta.requires_grad)
            params[spec.target] = t
            if real:
                shared[held.data_ptr()] = t
        elif kind == "BUFFER":
            buffers[spec.target] = (t, t.clone())
        values.append(t)
    torch.manual_seed(0)
    outs = torch.fx.Interpreter(ep.graph_module).run(*values)
    after = {n: t for n, (t, before) in buffers.items() if not torch.equal(t, before)}
    for o, s in zip(outs, ep.graph_signature.output_specs):  # a functional program returns what its buffers become
        if s.kind.name == "BUFFER_MUTATION":
            after[s.target] = o
    outs = [o for o, s in zip(outs, ep.graph_signature.output_specs) if s.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")]
    floats = [o for o in outs if isinstance(o, torch.Tensor) and o.is_floating_point()]
    row = {"outputs": [[float(o.double().sum()), float(o.double().abs().sum())] for o in floats]}
    if after:
        row["buffers"] = {n: [float(f"{float(v):.10g}") for v in (t.double().sum(), t.double().abs().sum())] for n, t in after.items()}
    roots = [o for o in floats if o.requires_grad]
    torch.autograd.backward(roots, [fill(o.numel(), 3).reshape(o.shape).to(o.dtype) for o in roots])
    row["grads"] = {n: float(f"{float(p.grad.double().abs().sum()):.8g}") for n, p in params.items() if p.grad is not None}
    return row


def register_outputs():
    """Output classes of Transformers, without which PyTorch refuses the archives of its models."""
    try:
        import transformers.modeling_outputs as outputs
        from transformers.utils.generic import ModelOutput
    except ImportError:
        return
    import torch.utils._pytree as pytree

    for cls in vars(outputs).values():
        if isinstance(cls, type) and issubclass(cls, ModelOutput):
            try:
                pytree.register_pytree_node(cls, lambda o: (list(o.values()), list(o.keys())), lambda v, k, c=cls: c(**dict(zip(k, v))),
                                            serialized_type_name=f"transformers.modeling_outputs.{cls.__name__}")
            except ValueError:
                pass  # known already


if __name__ == "__main__":
    register_outputs()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--most", type=int, default=140_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for path in sorted(pathlib.Path(args.folder).glob("*.pt2")):
        try:
            rows[path.stem] = record(path, args.most)
        except Exception as error:  # an archive that PyTorch itself cannot run here
            rows[path.stem] = {"skipped": f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"}
        print(path.stem, str(rows[path.stem])[:110], flush=True)
    json.dump(rows, open(args.out, "w"), separators=(",", ":"))
