"""Holds the map of docs/architecture.md against the tree: every folder with sources stands there with its CMake target and
the header to begin with, and what stands there exists.

usage: check_map.py TREE. Prints one line per breach, exits 1 if there is any.
"""
import pathlib
import re
import sys

ROOMS = ("core", "sim", "exec", "traces", "gui", "shadow", "cli")
SOURCES = (".h", ".cpp", ".cu")
ROW = re.compile(r"^\| `([\w/]+)/` \| `([\w-]+)` \| `([\w.]+)` \| \S")


def is_made(root, folder, target):
    """The target is made in the folder, in one of those around it, or in one beside it that names the folder's files."""
    pattern = re.compile(rf"(foreshard_library|foreshard_executor|add_library|add_executable)\((foreshard_)?{re.escape(target)}\s")
    lists = [parent / "CMakeLists.txt" for parent in (root / folder, *(root / folder).parents)]
    lists += sorted((root / folder).parent.glob("*/CMakeLists.txt"))
    return any(file.exists() and pattern.search(file.read_text(encoding="utf-8")) for file in lists)


def breaches(tree):
    root = pathlib.Path(tree)
    rows = {}
    for line in (root / "docs/architecture.md").read_text(encoding="utf-8").splitlines():
        if found := ROW.match(line):
            rows[found[1]] = found.groups()
    folders = {path.parent.relative_to(root).as_posix() for room in ROOMS for path in root.glob(f"{room}/**/*")
               if path.suffix in SOURCES}
    for folder in sorted(folders - set(rows)):
        yield f"{folder}/ is not in the map of docs/architecture.md: | `{folder}/` | `target` | `face.h` | what it is |"
    for folder, target, face in rows.values():
        if folder not in folders:
            yield f"docs/architecture.md: {folder}/ holds no sources"
        elif not (root / folder / face).exists():
            yield f"docs/architecture.md: {folder}/{face} is not there"
        elif not is_made(root, folder, target):
            yield f"docs/architecture.md: no CMakeLists.txt makes the target {target} of {folder}/"


def main():
    found = list(breaches(sys.argv[1]))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
