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
    r"toml\+\+": ["core/job/", "sim/machine/profile.cpp", "sim/machine/profile_file.cpp", "sim/machine/profile_table.h",
                 "sim/machine/profile_text.cpp", "tests/"],
    r"yaml\.h": ["core/job/import/"],
    r"CLI/": ["cli/"],
}
# Below the sources of models nobody asks what a class, a parameter or an input is called: that is data of the Model.
FACTS_ONLY = ("core/", "sim/", "exec/", "gui/")
# The sources, and the two places that turn PyTorch's names into facts.
NAMES_KNOWN = ("core/model/families/", "core/model/pt2/", "core/model/sources/", "core/model/model_json_calls.cpp",
               "core/model/module_kind.cpp", "core/model/starting_values.cpp", "core/adapters/", "core/job")
# Classes whose own name differs from what they derive from are found by their endings.
MODEL_NAMES = re.compile(
    r"^_?(Module(List|Dict)?|Sequential|Linear|Embedding(Bag)?|Lazy\w+|\w*Conv(Transpose)?(Nd|[1-3][dD])?|\w*BatchNorm\w*|\w*LayerNorm|"
    r"\w*RMSNorm|GroupNorm|Dropout|MultiheadAttention|\w*Attention|\w+(Model|Block|Layer|Decoder|Encoder|Embeddings?|"
    r"SelfOutput|Output|MLP|ForCausalLM|LMHeadModel)|Scale|Cross|"
    r"input_ids|decoder_input_ids|labels|attention_mask|token_type_ids|position_ids|pixel_values|targets?|tokens|"
    r"weight|bias|running_mean|running_var|\w+_proj|lm_head|embed_tokens|wte|wpe)$")
# Planning and simulating speak no class names at all: a word in camel case there is a class, whole or in part ("Conv").
# Python's exceptions and constants are the only others.
NO_CLASSES = ("core/lowering/", "core/plan/", "core/operators/", "core/cpu/", "core/mesh/", "sim/")
CLASS_NAME = re.compile(r"^_?[A-Z][a-z]+[A-Za-z0-9]*$")
NO_CLASS = re.compile(r"^(\w+Error|True|False|Operator|Rank)$")
# ... and no parts of a model's names to compare with: these are looked for in whatever has a length.
NAME_PART = re.compile(r"^[._]?(embed|embed_\w*|emb|attn|self_attn|rotary\w*|layernorm|rmsnorm|encoder|decoder|lm_|mlp|proj|_?ids|"
                       r"q_|k_|v_|wte|wpe|bias|weight)[._]?$")
# Whoever reads a module's class there compares it with what a job or Model::block_class says, or writes it for people.
CLASS_READERS = {
    "core/lowering/activations/activation.cpp", "core/mesh/parallel_plan.cpp", "core/plan/build_plan.cpp",
    "core/plan/runtime/muon_params.h",
    "core/plan/units/auto_units.cpp", "core/plan/units/module_tree.cpp", "core/plan/units/unit_selection.cpp",
    "core/plan/units/wrap_policy.cpp", "sim/device/pointwise_fusion.cpp",
    "sim/schedule/wrappings.cpp", "sim/search/auto_wrap.cpp",
}
CLASS_READ = re.compile(r"(\.|->)(class_name|bases)\b")
# "one" "two" is one literal; R"x(...)x" is one too.
LITERAL = re.compile(r'R"(?P<fence>[^(\s]*)\((?P<raw>.*?)\)(?P=fence)"|(?P<plain>"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*)', re.S)
ESCAPED = re.compile(r"\\(x[0-9a-fA-F]+|[0-7]{1,3}|.)")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
KEY = re.compile(r"^(aten|mesh|_c10d_functional|model|adapters|train|fsdp)\.")
# What an operator does to memory is said once, in a segment's template (core/lowering/lowering.h): simulator, viewer and
# reports read it there and know no rules of operators.
TEMPLATES_ONLY = ("sim/", "gui/", "traces/", "cli/reports/", "cli/session/")
NO_SEGMENT = {"sim/play/adafactor_step.cpp", "sim/play/clipping.cpp"}  # no segments: they ask what their reductions take
TEMPLATE_HEADERS = {"core/lowering/lowering.h", "core/lowering/activations/activation.h"}
EMPTY_NAMES = re.compile(r"(^|_)(utils?|common|helpers?|manager|misc|system)(_|\.|$)")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)


