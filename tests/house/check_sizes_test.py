"""The checkers of sizes and of the map must be able to fail: breaks a small tree in each way and expects the breach."""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_map  # noqa: E402
import check_sizes  # noqa: E402

BODY = "  int a = 0;\n" * 70
METHODS = "".join(f"  void method_{i}(int value);\n" for i in range(41))
SIZES = {
    "a function": ({"sim/a.cpp": f"int one(int a,\n        int b) {{\n{BODY}}}\n"}, "a function of 73 lines"),
    "a method": ({"sim/a.h": "class A {\n  int one() const {\n" + "    int a = 0;\n" * 70 + "  }\n};\n"}, "a function of 72 lines"),
    "one with a reason": ({"sim/a.cpp": f"// One long function on purpose: a table.\nint one() {{\n{BODY}}}\n"}, None),
    "a namespace": ({"sim/a.cpp": f"namespace a {{\n{BODY}}}\n"}, None),
    "a class": ({"sim/a.h": f"class A {{\n public:\n{METHODS}}};\n"}, "A has 41 methods"),
    "a class of a source": ({"sim/a.cpp": f"namespace {{\n\nclass A final : public B {{\n public:\n{METHODS}}};\n}}\n"}, "A has 41 methods"),
    "a file": ({"sim/a.cpp": "int a;\n" * 601}, "601 lines"),
    "a file of tests": ({"tests/sim/a_test.cpp": "int a;\n" * 601}, "601 lines"),
    "a test's function": ({"tests/sim/a_test.cpp": f"int one() {{\n{BODY}}}\n"}, None),
    "a folder of tests": ({f"tests/sim/a{i}.h": "" for i in range(31)}, "tests/sim: 31 sources"),
    "a module of the package": ({"python/foreshard/a/b.py": "a = 0\n" * 601}, "601 lines"),
    "a function of the package": ({"python/foreshard/a.py": "def one():\n" + "    a = 0\n" * 60}, "a function of 61 lines"),
    "a class of the package": ({"python/foreshard/a.py": "class A:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(41))}, "A has 41 methods"),
    "a module of its tests": ({"python/tests/a.py": "a = 0\n" * 601}, None),
    "a folder": ({f"sim/a{i}.h": "" for i in range(31)}, "sim: 31 sources"),
}
PLACE = {"docs/architecture.md": "| `sim/` | `sim` | `a.h` | all of it |\n", "sim/CMakeLists.txt": "foreshard_library(sim SOURCES)\n",
         "sim/a.h": ""}
MAPS = {
    "whole": (PLACE, None),
    "no row": (PLACE | {"sim/b/b.h": ""}, "sim/b/ is not in the map"),
    "no face": (PLACE | {"docs/architecture.md": "| `sim/` | `sim` | `b.h` | all |\n"}, "sim/b.h is not there"),
    "no target": (PLACE | {"sim/CMakeLists.txt": ""}, "the target sim of sim/"),
    "no folder": (PLACE | {"docs/architecture.md": PLACE["docs/architecture.md"] + "| `sim/c/` | `c` | `c.h` | c |\n"},
                  "sim/c/ holds no sources"),
}

for breaches, cases in ((check_sizes.breaches, SIZES), (check_map.breaches, MAPS)):
    for case, (files, expected) in cases.items():
        with tempfile.TemporaryDirectory() as tree:
            for name, text in files.items():
                path = pathlib.Path(tree) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            found = list(breaches(tree))
            assert (not found) if expected is None else any(expected in line for line in found), (case, found)
print("the checkers of sizes and of the map can fail")
