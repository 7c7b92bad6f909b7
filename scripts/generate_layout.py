#!/usr/bin/env python3
"""Generate the C runtime's layouts and constants that Python relies on, from the C headers.

    scripts/generate_layout.py           write both files
    scripts/generate_layout.py --check   write nothing; fail if a file is out of date

The files are src/ekiden/runtime/binding/layout.py, and runtime/src/ek_layout.c, in which the C
compiler holds the same.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY_ROOT = Path(__file__).resolve().parent.parent
LAYOUT_MODULE = REPOSITORY_ROOT / "src/ekiden/runtime/binding/layout.py"
LAYOUT_ASSERTS = REPOSITORY_ROOT / "runtime/src/ek_layout.c"
API, SRC = "runtime/include/ekiden/runtime.h", "runtime/src"

LAID_OUT_STRUCTS = (
    ("ek_object", API), ("ek_dtype", API), ("ek_device", API), ("ek_value", API),
    ("ek_function", API), ("ek_adt", API), ("ek_dltensor", API), ("ek_tensor", API),
    ("ek_native", f"{SRC}/ek_executable.h"),
)  # fmt: skip
"""Structures that compiled code reads, those that others contain first."""
SIGNATURES = f"{SRC}/ek_signature.h"
EXPORTED_ENUMS = (
    ("TypeIndex", "Type indices of ek_value", "EK_NONE", "EK_", API),
    ("DTypeCode", "Type codes of ek_dtype", "EK_DTYPE_INT", "EK_DTYPE_", API),
    ("DeviceType", "Device types", "EK_CPU", "EK_", API),
    ("Section(IntEnum)", "Section kinds of an artifact", "GLOBALS", "", f"{SRC}/ek_executable.c"),
    ("TypeWord", "Words of an encoded type", "EK_TYPE_ANY", "EK_TYPE_", SIGNATURES),
    ("TypeLimit", "Limits of encoded types", "EK_TYPE_NESTING", "EK_TYPE_", SIGNATURES),
    ("DimWord", "Words of an encoded dimension", "EK_DIM_CONST", "EK_DIM_", SIGNATURES),
    ("Event", "Event kinds of a profile", "EK_EVENT_CALL", "EK_EVENT_", f"{SRC}/ek_vm_step.h"),
)  # fmt: skip
"""Enumerations: Python class, what its numbers are, a member, the prefix of the members, and the C
file. Sections of a file are looked up by their numbers and shown by their names; other classes only
hold numbers, as Python takes 8 us a member to make an IntEnum, and every start imports them.
"""
SERVICES_SOURCE = f"{SRC}/ek_services.c"
SERVICE_TABLES = (
    ("\nSERVICES", "Runtime functions that compiled code may import."),
    ("ABI_SERVICES", "Run-time ABI helpers that code for Armv7 may import besides."),
)

LAYOUT_MODULE_HEAD = '''\
"""Layouts and numbers of the C runtime, for Python that writes code and reads bytes.

