#!/usr/bin/env python3
"""Write what C, JavaScript and the documentation say of messages, from the tables in
src/ekiden/rpc/messages.py: runtime/rpc/ek_rpc_table.h, bindings/web/rpc_table.js, docs/rpc.md.

scripts/generate_rpc.py           write the files
scripts/generate_rpc.py --check   write nothing; fail if a file is out of date
"""

import re
import sys
from pathlib import Path

from generated_files import write_or_check

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from ekiden.rpc import messages as table  # noqa: E402
from ekiden.rpc.messages import FIELDS, MESSAGES, VALUES, Kind, Tag  # noqa: E402

HEADER = ROOT / "runtime/rpc/ek_rpc_table.h"
HEAD = """\
/* The messages of sessions, as docs/rpc.md has them.
**
** Generated from src/ekiden/rpc/messages.py by scripts/generate_rpc.py. Do not edit. */
#ifndef EK_RPC_TABLE_H_
#define EK_RPC_TABLE_H_
"""
LIMITS = "VERSION HELLO_LIMIT LEAST_LIMIT DEPTH_LIMIT CALL_DEPTH".split()
SCRIPT = ROOT / "bindings/web/rpc_table.js"
SCRIPT_LIMITS = (
    "VERSION HEADER HELLO_LIMIT FRAME_LIMIT LEAST_LIMIT DEPTH_LIMIT HANDLE_LIMIT".split()
)
PAGE = ROOT / "docs/rpc.md"


def messages() -> str:
    """A row for each message: number, name, letter and name of each field, meaning."""
    rows = ["| | message | fields | |", "|--:|---|---|---|"]
    for row in MESSAGES.values():
        named = zip(row.fields, row.names.split(), strict=True)
        fields = ", ".join(f"{letter} {name}" for letter, name in named)
        rows.append(f"| {row.kind:d} | {row.kind.name} | {fields} | {row.meaning} |")
    return "\n".join(rows)


def fields() -> str:
    """A row for each letter."""
    rows = ["| letter | bytes | |", "|---|---|---|"]
    rows += [f"| {letter} | {form} | {what} |" for letter, (form, _, what) in FIELDS.items()]
    return "\n".join(rows)


def values() -> str:
    """A row for each kind of value."""
    rows = ["| tag | | bytes | |", "|--:|---|---|---|"]
    rows += [f"| {tag:d} | {tag.name} | {form} | {what} |" for tag, (form, what) in VALUES.items()]
    return "\n".join(rows)


def header() -> str:
    """The whole header of C."""
    rows = [
        f'  ROW({row.kind.name}, {row.kind:d}, "{row.fields}", {row.least})'
        for row in MESSAGES.values()
    ]
    limits = ", ".join(f"RPC_{name} = {getattr(table, name)}" for name in LIMITS)
    numbers = [f"  RPC_{kind.name} = {kind:d}," for kind in Kind]
    tags = [f"  RPC_TAG_{tag.name} = {tag:d}," for tag in Tag]
    return "\n".join(
        (
            HEAD,
            f"#define RPC_MAGIC UINT64_C({table.MAGIC:#x})",
            f'#define RPC_PART "{table.PART}"',
            f"enum {{ {limits} }};\n",
            "enum rpc_kind {",
            *numbers,
            "};\n",
            "enum rpc_tag {",
            *tags,
            "};\n",
            "/* Name, number, letters of the fields, fewest bytes of a body. */",
            "#define RPC_MESSAGES(ROW) \\",
            " \\\n".join(rows),
            "",
            "#endif /* EK_RPC_TABLE_H_ */",
            "",
        )
    )


def script() -> str:
    """The whole table of JavaScript."""
    lines = [
        "// The messages of sessions, as docs/rpc.md has them.",
        "//",
        "// Generated from src/ekiden/rpc/messages.py by scripts/generate_rpc.py. Do not edit.",
        "",
        f"export const MAGIC = {table.MAGIC:#x}n;",
    ]
    lines += [f"export const {name} = {getattr(table, name)};" for name in SCRIPT_LIMITS]
    for name, numbers in (("KINDS", Kind), ("TAGS", Tag)):
        lines += ["", f"export const {name} = {{"]
        lines += [f"  {each.name}: {each:d}," for each in numbers] + ["};"]
    lines += ["", "/** By number: name, letters of the fields, fewest bytes of a body. */"]
    lines += ["export const MESSAGES = {"]
    for row in MESSAGES.values():
        about = f"name: '{row.kind.name}', fields: '{row.fields}', least: {row.least}"
        lines.append(f"  {row.kind:d}: {{{about}}},")
    return "\n".join((*lines, "};", ""))


def page() -> str:
    """The page with its tables as they have to be."""
    text = PAGE.read_text(encoding="utf-8")
    tables = {"messages": messages(), "fields": fields(), "values": values()}
    for name, rows in tables.items():
        begin, end = f"<!-- {name}: scripts/generate_rpc.py -->", f"<!-- end of {name} -->"
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        made = f"{begin}\n{rows}\n{end}"
        text, count = re.subn(pattern, lambda _, made=made: made, text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE.name}: expected one place for {name}, got {count}")
    return text


def main() -> int:
    """Write or check; the exit status."""
    return write_or_check({HEADER: header(), SCRIPT: script(), PAGE: page()}, Path(__file__).name)


if __name__ == "__main__":
    sys.exit(main())
