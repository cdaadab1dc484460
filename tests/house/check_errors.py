#!/usr/bin/env python3
"""Every error says where and what was expected: `check_errors.py ROOT [--list]`.

Looks at each place in the sources where an Error is made, in any of the three ways of writing it, and asks for a file or
a place, and for what was expected.
"""
import pathlib
import re
import sys

ROOMS = ["core", "sim", "traces", "exec", "cli", "gui", "shadow"]
FIELDS = ["code", "message", "file", "place", "expected", "got", "hint"]
# Errors without a place or an expectation that are left, by room. Never raise one.
KNOWN = {"core": 0, "sim": 0, "traces": 0, "exec": 0, "cli": 0, "gui": 0, "shadow": 0}


def without_comments(text):
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    return re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.S)


def closing(text, at):
    """Index behind the bracket that closes the one at `at`; strings are stepped over."""
    depth, i = 0, at
    while i < len(text):
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c == "'" and text[i + 2 : i + 3] == "'":
            i += 2
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return len(text)


def arguments(text):
    """The parts of "a, f(b, c), {d}" between commas of the outermost level."""
    parts, start, i = [], 0, 0
    while i < len(text):
        if text[i] in "([{":
            i = closing(text, i)
            continue
        if text[i] == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif text[i] == ",":
            parts.append(text[start:i].strip())
            start = i + 1
        i += 1
    parts.append(text[start:].strip())
    return parts


def enclosing(text, at, opening):
    """Index of the innermost bracket of that kind that is open at `at`, -1 if none."""
    depth = 0
    pairs = {"}": "{", ")": "("}
    for i in range(at - 1, -1, -1):
        if text[i] == {"{": "}", "(": ")"}[opening]:
            depth += 1
        elif text[i] == opening:
            if depth == 0:
                return i
            depth -= 1
    return -1


def empty(argument):
    return argument in ("", '""', "{}", "std::string()")


def flaw_of(fields):
    lacks = []
    if not fields & {"file", "place"}:
        lacks.append("a file or a place")
    if "expected" not in fields:
        lacks.append("what was expected")
    return " and ".join(lacks)


def findings(path):
    """(line, flaw) for every Error that is made in one source."""
    text = without_comments(path.read_text())
    for made in re.finditer(r"(?<![\w.])Error\{|(?:fail|console\.error|return|\()\s*\(?\{(?=ErrorCode::|\s*\.code)", text):
        brace = text.index("{", made.start())
        inside = text[brace + 1 : closing(text, brace) - 1]
        if "ErrorCode" not in inside:
            continue
        if re.match(r"\s*\.\w+ =", inside):
            given = {m.group(1) for m in re.finditer(r'\.(\w+)\s*=(?!\s*(?:\{\}|""))', inside)}
        else:
            given = {name for name, value in zip(FIELDS, arguments(inside)) if not empty(value)}
        yield text.count("\n", 0, made.start()) + 1, flaw_of(given)
    # Error error; error.place = ...; in one function, or Error error = helper(...); with fields behind it.
    for made in re.finditer(r"\bError (\w+)(;|\{ErrorCode[^;]*;)", text):
        name, body_start = made.group(1), enclosing(text, made.start(), "{")
        body = text[made.start() : closing(text, body_start) if body_start >= 0 else len(text)]
        given = {m.group(1) for m in re.finditer(rf"\b{name}\.(\w+)\s*(?:=|\+=)", body)}
        if made.group(2) != ";":
            inside = text[text.index("{", made.start()) + 1 :]
            inside = text[text.index("{", made.start()) + 1 : closing(text, text.index("{", made.start())) - 1]
            given |= {field for field, value in zip(FIELDS, arguments(inside)) if not empty(value)}
        if not given & {"message", "code"} or (given == {"code"}):
            continue
        yield text.count("\n", 0, made.start()) + 1, flaw_of(given)


    # Helpers that are handed what was expected: no caller hands them nothing.
    for made in re.finditer(r"\b(?:Error|tl::unexpected<Error>)\s+(\w+)\(([^;{]*?)\)\s*(?:const\s*)?\{", text):
        names = [re.sub(r"\s*=.*", "", part).split()[-1].strip("&*") for part in arguments(made.group(2)) if part]
        if "expected" not in names:
            continue
        at = names.index("expected")
        for call in re.finditer(rf"(?<![\w.:])(?:\w+\.)?{made.group(1)}\(", text):
            if call.start() <= made.end() and call.end() > made.start():
                continue
            bracket = text.index("(", call.start())
            given = arguments(text[bracket + 1 : closing(text, bracket) - 1])
            if len(given) > at and empty(given[at]) and not any(name.endswith("got") and not empty(value) for name, value in zip(names, given)):
                yield text.count("\n", 0, call.start()) + 1, "what was expected"


def main():
    root = pathlib.Path(sys.argv[1])
    wrong = 0
    for room in ROOMS:
        left = []
        for path in sorted((root / room).rglob("*.cpp")):
            left += [(path, line, flaw) for line, flaw in findings(path) if flaw]
        if "--list" in sys.argv or len(left) > KNOWN[room]:
            for path, line, flaw in left:
                print(f"{path.relative_to(root)}:{line}: this error lacks {flaw}")
        if len(left) != KNOWN[room]:
            verb = "has" if len(left) > KNOWN[room] else "has only"
            print(f"{room} {verb} {len(left)} errors without a place or an expectation, KNOWN says {KNOWN[room]}")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
