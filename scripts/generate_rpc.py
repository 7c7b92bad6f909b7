#!/usr/bin/env python3
"""Write what the documentation says of messages, from the tables in src/ekiden/rpc/messages.py.

scripts/generate_rpc.py           write the tables of docs/rpc.md
scripts/generate_rpc.py --check   write nothing; fail if the page is out of date
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from ekiden.rpc.messages import FIELDS, MESSAGES, VALUES  # noqa: E402

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


def page() -> str:
    """The page with its tables as they have to be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("messages", messages()), ("fields", fields()), ("values", values())):
        begin, end = f"<!-- {name}: scripts/generate_rpc.py -->", f"<!-- end of {name} -->"
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        made = f"{begin}\n{table}\n{end}"
        text, count = re.subn(pattern, lambda _, made=made: made, text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE.name}: expected one place for {name}, got {count}")
    return text


def main() -> int:
    """Write or check; the exit status."""
    made = page()
    if PAGE.read_text(encoding="utf-8") == made:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/rpc.md is out of date: run scripts/generate_rpc.py")
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
