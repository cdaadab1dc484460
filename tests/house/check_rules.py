"""Checks the house rules over a source tree: include arrows between rooms, third parties in their rooms, file names,
and that a source includes the header of its name first, which proves that the header compiles alone.

usage: check_rules.py TREE. Prints one line per breach, exits 1 if there is any.
"""
import pathlib
import re
import sys

# room -> rooms it may include (architecture page, section 3)
ARROWS = {
    "core": {"core"},
    "sim": {"core", "sim"},
    "exec": {"core", "exec"},
    "traces": {"core", "traces"},
    "gui": {"core", "sim", "traces", "gui"},
    "shadow": {"core", "sim", "traces", "shadow"},
    "cli": {"core", "sim", "exec", "traces", "shadow", "cli"},
}
# third party header -> places (prefixes) that may include it
THIRD_PARTIES = {
    r"boost/": ["core/plan/checks/plan_dag.cpp", "tests/"],
    r"(torch|ATen|c10|nccl|cuda|cupti)": ["exec/", "shadow/device/", "tests/exec/"],
    r"Q[A-Z]|Qt": ["gui/view/", "gui/main.cpp", "tests/gui/"],  # gui/models knows no widgets and is built without Qt
    r"toml\+\+": ["core/job/", "sim/machine/profile.cpp", "tests/"],
    r"yaml\.h": ["core/job/import/"],
    r"CLI/": ["cli/"],
}
# Below the sources of models nobody asks what a class, a parameter or an input is called: that is data of the Model.
# Classes whose own name differs from what they derive from are found by their endings.
FACTS_ONLY = ("core/lowering/", "core/plan/", "sim/")
MODEL_NAMES = re.compile(
    r"^_?(Module(List|Dict)?|Sequential|Linear|Embedding(Bag)?|Lazy\w+|\w*Conv(Transpose)?(Nd|[1-3][dD])?|\w*BatchNorm\w*|\w*LayerNorm|"
    r"\w*RMSNorm|GroupNorm|Dropout|MultiheadAttention|\w*Attention|\w+(Model|Block|Layer|Decoder|Encoder|Embeddings?|"
    r"SelfOutput|Output|MLP|ForCausalLM|LMHeadModel)|Scale|Cross|"
    r"input_ids|decoder_input_ids|labels|attention_mask|token_type_ids|position_ids|pixel_values|targets?|tokens|"
    r"weight|bias|running_mean|running_var|\w+_proj|lm_head|embed_tokens|wte|wpe)$")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
# What an operator does to memory is said once, in a segment's template (core/lowering/lowering.h): simulator, viewer and
# reports read it there and know no rules of operators.
TEMPLATES_ONLY = ("sim/", "gui/", "traces/", "cli/reports/", "cli/session/")
NO_SEGMENT = {"sim/play/adafactor_step.cpp"}  # an optimizer is no segment: it asks what its reductions take
TEMPLATE_HEADERS = {"core/lowering/lowering.h", "core/lowering/activations/activation.h"}
EMPTY_NAMES = re.compile(r"(^|_)(utils?|common|helpers?|manager|misc|system)(_|\.|$)")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)


def breaches(tree):
    root = pathlib.Path(tree)
    for room, allowed in ARROWS.items():
        for path in sorted(root.glob(f"{room}/**/*")):
            if path.suffix not in (".h", ".cpp", ".cu"):
                continue
            name = path.relative_to(root).as_posix()
            if EMPTY_NAMES.search(path.name.lower()):
                yield f"{name}: the name says nothing about what the file holds"
            text = path.read_text(encoding="utf-8")
            if name.startswith(FACTS_ONLY):
                for literal in LITERAL.findall(COMMENT.sub("", text)):
                    if any(MODEL_NAMES.match(part) for part in literal.split(".")) and not literal.startswith("aten."):
                        yield f'{name}: asks for a name of the model, "{literal}": let the Model say it as a fact'
            includes = INCLUDE.findall(text)
            own = path.relative_to(root).with_suffix(".h")
            if path.suffix == ".cpp" and (root / own).exists() and (not includes or includes[0][1] != own.as_posix()):
                yield f"{name}: must include {own} first"
            for quote, header in includes:
                target = header.split("/")[0]
                if quote == '"' and target in ARROWS and target not in allowed:
                    yield f"{name}: {room} must not include {header}"
                if name.startswith(TEMPLATES_ONLY) and name not in NO_SEGMENT and header.startswith("core/lowering/") and header not in TEMPLATE_HEADERS:
                    yield f"{name}: {header} holds rules of operators: read the segment's template"
                if quote == '"' and "/" not in header:
                    yield f'{name}: the include of "{header}" does not name its room'
                for pattern, places in THIRD_PARTIES.items():
                    if re.match(pattern, header) and not any(name.startswith(p) for p in places):
                        yield f"{name}: {header} belongs in {', '.join(places)}"


def main():
    found = list(breaches(sys.argv[1]))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
