#!/usr/bin/env python3
"""docs/operators-without-rule.md from the table of rules and the operators of the installed PyTorch.

    operators_without_rule.py [--write]     (exit code 77: this Python has no PyTorch of the version that the page is of)
"""
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operators-without-rule.md"
VERSION = "2.11"
# What a training step of dense tensors never dispatches, in words.
APART = {
    "backward operators, which rules themselves emit": r"_backward(_|$)|_backward\b|_grad_input|_grad_weight|_double_backward|backward_data|_jvp$",
    "several tensors at once (optimizers)": r"^_foreach_|^_fused_|^_amp_",
    "sparse, nested, quantized and packed tensors": r"sparse|nested|quantiz|^q_|^qscheme|dequant|^int_repr|mkldnn|ccol_ind|crow_ind|col_ind|row_ind|coalesce|^_indices|^_values|"
                                                    r"^indices|^values|^fake_quant|fbgemm|^_weight_int|jagged|padded_dense|^_dyn_quant|_weight_norm_int|^_cslt|^_to_cpu|^_mixed_dtypes",
    "other devices' own": r"^cudnn|^_cudnn|^miopen|mps|xnnpack|_mkl|^_fused_sdp_choice|vulkan|^_nnpack",
    "questions, and what only the host runs": r"^sym_|^size$|^stride$|^is_|^dim$|^numel$|_version|^item$|^_local_scalar|^equal$|^_assert|^_print|^_debug|^_make_dep|^_functional_|"
                                             r"^_has_|^_test_|^_dimI|^_dimV|^_nnz|^sparse_dim|^dense_dim|^record_stream|^_sobol|^_validate|^set_|^set$|^resize|^_resize|^from_file|pin_memory|^_pin",
}


def rules() -> set[str]:
    tables = [ROOT / "core/lowering/op_rules.cpp", *sorted((ROOT / "core/lowering/table").glob("*.cpp"))]
    text = "".join(source.read_text() for source in tables)
    named = set(re.findall(r'"(aten\.\w+\.\w+)"', text))
    synonyms = re.findall(r'\{"(aten\.\w+)", "(aten\.\w+)"\}', text)
    for name in list(named):  # the same in place
        base, overload = name.rsplit(".", 1)
        named.add(f"{base}_.{overload}")
    for source in sorted((ROOT / "core/model/pt2/composites").glob("composites*.cpp")):  # written as their parts when an archive is read
        named |= set(re.findall(r'"(aten\.\w+\.\w+)"', source.read_text()))
    for other, base in synonyms:
        named |= {other + name[len(base):] for name in list(named) if name.rsplit(".", 1)[0] == base}
    return named


def operators(torch, composite: bool = False):
    """name, operator: functional ATen operators; those that are only made of others, or the rest."""
    for packet in sorted(dir(torch.ops.aten)):
        for overload in getattr(getattr(torch.ops.aten, packet), "overloads", list)():
            op = getattr(getattr(torch.ops.aten, packet), overload)
            by_name = "dimname" in overload.lower() or "names" in overload.split("_")
            if op._schema.is_mutable or packet.startswith("__") or by_name:
                continue
            if packet.endswith("_") or packet.endswith("_copy") or "functional" in packet:  # in place: with its sibling
                continue
            if not torch._C._dispatch_has_kernel(op.name()):  # of TorchScript alone
                continue
            if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd") != composite:
                continue
            if any(isinstance(a.type, torch.TensorType) for a in op._schema.arguments):
                yield str(op), op


def listed(names: list[str]) -> list[str]:
    return textwrap.wrap(", ".join(f"`{name}`" for name in names), 170, break_on_hyphens=False)


def page(torch) -> str:
    known = rules()
    missing = [(name, op) for name, op in operators(torch) if name not in known]
    core = [name for name, op in missing if torch.Tag.core in op.tags]
    groups: dict[str, list[str]] = {word: [] for word in APART}
    rest: list[str] = []
    for name, _ in missing:
        packet = name.split(".")[1]
        word = next((word for word, pattern in APART.items() if re.search(pattern, packet)), None)
        (groups[word] if word else rest).append(name.removeprefix("aten."))
    whole = [name.removeprefix("aten.") for name, _ in operators(torch, composite=True) if name not in known]
    whole = [name for name in whole if not any(re.search(pattern, name.split(".")[0]) for pattern in APART.values())]
    count = sum(1 for _ in operators(torch))
    core_count = sum(1 for _, op in operators(torch) if torch.Tag.core in op.tags)
    told = [name.removeprefix("aten.") for name in core if name.removeprefix("aten.") in rest]
    lines = [
        "# Operators without a rule",
        "",
        f"Written by `tests/docs/operators_without_rule.py --write` from the table of rules (`core/lowering/table`) and PyTorch {VERSION}; a test compares. A rule says what an operator",
        "allocates, saves for backward and runs in backward. One without is planned as if it saved its arguments and results, is named in reports, and widens the interval of a prediction.",
        "",
        f"Of {core_count} operators that PyTorch tags as core (with a tensor among their arguments) {core_count - len(core)} have a rule; without one are",
        f"{'only ' if not told else ''}{', '.join(f'`{n}`' for n in told) or 'backward operators, which rules themselves emit, and questions about sizes'}.",
        "",
        f"Of {count} functional operators of ATen that are not only made of others, {len(rest)} that a training step could dispatch have none:",
        "",
        *listed(rest),
        "",
        "Only made of others are these without a rule of their own; capture writes down their parts, and so does `export(...).run_decompositions()`. An archive that holds one whole has it without a rule:",
        "",
        *listed(whole),
        "",
        "Beside them, not counted above:",
        "",
        *[f"- {word}: {len(names)}" for word, names in groups.items()],
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    try:
        import torch
    except ImportError:
        print("skipped: no torch")
        return 77
    if not torch.__version__.startswith(VERSION):
        print(f"skipped: torch {torch.__version__}, the page is of {VERSION}")
        return 77
    text = page(torch)
    if "--write" in sys.argv:
        PAGE.write_text(text)
        return 0
    if PAGE.read_text() == text:
        return 0
    print(f"{PAGE.name} is not what the table of rules says: run {pathlib.Path(__file__).name} --write with torch {VERSION}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
