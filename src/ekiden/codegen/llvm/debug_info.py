"""DWARF debug information as LLVM metadata: the line of the printed loop program that each
instruction comes from.

The metadata of LLVM, in the form that becomes DWARF 4: one compile unit and file per module, one
subprogram per function, one location per line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ekiden.codegen.llvm.quoting import quote_name
from ekiden.tir.stmt import PrimFunc, Stmt


class DebugInfo:
    """Line table of one module: its statements' lines in the text at `path`."""

    def __init__(self, path: Path, lines: Mapping[Stmt, int]) -> None:
        self.lines = lines
        self._nodes = [
            'distinct !DICompileUnit(language: DW_LANG_C99, file: !1, producer: "ekiden",'
            " isOptimized: true, runtimeVersion: 0, emissionKind: FullDebug)",
            f"!DIFile(filename: {quote_name(path.name)},"
            f" directory: {quote_name(str(path.parent))})",
            "!DISubroutineType(types: !{null})",
            '!{i32 2, !"Debug Info Version", i32 3}',
            '!{i32 7, !"Dwarf Version", i32 4}',
        ]
        self._locations: dict[tuple[int, int], int] = {}

    def first_line(self, func: PrimFunc) -> int:
        """Return the line of a function's header."""
        return max(self.lines.get(func.body, 2) - 1, 1)

    def _add_metadata(self, text: str) -> int:
        self._nodes.append(text)
        return len(self._nodes) - 1

    def subprogram(self, name: str, line: int) -> int:
        """Add a function's DISubprogram and return its node number."""
        return self._add_metadata(
            f"distinct !DISubprogram(name: {quote_name(name)}, scope: !1, file: !1, line: {line},"
            f" type: !2, scopeLine: {line}, spFlags: DISPFlagDefinition, unit: !0)"
        )

    def location(self, subprogram: int, line: int) -> str:
        """Return the `!dbg` suffix of an instruction on a line of a function."""
        key = (subprogram, line)
        if key not in self._locations:
            self._locations[key] = self._add_metadata(
                f"!DILocation(line: {line}, column: 0, scope: !{subprogram})"
            )
        return f", !dbg !{self._locations[key]}"

    def text(self) -> str:
        """Return the metadata at the end of the module."""
        nodes = [f"!{n} = {text}" for n, text in enumerate(self._nodes)]
        return "\n".join(["!llvm.dbg.cu = !{!0}", "!llvm.module.flags = !{!3, !4}", *nodes, ""])


class DebugLocations:
    """Current source line of one function's instructions."""

    def __init__(self, module: DebugInfo, name: str, line: int) -> None:
        self.module, self.line = module, line
        self.subprogram = module.subprogram(name, line)

    def header(self) -> str:
        """Return the `!dbg` suffix of instructions before the first statement."""
        return self.module.location(self.subprogram, self.line)

    def enter(self, s: Stmt) -> str:
        """Return the `!dbg` suffix of instructions from here on; a statement without a line keeps
        the previous one.
        """
        self.line = self.module.lines.get(s, self.line)
        return self.module.location(self.subprogram, self.line)