Generated from the headers by scripts/generate_layout.py, and held by the C compiler in
runtime/src/ek_layout.c. Do not edit.
"""

from enum import IntEnum
'''
PRIMITIVE_SIZES = {
    "int8_t": 1, "uint8_t": 1, "char": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4,
    "uint32_t": 4, "int64_t": 8, "uint64_t": 8, "double": 8,
}  # fmt: skip
POINTER_SIZED_TYPES = ("size_t", "ek_packed")
ILP32_STRUCTS = ("ek_dltensor", "ek_native")
"""What code reads where pointers have 4 bytes, beside what lies the same on both."""


class StructLayout(NamedTuple):
    """Size, alignment and member offsets of a C structure."""

    size: int
    alignment: int
    members: dict[str, int]


def read_without_comments(path: str) -> str:
    """Return a C file without its comments."""
    return re.sub(r"/\*.*?\*/", "", (REPOSITORY_ROOT / path).read_text(), flags=re.DOTALL)


def parse_struct_layout(
    name: str, path: str, layouts: dict[str, StructLayout], width: int
) -> StructLayout:
    """Return the layout of a C structure, for pointers of `width` bytes."""
    struct_match = re.search(
        rf"typedef struct {name} \{{(.*?)\}} {name};", read_without_comments(path), re.DOTALL
    )
    if struct_match is None:
        raise SystemExit(f"{path}: there is no structure {name}")
    body = re.sub(
        r"union \{(.*?)\}", _make_union_replacer(layouts, width), struct_match[1], flags=re.DOTALL
    )
    members, at, alignment = {}, 0, 1
    for declaration in filter(None, map(str.strip, body.split(";"))):
        for member, size, align in _iter_members(declaration, layouts, width):
            # C's layout rule: each member at a multiple of its alignment.
            at += -at % align
            members[member] = at
            at += size
            alignment = max(alignment, align)
    # The size is padded to the alignment, so that arrays of the structure stay aligned.
    return StructLayout(at + -at % alignment, alignment, members)


def _make_union_replacer(layouts: dict[str, StructLayout], width: int) -> object:
    """Return a replacement function that turns a union into an integer type of its widest member's
    size.
    """

    def replace(match: re.Match[str]) -> str:
        """Return the type that stands in for a union; only its width matters to readers."""
        declared = filter(None, map(str.strip, match[1].split(";")))
        members = [
            union_member
            for declaration in declared
            for union_member in _iter_members(declaration, layouts, width)
        ]
        return {4: "int32_t", 8: "int64_t"}[max(size for _, size, _ in members)]

    return replace


def _iter_members(
    declaration: str, layouts: dict[str, StructLayout], width: int
) -> Iterator[tuple[str, int, int]]:
    """Yield (name, size, alignment) for each member of a declaration."""
    if call := re.search(r"\(\*(\w+)\)", declaration):
        yield call[1], width, width
        return
    kind, names = re.fullmatch(r"((?:const |struct )*\w+)\b(.*)", declaration, re.DOTALL).groups()  # type: ignore[union-attr]
    kind = kind.split()[-1]
    inner = layouts.get(kind)
    plain_size = width if kind in POINTER_SIZED_TYPES else PRIMITIVE_SIZES.get(kind, 0)
    size, align = (inner.size, inner.alignment) if inner else (plain_size,) * 2
    for declarator in names.split(","):
        name = re.search(r"\w+(?=\s*(?:\[\w*\])?\s*$)", declarator)
        if name is None:
            raise SystemExit(f"cannot read the declaration '{declaration}'")
        count = re.search(r"\[(\w*)\]", declarator)
        if "*" in declarator:
            yield name[0], width, width
        elif not align:
            raise SystemExit(f"the type of '{declaration}' is not known")
        else:
            yield name[0], size * int(count[1] or 0) if count else size, align


def parse_enum(member: str, prefix: str, path: str) -> dict[str, int]:
    """Return the constants of the enumeration that contains a member, without their prefix."""
    for enumeration in re.finditer(r"enum\s*\w*\s*\{([^}]*)\}", read_without_comments(path)):
        rows = [entry.strip() for entry in enumeration[1].split(",") if entry.strip()]
        if member not in [row.split("=")[0].strip() for row in rows]:
            continue
        values: dict[str, int] = {}
        for row in rows:
            name, _, value = map(str.strip, row.partition("="))
            values[name] = int(value) if value else max(values.values(), default=-1) + 1
        return {name.removeprefix(prefix): value for name, value in values.items()}
    raise SystemExit(f"{path}: there is no enumeration with {member}")


def parse_services() -> tuple[list[str], list[str]]:
    """Return the runtime functions that compiled code may import on every processor, and those for
    processors that lack an instruction.
    """
    table = re.search(
        r"services\[\] = \{(.*?)\n\};", (REPOSITORY_ROOT / SERVICES_SOURCE).read_text(), re.DOTALL
    )
    assert table is not None, "ek_services.c has the table"
    everywhere, _, somewhere = table[1].partition("#if defined")
    rows = re.compile(r'^ *\{"(\w+)", ', re.MULTILINE)
    return rows.findall(everywhere), rows.findall(somewhere)


def python_class_name(name: str) -> str:
    """Return the Python class name of a C structure: `ek_dltensor` becomes `DLTensor`."""
    text = name.removeprefix("ek_")
    return {"dltensor": "DLTensor", "adt": "ADT", "dtype": "DType"}.get(text, text.capitalize())


def emit_struct_class(title: str, name: str, struct_layout: StructLayout) -> list[str]:
    """Return the Python class of a structure."""
    lines = [f"    {member.upper()} = {at}" for member, at in struct_layout.members.items()]
    summary = f'"""Struct layout of {name}: its size and member offsets in bytes."""'
    return [
        f"\n\nclass {title}:\n    {summary}\n\n    BYTES = {struct_layout.size}\n",
        "\n".join(lines) + "\n",
    ]


def select_by_pointer_width(wide: int, narrow: int) -> str:
    """Return a C expression for a constant that depends on the pointer width."""
    return str(wide) if wide == narrow else f"EK_BY_WIDTH({wide}, {narrow})"


def generate_files() -> tuple[str, str]:
    """Return the generated Python module and the C file of static assertions."""
    wide: dict[str, StructLayout] = {}
    narrow: dict[str, StructLayout] = {}
    module, asserts = [LAYOUT_MODULE_HEAD], []
    for name, path in LAID_OUT_STRUCTS:
        wide[name] = wide_layout = parse_struct_layout(name, path, wide, 8)
        narrow[name] = narrow_layout = parse_struct_layout(name, path, narrow, 4)
        module += emit_struct_class(python_class_name(name), name, wide_layout)
        if name in ILP32_STRUCTS:
            about = f"{name} with 4-byte pointers"
            module += emit_struct_class(f"{python_class_name(name)}32", about, narrow_layout)
        size = select_by_pointer_width(wide_layout.size, narrow_layout.size)
        asserts.append(f'static_assert(sizeof({name}) == {size}, "{name}");')
        asserts += [
            f"static_assert(offsetof({name}, {member}) == "
            f"{select_by_pointer_width(at, narrow_layout.members[member])},"
            f' "{name}.{member}");'
            for member, at in wide_layout.members.items()
        ]
    for title, about, member, prefix, path in EXPORTED_ENUMS:
        values = parse_enum(member, prefix, path)
        names = {k: v for k, v in values.items() if k != "SECTIONS"}
        summary = f'"""{about}, numbered as in {Path(path).name}."""'
        module.append(f"\n\nclass {title}:\n    {summary}\n\n")
        module.append("".join(f"    {name} = {value}\n" for name, value in names.items()))
        if path.endswith(".h"):
            asserts += [
                f'static_assert({prefix}{name} == {value}, "{prefix}{name}");'
                for name, value in names.items()
            ]
    for (title, about), rows in zip(SERVICE_TABLES, parse_services(), strict=True):
        listed = "".join(f'    "{name}",\n' for name in rows)
        module.append(f'\n{title} = (\n{listed})\n"""{about}"""\n')
    head = (
        "/* Layouts and numbers as src/ekiden/runtime/binding/layout.py has them: code that\n"
        "** Python writes relies on these. Generated by scripts/generate_layout.py. */\n"
        '#include "ek_signature.h"\n#include "ek_vm_step.h"\n\n'
    )
    return "".join(module), head + "\n".join(asserts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them; return the exit status."""
    pairs = zip((LAYOUT_MODULE, LAYOUT_ASSERTS), generate_files(), strict=True)
    stale = [(path, text) for path, text in pairs if not path.exists() or path.read_text() != text]
    for path, text in stale:
        if "--check" in arguments:
            name = path.relative_to(REPOSITORY_ROOT)
            print(f"{name} is out of date: run scripts/generate_layout.py")
        else:
            path.write_text(text)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
