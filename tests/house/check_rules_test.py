"""The rule checker itself must be able to fail: breaks a small tree in each way and expects the breach to be named."""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from check_rules import breaches  # noqa: E402

CASES = {
    "core/a.h": ('#include "sim/b.h"\n', "core must not include sim/b.h"),
    "sim/a.cpp": ("#include <boost/graph/adjacency_list.hpp>\n", "boost/graph/adjacency_list.hpp belongs in"),
    "core/string_utils.h": ("#pragma once\n", "says nothing"),
    "traces/a.cpp": ('#include "a.h"\n', "does not name its room"),
    "cli/main.cpp": ('#include "gui/view.h"\n', "cli must not include gui/view.h"),
    "gui/models/a.cpp": ("#include <QWidget>\n", "QWidget belongs in gui/view/"),
    "core/plan/names.cpp": ('bool f(const char* c) { return c == "Embedding"; }\n', '"Embedding": let the Model say it'),
    "core/lowering/names.cpp": ('auto a = ends_with(name, "RMSNorm");\n', '"RMSNorm": let the Model say it'),
    "sim/play/names.cpp": ('auto a = input.name == "attention_mask";\n', '"attention_mask": let the Model say it'),
    # What would slip past a search for whole plain literals:
    "core/plan/raw.cpp": ('auto a = R"(Embedding)";\n', '"Embedding": let the Model say it'),
    "core/plan/joined.cpp": ('auto a = "input_"\n    "ids";\n', '"input_ids": let the Model say it'),
    "core/plan/escaped.cpp": ('auto a = "\\x69nput_ids", b = "\\151nput_ids";\n', '"input_ids": let the Model say it'),
    "core/plan/after_slashes.cpp": ('auto a = "http://x"; auto b = "lm_head";\n', '"lm_head": let the Model say it'),
    "core/plan/part.cpp": ('bool conv = name.starts_with("Conv");\n', '"Conv": let the Model say it'),
    "core/plan/unlisted.cpp": ('bool mine = name == "MyFancyThing";\n', '"MyFancyThing": let the Model say it'),
    "core/lowering/lower_part.cpp": ('bool e = fqn.find("embed_") != fqn.npos;\n', '"embed_": let the Model say it'),
    "sim/play/dotted.cpp": ('bool b = fqn.ends_with(".bias");\n', '".bias": let the Model say it'),
    "core/lowering/by_class.cpp": ("bool f(const ModuleInfo& m) { return is_norm(m.class_name); }\n", "reads a module's class"),
    "core/lowering/by_base.cpp": ("auto n = module->bases.size();\n", "reads a module's class"),
    "core/mesh/names.cpp": ('bool q = fqn == "layers.0.q_proj";\n', 'let the Model say it'),
    "core/elsewhere.h": ('inline constexpr auto kNorm = "LlamaRMSNorm";\n', '"LlamaRMSNorm": let the Model say it'),
    "exec/run/names.cpp": ('auto a = input.name == "labels";\n', '"labels": let the Model say it'),
    "gui/models/names.cpp": ('auto a = name == "lm_head";\n', '"lm_head": let the Model say it'),
    "core/plan/build_plan.cpp": ("int reads_no_class_now;\n", "take it off CLASS_READERS"),
    "core/plan/two_traps.cpp": ('Trap a{61, "one thing that goes wrong"};\nTrap b{61, "another thing"};\n', "trap 61 is taken"),
    "core/model/families/names.cpp": ('auto a = "LlamaRMSNorm";\n', None),
    "core/plan/errors.cpp": ('auto a = "RuntimeError", b = "True", c = "W7"; // "Embedding"\n', None),
    "sim/play/fine.cpp": ('auto a = op.name == "aten.embedding.default"; // "labels"\n', None),
    "cli/reports/a.cpp": ('#include "core/lowering/op_rules.h"\n', "read the segment's template"),
    "sim/play/b.cpp": ('#include "core/lowering/lowering.h"\n', None),
    "sim/clean.cpp": ('#include "core/plan.h"\n#include <vector>\n', None),
}

for file, (text, expected) in CASES.items():
    with tempfile.TemporaryDirectory() as tree:
        path = pathlib.Path(tree) / file
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        found = list(breaches(tree))
        assert (not found) if expected is None else any(expected in line for line in found), (file, found)
print("the rule checker can fail")
