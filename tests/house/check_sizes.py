"""Checks how large things are: folders, files, functions, classes. A file or function that is larger says why where it
stands, "One long function on purpose: ..." (or file), above it or in the paragraph that opens the file. What is to be
split still is in the lists below, which may only shrink: an entry that nothing needs any more is a breach.

usage: check_sizes.py TREE. Prints one line per breach, exits 1 if there is any.
"""
import ast
import pathlib
import re
import sys

ROOMS = ("core", "sim", "exec", "traces", "gui", "shadow", "cli")
TESTS = ("tests", "benchmarks", "python")  # their folders and files; a test's function is a list of what it expects
SOURCES = (".h", ".cpp", ".cu")
PACKAGE = "python/foreshard"  # what ships in Python
FOLDER_FILES, FILE_LINES, FUNCTION_LINES, CLASS_METHODS = 30, 600, 60, 40
REASON = re.compile(r"One long (file|function) on purpose: \w+")
# To be split: class -> methods that it has now.
LARGE_CLASSES = {
}
# To be split: source -> lines that it has now.
LONG_FILES = {
}
# To be split: source -> functions of more than FUNCTION_LINES without a reason.
LONG_FUNCTIONS = {
}

NO_FUNCTION = re.compile(r"^\s*(?:(?:namespace|struct|class|enum|union|extern|public|private|protected|case|default)\b|#|\}|//)")
CLASS = re.compile(r"^(\s*)(?:class|struct)\s+(\w+)(?:\s+final)?(?:\s*:[^;{]*)?\s*\{\s*$")
# A method of a class: a name before "(", at the class's own depth, that is no call, variable or macro.
METHOD = re.compile(r"^\s*(?:\[\[\w+\]\]\s*)?(?:template <.*> )?[\w:<>,&*\s~\[\]]*?(~?\w+|operator\S+)\s*\(")


def indentation(line):
    return len(line) - len(line.lstrip(" "))


def functions(lines):
    """(first line, last line, 0-based) of every function definition of a formatted source."""
    for last, line in enumerate(lines):
        if line.strip() != "}":
            continue
        depth = indentation(line)
        first = last - 1
        while first >= 0 and not (lines[first].strip() and indentation(lines[first]) == depth
                                  and not lines[first].lstrip().startswith(("//", "#"))):
            first -= 1
        if first < 0 or NO_FUNCTION.match(lines[first]):
            continue
        head = ""
        for text in lines[first : last + 1]:
            head += text
            if "{" in text or ";" in text:
                break
        control = re.match(r"\s*(if|for|while|switch|else|do|try|return)\b", lines[first])
        if "(" in head and "{" in head and not control and "= [" not in head and not re.search(r"=\s*\{", head):
            yield first, last


def says_why(lines, first):
    """A reason in the comment right above a line (a template's own line may stand between)."""
    at = first - 1
    while at >= 0 and lines[at].lstrip().startswith("template"):
        at -= 1
    while at >= 0 and lines[at].lstrip().startswith("//"):
        if REASON.search(lines[at]):
            return True
        at -= 1
    return False


def opening_says_why(lines):
    for line in lines:
        if not line.startswith(("//", "#include", "#pragma")) and line.strip():
            return False
        if line.startswith("//") and REASON.search(line):
            return True
    return False


def classes(lines):
    """(name, number of methods) of every class of a source; those of nested classes count for themselves."""
    for at, line in enumerate(lines):
        opened = CLASS.match(line)
        if not opened:
            continue
        depth = indentation(line)
        inside = depth + 2
        count = 0
        for text in lines[at + 1 :]:
            if text.strip().startswith("}") and indentation(text) == depth:
                break
            if indentation(text) != inside or text.lstrip().startswith(("//", "#", "using", "friend", "}", "return")):
                continue
            if METHOD.match(text) and "= default" not in text and "= delete" not in text:
                count += 1
        yield opened[2], count


def length_breaches(name, lines):
    if len(lines) > LONG_FILES.get(name, FILE_LINES) and not opening_says_why(lines):
        yield f"{name}: {len(lines)} lines; split it, or say why in its opening paragraph"
    elif name in LONG_FILES and len(lines) <= FILE_LINES:
        yield f"{name} is no longer long: take it off the list in tests/house/check_sizes.py"


def file_breaches(name, lines):
    yield from length_breaches(name, lines)
    long_ones = [(first, last - first + 1) for first, last in functions(lines)
                 if last - first + 1 > FUNCTION_LINES and not says_why(lines, first)]
    listed = LONG_FUNCTIONS.get(name, 0)
    if len(long_ones) > listed:
        for first, count in long_ones:
            yield f"{name}:{first + 1}: a function of {count} lines; split it, or say why above it"
    elif listed and not long_ones:
        yield f"{name} has no long function any more: take it off the list in tests/house/check_sizes.py"


def class_breaches(name, lines):
    for kind, count in classes(lines):
        listed = LARGE_CLASSES.get(kind, CLASS_METHODS)
        if count > listed:
            yield f"{name}: {kind} has {count} methods, at most {listed}; it is several things"
        elif kind in LARGE_CLASSES and CLASS_METHODS // 2 < count <= CLASS_METHODS:
            yield f"{name}: {kind} is no longer large: take it off the list in tests/house/check_sizes.py"


def package_breaches(root, folders):
    """The same bounds for the package."""
    for path in sorted(root.glob(f"{PACKAGE}/**/*.py")):
        name = path.relative_to(root).as_posix()
        folder = path.parent.relative_to(root).as_posix()
        folders[folder] = folders.get(folder, 0) + 1
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > FILE_LINES:
            yield f"{name}: {text.count(chr(10))} lines; split it"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= FUNCTION_LINES:
                yield f"{name}:{node.lineno}: a function of {node.end_lineno - node.lineno + 1} lines; split it"
            if isinstance(node, ast.ClassDef):
                count = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
                if count > CLASS_METHODS:
                    yield f"{name}: {node.name} has {count} methods, at most {CLASS_METHODS}; it is several things"


def breaches(tree):
    root = pathlib.Path(tree)
    folders = {}
    for room in (*ROOMS, *TESTS):
        for path in sorted(root.glob(f"{room}/**/*")):
            if path.suffix not in SOURCES:
                continue
            name = path.relative_to(root).as_posix()
            folder = path.parent.relative_to(root).as_posix()
            folders[folder] = folders.get(folder, 0) + 1
            lines = path.read_text(encoding="utf-8").splitlines()
            yield from (length_breaches if room in TESTS else file_breaches)(name, lines)
            if room not in TESTS:
                yield from class_breaches(name, lines)
    yield from package_breaches(root, folders)
    for folder, count in sorted(folders.items()):
        if count > FOLDER_FILES:
            yield f"{folder}: {count} sources; make rooms of it"
    if (root / "tests/house/check_sizes.py").exists():
        for name in sorted({*LONG_FUNCTIONS, *LONG_FILES}):
            if not (root / name).exists():
                yield f"{name} is gone: tests/house/check_sizes.py lists it still"


def main():
    found = list(breaches(sys.argv[1]))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
