#!/usr/bin/env python3
"""Generate the message tables in C, JavaScript and the documentation from
src/ekiden/rpc/messages.py: runtime/rpc/ek_rpc_table.h, bindings/web/rpc_table.js, docs/rpc.md;
and of system calls and variables of sessions, from src/ekiden/rpc/syscall_filter.py:
runtime/rpc/ek_rpc_calls.h, runtime/rpc/ek_rpc_variables.h, docs/sandbox-calls.md.

    scripts/generate_rpc.py           write the files
    scripts/generate_rpc.py --check   write nothing; fail if a file is out of date
"""

import re
import sys
from pathlib import Path

from generated_files import write_or_check

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY_ROOT / "src"))

from ekiden.rpc import messages as table  # noqa: E402
from ekiden.rpc.messages import FIELD_TYPES, MESSAGES, VALUE_TYPES, Kind, ValueTag  # noqa: E402
from ekiden.rpc.syscall_filter import (  # noqa: E402
    ALLOWED_CALLS,
    CALL_GROUPS,
    DEVICE_IOCTLS,
    ENOSYS_CALLS,
    FOLDER_VARIABLES,
    INHERITED_VARIABLES,
    OWN_PROCESS_MARK,
    ArgumentTest,
    SyscallRule,
)

MESSAGE_TABLE_HEADER = REPOSITORY_ROOT / "runtime/rpc/ek_rpc_table.h"
MESSAGE_TABLE_HEAD = """\
/* The messages of sessions, as docs/rpc.md has them.
**
** Generated from src/ekiden/rpc/messages.py by scripts/generate_rpc.py. Do not edit. */
#ifndef EK_RPC_TABLE_H_
#define EK_RPC_TABLE_H_
"""
MESSAGE_TABLE_SCRIPT = REPOSITORY_ROOT / "bindings/web/rpc_table.js"
LIMITS = {
    "VERSION": table.PROTOCOL_VERSION,
    "HEADER": table.FRAME_HEADER_BYTES,
    "HELLO_LIMIT": table.MAX_HELLO_BYTES,
    "FRAME_LIMIT": table.DEFAULT_MAX_FRAME_BYTES,
    "LEAST_LIMIT": table.MIN_FRAME_LIMIT_BYTES,
    "DEPTH_LIMIT": table.MAX_VALUE_DEPTH,
    "HANDLE_LIMIT": table.MAX_HANDLES,
    "CALL_DEPTH": table.MAX_CALL_DEPTH,
}
"""Name of a limit in C and JavaScript -> its value."""
C_LIMIT_NAMES = "VERSION HELLO_LIMIT LEAST_LIMIT DEPTH_LIMIT CALL_DEPTH".split()
JAVASCRIPT_LIMIT_NAMES = (
    "VERSION HEADER HELLO_LIMIT FRAME_LIMIT LEAST_LIMIT DEPTH_LIMIT HANDLE_LIMIT".split()
)
RPC_PAGE = REPOSITORY_ROOT / "docs/rpc.md"
SYSCALL_TABLE_HEADER = REPOSITORY_ROOT / "runtime/rpc/ek_rpc_calls.h"
SYSCALL_TABLE_HEAD = """\
/* The system calls of sessions, as docs/sandbox-calls.md has them.
**
** Generated from src/ekiden/rpc/syscall_filter.py by scripts/generate_rpc.py. Do not edit. */
#ifndef EK_RPC_CALLS_H_
#define EK_RPC_CALLS_H_

/* A test of an argument: its bits of 'mask' are one of 'values', or with 'forbids' none of them. */
typedef struct rpc_test {
  unsigned char argument, is_upper, forbids, count;
  unsigned mask, values[6];
} rpc_test;

/* A call, and its tests: 'count' of rpc_tests from 'first' on, all of which must hold. */
typedef struct rpc_call {
  unsigned number;
  unsigned char first, count;
} rpc_call;

enum { RPC_OWN_PROCESS = 0x7FFFFFFF }; /* among values: the number of the session's process */
"""
ENVIRONMENT_HEADER = REPOSITORY_ROOT / "runtime/rpc/ek_rpc_variables.h"
SANDBOX_PAGE = REPOSITORY_ROOT / "docs/sandbox-calls.md"
SANDBOX_PAGE_HEAD = """\
# System calls of a session

<!-- Generated from src/ekiden/rpc/syscall_filter.py by scripts/generate_rpc.py. Do not edit. -->

A session of either server, in Python or C, may make these calls of Linux and no others: what is
not listed fails with EPERM. A row with a condition passes where all of its conditions hold;
arguments count from 0. The list is for all processors: names that one lacks count for nothing
there. `tests/security` calls every number from inside a session, and compares what passes with this
table. [What a session may do](security.md#servers).
"""


