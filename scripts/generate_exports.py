"""Generate the lazy-export tables: the defining module of each name of a package, of each Relay
operator, and of each ONNX converter.

    python scripts/generate_exports.py [--check]

What a package offers is read from the imports under `if TYPE_CHECKING:` in its `__init__.py` and
from the `__all__` of its modules; which module declares an operator is seen while all are imported.
With --check nothing is written; the exit status is 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType

from ekiden._lazy import load_deferred
from ekiden.ir import op

MAX_LINE_LENGTH = 100
SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGES = (
    "ekiden.arith",
    "ekiden.codegen.llvm",
    "ekiden.relay.analysis",
    "ekiden.relay.op.nn",
    "ekiden.tir.transform",
    "ekiden.topi",
    "ekiden.topi.nn",
)
OPERATORS = "ekiden.relay.op"
"""The package beside whose names the operators stand."""
CONVERTERS_PACKAGE = "ekiden.frontend.onnx.converters"
"""The package whose modules have rows for operators of ONNX."""


def iter_exports(package: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of everything that a package exports; "" is the package itself."""
    tree = ast.parse((SOURCE / package.replace(".", "/") / "__init__.py").read_text("utf-8"))
    for block in tree.body:
        if not (isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"):
            continue
        for statement in block.body:
            assert isinstance(statement, ast.ImportFrom) and statement.module, package
            for each in statement.names:
                yield from _names(package, statement.module, each)


def _names(package: str, module: str, each: ast.alias) -> Iterator[tuple[str, str]]:
    if each.name == "*":
        yield from ((module, name) for name in read_dunder_all(module))
    else:
        # `import name as name` is how a package exports a name to type checkers (PEP 484).
        is_renamed = each.asname not in (None, each.name)
        name = f"{each.asname}:{each.name}" if is_renamed else each.name
        yield "" if module == package else module, name


def read_dunder_all(module: str) -> list[str]:
    """Return the `__all__` of a module by parsing its source, without importing it."""
    tree = ast.parse((SOURCE / f"{module.replace('.', '/')}.py").read_text("utf-8"))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(statement.value)]
    raise ValueError(f"{module} has no __all__")


def operators_by_module() -> dict[str, str]:
    """Return the module that declares each operator."""
    found: dict[str, str] = {}
    register = op.register_op_name

    def note(name: str) -> op.Op:
        """Notes whose module is being imported."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        assert frame is not None
        found[name] = str(frame.f_globals["__name__"])
        return register(name)

    op.register_op_name = note
    for file in sorted((SOURCE / OPERATORS.replace(".", "/")).rglob("*.py")):
        if file.stem != "__init__":
            import_module(".".join(file.relative_to(SOURCE).with_suffix("").parts))
    load_deferred()
    return {name: home for name, home in found.items() if home.startswith("ekiden.relay.")}


def render_converter_table() -> str:
    """Return the text of the file that lists the ONNX operators of each converter family."""
    homes: dict[str, str] = {}
    for file in sorted(exports_file_path(CONVERTERS_PACKAGE).parent.glob("*.py")):
        if file.stem in ("__init__", "_exports"):
            continue
        for row in getattr(import_module(f"{CONVERTERS_PACKAGE}.{file.stem}"), "ROWS", ()):
            name = f"{row.domain}:{row.op_type}" if row.domain else row.op_type
            if homes.setdefault(name, file.stem) != file.stem:
                raise ValueError(f"rows of {name} in {homes[name]} and {file.stem}")
    said = (
        '"""Which operators of ONNX each family converts. Made by scripts/generate_exports.py."""\n'
    )
    rows = group_by_module(CONVERTERS_PACKAGE, ((home, name) for name, home in homes.items()))
    return "\n".join(
        [said, format_table("ROWS", rows, "Family -> its operators, behind their domain.")]
    )


def format_table(name: str, rows: Mapping[str, list[str]], what: str) -> str:
    """Format a table of modules and names as Python."""
    lines = [f"{name} = {{"]
    for home, names in rows.items():
        one_line = f'    "{home}": "{" ".join(sorted(names))}",'
        if len(one_line) <= MAX_LINE_LENGTH:
            lines.append(one_line)
            continue
        wrapped = textwrap.wrap(" ".join(sorted(names)), 88, break_on_hyphens=False)
        lines += [f'    "{home}": """', *(f"        {line}" for line in wrapped), '    """,']
    return "\n".join([*lines, "}", f'"""{what}"""', ""])


def group_by_module(package: str, pairs: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """Group the names by modules, these by their names within the package."""
    found: dict[str, list[str]] = {}
    for home, name in sorted(set(pairs)):
        found.setdefault(home.removeprefix(f"{package}."), []).append(name)
    return found


def render_exports_file(package: str, operators: Mapping[str, str] | None) -> str:
    """Return the text of a package's file, with the operators where they are given."""
    parts = [
        f'"""Where the names of `{package}` stand. Made by scripts/generate_exports.py."""\n',
        format_table(
            "EXPORTED_NAMES",
            group_by_module(package, iter_exports(package)),
            "Module -> its names.",
        ),
    ]
    if operators is not None:
        homes = group_by_module("", ((home, name) for name, home in operators.items()))
        parts.append(
            format_table("OPERATORS_BY_MODULE", homes, "Module -> the operators that it declares.")
        )
    return "\n".join(parts)


def main() -> int:
    """Write the files, or compare them. The names come first: operators are found by importing
    what uses these."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    if not check:
        for package in (*PACKAGES, OPERATORS):
            exports_file_path(package).write_text(
                render_exports_file(package, {} if package == OPERATORS else None)
            )
    status = 0
    for package in (*PACKAGES, OPERATORS, CONVERTERS_PACKAGE):
        path = exports_file_path(package)
        if package == CONVERTERS_PACKAGE:
            text = render_converter_table()
        else:
            text = render_exports_file(
                package, operators_by_module() if package == OPERATORS else None
            )
        if not check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            print(f"{path}: out of date: python scripts/generate_exports.py")
            status = 1
    return status


def exports_file_path(package: str) -> Path:
    """Return the file of a package."""
    return SOURCE / package.replace(".", "/") / "_exports.py"


if __name__ == "__main__":
    sys.exit(main())
