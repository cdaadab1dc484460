#!/usr/bin/env python3
"""check_errors.py finds an error that says too little, in each of the ways of writing it."""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from check_errors import findings  # noqa: E402

GOOD = [
    'return fail({ErrorCode::NotFound, "gone", path, "", "a file", "nothing", ""});',
    'void f() { Error error; error.message = "m"; error.file = p; error.expected = "x"; }',
    'return fail({.code = ErrorCode::Usage, .message = "m", .place = "--x", .expected = "y"});',
    'Error e(std::string place, std::string expected) { Error error; error.place = place; error.expected = expected;'
    ' error.message = "m"; return error; } void g() { e("a", "b"); }',
]
BAD = [
    'return fail({ErrorCode::NotFound, "gone", path, "", "", "nothing", ""});',
    'return fail({ErrorCode::NotFound, "gone (a, \\"b\\")", "", "", "a file", "nothing", ""});',
    'void f() { Error error; error.message = "m"; error.expected = "x"; }',
    'void f() { Error error; error.message = "m"; error.place = "x"; error.hint = "no expectation"; }',
    'return fail({.code = ErrorCode::Usage, .message = "m", .place = "--x", .expected = {}});',
    'Error e(std::string place, std::string expected) { Error error; error.place = place; error.expected = expected;'
    ' error.message = "m"; return error; } void g() { e("a", ""); }',
]

with tempfile.TemporaryDirectory() as folder:
    source = pathlib.Path(folder) / "x.cpp"
    for texts, wanted in ((GOOD, 0), (BAD, 1)):
        for text in texts:
            source.write_text(text)
            found = [flaw for _, flaw in findings(source) if flaw]
            if len(found) != wanted:
                sys.exit(f"{wanted} flaws wanted, found {found} in: {text}")