def literals(text):
    """What the string literals of a source say, those without a comment: neighbours joined, escapes resolved."""
    text = re.sub(r"^\s*#\s*include[^\n]*", "", text, flags=re.M)
    for found in LITERAL.finditer(without_comments(text)):
        if found["raw"] is not None:
            yield found["raw"]
            continue
        joined = "".join(part for part in re.findall(r'"((?:[^"\\\n]|\\.)*)"', found["plain"]))
        yield ESCAPED.sub(resolved, joined)


def resolved(escape):
    code = escape[1]
    if code[0] == "x":
        return chr(int(code[1:], 16) % 256)
    return chr(int(code, 8) % 256) if code[0] in "01234567" else code


def without_comments(text):
    """Comments are blanked, literals stay: "//" in a literal begins none."""
    pattern = re.compile(LITERAL.pattern + r"|(?P<comment>//[^\n]*|/\*.*?\*/)", re.S)
    return pattern.sub(lambda found: " " if found["comment"] else found[0], text)


def name_breaches(name, text):
    if not name.startswith(FACTS_ONLY) or name.startswith(NAMES_KNOWN):
        return
    strict = name.startswith(NO_CLASSES)
    for literal in literals(text):
        if KEY.match(literal):
            continue
        asks = any(MODEL_NAMES.match(part) for part in literal.split("."))
        if strict:
            asks = asks or (CLASS_NAME.match(literal) and not NO_CLASS.match(literal)) or NAME_PART.match(literal)
        if asks:
            yield f'{name}: asks for a name of the model, "{literal}": let the Model say it as a fact'
    if strict and name not in CLASS_READERS and CLASS_READ.search(without_comments(text)):
        yield f"{name}: reads a module's class: let the Model say it as a fact (CLASS_READERS in tests/house/check_rules.py)"


def breaches(tree):
    root = pathlib.Path(tree)
    yield from stale_readers(root)
    yield from trap_numbers(root)
    for room, allowed in ARROWS.items():
        for path in sorted(root.glob(f"{room}/**/*")):
            if path.suffix not in (".h", ".cpp", ".cu"):
                continue
            name = path.relative_to(root).as_posix()
            if EMPTY_NAMES.search(path.name.lower()):
                yield f"{name}: the name says nothing about what the file holds"
            text = path.read_text(encoding="utf-8")
            yield from name_breaches(name, text)
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


TRAP = re.compile(r'\{\s*(\d+),\s*(?:fmt::format\()?"([^"]{9,})"')  # {number, "name", ...}
TRAPS_OF_BOTH = {"7"}  # one trap, told in the words of either runtime


def trap_numbers(root):
    """fsdp.allow_traps names a trap by its number: no two have the same."""
    titles = {}
    for path in sorted(root.glob("core/plan/**/*.cpp")):
        for number, title in TRAP.findall(path.read_text(encoding="utf-8")):
            titles.setdefault(number, []).append((title, path.relative_to(root).as_posix()))
    for number, found in sorted(titles.items()):
        if len(found) > 1 and number not in TRAPS_OF_BOTH:
            yield f"{found[1][1]}: trap {number} is taken: " + ", ".join(f'"{title}" ({name})' for title, name in found)


def stale_readers(root):
    """A file of CLASS_READERS that reads no class any more comes off the list."""
    for name in sorted(CLASS_READERS):
        path = root / name
        if path.exists() and not CLASS_READ.search(without_comments(path.read_text(encoding="utf-8"))):
            yield f"{name} reads no class any more: take it off CLASS_READERS in tests/house/check_rules.py"


def main():
    found = list(breaches(sys.argv[1]))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