def message_table() -> str:
    """Return a Markdown table of the messages: number, name, fields and meaning."""
    rows = ["| | message | fields | |", "|--:|---|---|---|"]
    for row in MESSAGES.values():
        named = zip(row.fields, row.names.split(), strict=True)
        fields = ", ".join(f"{letter} {name}" for letter, name in named)
        rows.append(f"| {row.kind:d} | {row.kind.name} | {fields} | {row.meaning} |")
    return "\n".join(rows)


def field_table() -> str:
    """Return a table with a row per field letter."""
    rows = ["| letter | bytes | |", "|---|---|---|"]
    rows += [f"| {letter} | {form} | {what} |" for letter, (form, _, what) in FIELD_TYPES.items()]
    return "\n".join(rows)


def value_table() -> str:
    """Return a table with a row per kind of value."""
    rows = ["| tag | | bytes | |", "|--:|---|---|---|"]
    rows += [
        f"| {tag:d} | {tag.name} | {form} | {what} |" for tag, (form, what) in VALUE_TYPES.items()
    ]
    return "\n".join(rows)


def emit_message_header() -> str:
    """Return the C header."""
    rows = [
        f'  ROW({row.kind.name}, {row.kind:d}, "{row.fields}", {row.min_body_bytes})'
        for row in MESSAGES.values()
    ]
    limits = ", ".join(f"RPC_{name} = {LIMITS[name]}" for name in C_LIMIT_NAMES)
    numbers = [f"  RPC_{kind.name} = {kind:d}," for kind in Kind]
    tags = [f"  RPC_TAG_{tag.name} = {tag:d}," for tag in ValueTag]
    return "\n".join(
        (
            MESSAGE_TABLE_HEAD,
            f"#define RPC_MAGIC UINT64_C({table.PROTOCOL_MAGIC:#x})",
            f'#define RPC_PART "{table.UPLOAD_SUFFIX}"',
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


def emit_message_script() -> str:
    """Return the JavaScript module."""
    lines = [
        "// The messages of sessions, as docs/rpc.md has them.",
        "//",
        "// Generated from src/ekiden/rpc/messages.py by scripts/generate_rpc.py. Do not edit.",
        "",
        f"export const MAGIC = {table.PROTOCOL_MAGIC:#x}n;",
    ]
    lines += [f"export const {name} = {LIMITS[name]};" for name in JAVASCRIPT_LIMIT_NAMES]
    for name, numbers in (("KINDS", Kind), ("TAGS", ValueTag)):
        lines += ["", f"export const {name} = {{"]
        lines += [f"  {member.name}: {member:d}," for member in numbers] + ["};"]
    lines += ["", "/** By number: name, letters of the fields, fewest bytes of a body. */"]
    lines += ["export const MESSAGES = {"]
    for row in MESSAGES.values():
        about = f"name: '{row.kind.name}', fields: '{row.fields}', least: {row.min_body_bytes}"
        lines.append(f"  {row.kind:d}: {{{about}}},")
    return "\n".join((*lines, "};", ""))


def _syscall_macro(name: str) -> str:
    """Return the C macro of a system call's number, such as SYS_read."""
    return name if name.startswith("__") else f"SYS_{name}"


def _emit_argument_test(test: ArgumentTest) -> str:
    """Return an argument test as a C initializer."""
    names = ("RPC_OWN_PROCESS" if value == OWN_PROCESS_MARK else value for value in test.values)
    values = ", ".join(f"(unsigned)({name})" if "_" in name else name for name in names)
    mask = f"(unsigned)({test.mask})" if test.mask else "0xFFFFFFFF"
    flags = (
        f"{test.argument_index}, {test.tests_upper_half:d}, {test.is_negated:d}, {len(test.values)}"
    )
    return f"    {{{flags}, {mask}, {{{values}}}}},"


def emit_syscall_header() -> str:
    """Return the whole header of system calls."""
    tests: list[ArgumentTest] = []
    rows: list[str] = []
    for call in ALLOWED_CALLS:
        # Calls with equal tests share one run of the table, which the seccomp filter walks.
        begin = next(
            (
                position
                for position in range(len(tests))
                if _matches_tests_at(tests, position, call)
            ),
            len(tests),
        )
        if call.tests and begin == len(tests):
            tests += call.tests
        first = begin if call.tests else 0
        macro = _syscall_macro(call.name)
        rows += [f"#ifdef {macro}", f"    {{{macro}, {first}, {len(call.tests)}}},", "#endif"]
    refused = [
        line
        for name in ENOSYS_CALLS
        for line in (f"#ifdef SYS_{name}", f"    SYS_{name},", "#endif")
    ]
    return "\n".join(
        (
            SYSCALL_TABLE_HEAD,
            "static const rpc_test rpc_tests[] = {",
            *map(_emit_argument_test, tests),
            "};\n",
            "static const rpc_call rpc_calls[] = {",
            *rows,
            "};\n",
            "/* Refused as if the kernel had none. */",
            "static const unsigned rpc_fallbacks[] = {",
            *refused,
            "};\n",
            "/* Requests of ioctl to devices: one of these tests holds. */",
            "static const rpc_test rpc_device_requests[] = {",
            *map(_emit_argument_test, DEVICE_IOCTLS),
            "};\n",
            "#endif /* EK_RPC_CALLS_H_ */",
            "",
        )
    )


def emit_environment_header() -> str:
    """Return the whole header of variables."""
    return "\n".join(
        (
            "/* Of the environment of its server a session has these variables.",
            "**",
            "** Generated from src/ekiden/rpc/syscall_filter.py by scripts/generate_rpc.py. "
            "Do not edit. */",
            "#ifndef EK_RPC_VARIABLES_H_",
            "#define EK_RPC_VARIABLES_H_\n",
            "/* The first are of folders of libraries, which a session may read. */",
            f"enum {{ RPC_FOLDER_VARIABLES = {len(FOLDER_VARIABLES)} }};\n",
            "static const char *const rpc_variables[] = {",
            *(f'    "{name}",' for name in INHERITED_VARIABLES),
            "};\n",
            "#endif /* EK_RPC_VARIABLES_H_ */",
            "",
        )
    )


def _matches_tests_at(tests: list[ArgumentTest], begin: int, call: SyscallRule) -> bool:
    """Return whether a call's tests occur in the table from this index on."""
    return bool(call.tests) and tuple(tests[begin : begin + len(call.tests)]) == call.tests


def _describe_argument_test(test: ArgumentTest) -> str:
    """Return a test as text of the page."""
    half = "upper half of " if test.tests_upper_half else ""
    values = " or ".join(f"`{value}`" for value in test.values)
    mask = test.mask.replace("|", r"\|")
    bits = f" & `{mask}`" if mask else ""
    return (
        f"{half}argument {test.argument_index}{bits} is {'not ' if test.is_negated else ''}{values}"
    )


def emit_sandbox_page() -> str:
    """Return the whole page of system calls."""
    lines = [SANDBOX_PAGE_HEAD]
    for group, calls in CALL_GROUPS.items():
        plain = ", ".join(f"`{call.name}`" for call in calls if not call.tests)
        lines += [f"## {group.capitalize()}", ""]
        if plain:
            lines += [f"Always: {plain}.", ""]
        limited = [call for call in calls if call.tests]
        if limited:
            lines += ["| call | passes where | |", "|---|---|---|"]
            for call in limited:
                tests = "; ".join(map(_describe_argument_test, call.tests))
                lines.append(f"| `{call.name}` | {tests} | {call.reason} |")
            lines.append("")
    names = ", ".join(f"`{name}`" for name in ENOSYS_CALLS)
    requests = "; or ".join(map(_describe_argument_test, DEVICE_IOCTLS))
    variables = ", ".join(f"`{name}`" for name in INHERITED_VARIABLES)
    lines += [
        "## Otherwise", "",
        f"{names} fail with ENOSYS, so that libraries use the older calls that a filter can read.",
        f"A session whose machine has a GPU also passes `ioctl` where {requests}: for drivers.",
        f"Of the environment of its server a session has {variables}.",
        "Calls of another ABI (x32, 32-bit) end the session.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def updated_page() -> str:
    """Return the documentation page with its tables updated."""
    text = RPC_PAGE.read_text(encoding="utf-8")
    tables = {"messages": message_table(), "fields": field_table(), "values": value_table()}
    for name, rows in tables.items():
        begin, end = f"<!-- {name}: scripts/generate_rpc.py -->", f"<!-- end of {name} -->"
        pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
        section = f"{begin}\n{rows}\n{end}"
        text, count = re.subn(
            pattern, lambda _, replacement=section: replacement, text, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"{RPC_PAGE.name}: expected one place for {name}, got {count}")
    return text


def main() -> int:
    """Write the files, or with --check compare them; return the exit status."""
    files = {
        MESSAGE_TABLE_HEADER: emit_message_header(),
        MESSAGE_TABLE_SCRIPT: emit_message_script(),
        RPC_PAGE: updated_page(),
        SYSCALL_TABLE_HEADER: emit_syscall_header(),
        ENVIRONMENT_HEADER: emit_environment_header(),
        SANDBOX_PAGE: emit_sandbox_page(),
    }
    return write_or_check(files, Path(__file__).name)


if __name__ == "__main__":
    sys.exit(main())
