"""Runs what a page tells its readers to type, in order, in a folder of its own.

usage: run_console_blocks.py PAGE.md BIN_FOLDER EXAMPLES_FOLDER

Every line that starts with "$ " inside a ```console block is a command; a line that ends with a backslash goes on in the
next one. "# exit N" at its end says that it ends with exit code N; otherwise it must end with 0. The lines below a
command are what the reader is shown. A line there that starts with "..." stands for any lines; otherwise its words
must come in the output in their order, where a word with a digit in it stands for any word (numbers vary). In a block
```console exact``` lines must come as they are shown, numbers and all, on a terminal that can draw.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def commands_of(text):
    """(line number, command, exit code, shown lines, whether they are exact) of a page."""
    found, inside, exact, current = [], False, False, None
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if line.startswith("```"):
            inside, exact, current = line.startswith("```console"), line == "```console exact", None
        elif inside and line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines)[1].strip()
            code = re.search(r"\s+# exit (\d+)$", command)
            current = (number, command[: code.start()] if code else command, int(code[1]) if code else 0, [], exact)
            found.append(current)
        elif inside and current:
            current[3].append(line)
    return found


def word_pattern(word):
    return r"\S+" if re.search(r"\d", word) else re.escape(word)


def shown_pattern(line, exact):
    if exact:
        return re.compile(re.escape(line.rstrip()) + r"\s*$")
    return re.compile(r"\s+".join(word_pattern(word) for word in line.split()))


def missing_line(shown, output, exact):
    """The first shown line that the output does not have behind the ones before it."""
    rest = output.splitlines()
    for line in shown:
        if not line.strip() or line.strip().startswith("..."):
            continue
        pattern = shown_pattern(line, exact)
        for i, got in enumerate(rest):
            if pattern.match(got) if exact else pattern.search(got):
                rest = rest[i + 1 :]
                break
        else:
            return line
    return None


def main():
    page, binaries, examples = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
    commands = commands_of(page.read_text(encoding="utf-8"))
    if not commands:
        print(f"{page.name}: no console block with a command")
        return 1
    environment = dict(os.environ, PATH=f"{binaries}{os.pathsep}{os.environ['PATH']}", NO_COLOR="1", COLUMNS="120")
    drawing = {name: value for name, value in environment.items() if name not in ("NO_COLOR", "COLUMNS")}
    drawing.update(LC_ALL="C.UTF-8", TERM="xterm")
    with tempfile.TemporaryDirectory(prefix="foreshard_docs_") as folder:
        shutil.copytree(examples, pathlib.Path(folder) / "examples")
        for number, command, code, shown, exact in commands:
            run = subprocess.run(["bash", "-c", command], cwd=folder, env=drawing if exact else environment, capture_output=True, text=True,
                                 timeout=600, check=False)
            output = run.stdout + run.stderr
            place = f"{page.name}:{number}: {command}"
            if run.returncode != code:
                print(f"{place}\nexit code {run.returncode}, expected {code}\n{output[-4000:]}")
                return 1
            line = missing_line(shown, output, exact)
            if line is not None:
                print(f"{place}\nthe page shows a line that the output does not have:\n  {line}\n{output[-4000:]}")
                return 1
            print(f"{place}: as shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
