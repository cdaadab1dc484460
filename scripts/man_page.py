#!/usr/bin/env python3
"""Makes a man page of what a program says with --help (stdin): man_page.py NAME VERSION."""

import re
import sys

SECTIONS = ("Positionals:", "Options:", "Subcommands:", "Verbs:", "Example:", "Examples:")


def plain(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + text if text[:1] in (".", "'") else text


def page(name: str, version: str, lines: list[str]) -> str:
    about = next((line for line in lines if line and not line.startswith("Usage:")), "")
    usage = next((line.removeprefix("Usage:").strip() for line in lines if line.startswith("Usage:")), name)
    out = [f'.TH {name.upper()} 1 "" "foreshard {version}" "Foreshard"', ".SH NAME", f"{plain(name)} \\- {plain(about)}"]
    out += [".SH SYNOPSIS", f".B {plain(usage)}"]
    section = ""
    for line in lines:
        if not line or line == about or line.startswith("Usage:"):
            if not line and section in ("", "DESCRIPTION") and out[-1] != ".PP" and section:
                out.append(".PP")
            continue
        if line.strip() in SECTIONS:
            section = line.strip().rstrip(":").upper()
            out.append(f".SH {section}")
            continue
        entry = re.match(r"^  (\S.*?)(?:\s{2,}(.*))?$", line)
        if entry and section not in ("", "DESCRIPTION", "EXAMPLE", "EXAMPLES"):
            out += [".TP", f".B {plain(entry[1])}", *([plain(entry[2])] if entry[2] else [])]
        elif line.startswith("  ") and section in ("EXAMPLE", "EXAMPLES"):
            out += [".nf", plain(line.strip()), ".fi"]
        elif line.startswith(" "):
            out.append(plain(line.strip()))
        else:
            if section != "DESCRIPTION":
                section = "DESCRIPTION"
                out.append(".SH DESCRIPTION")
            out.append(plain(line))
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1], sys.argv[2], sys.stdin.read().splitlines()))
