"""Buffers of a script: allocated, declared over memory of others, matched to parameters."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from ekiden.arith import prove_equal
from ekiden.ir.prim import Var, const, is_const
from ekiden.tir.expr import Buffer, BufferAddress
from ekiden.tir.script import builtins as script
from ekiden.tir.script.blocks import BlockParser, CallArguments
from ekiden.tir.script.evaluate import ScriptSource
from ekiden.tir.stmt import Allocate, DeclBuffer, Stmt
from ekiden.tir.visitor import rename

StmtWrapper: TypeAlias = Callable[[Stmt], Stmt]


Opened: TypeAlias = tuple[Buffer | Var, StmtWrapper | None]
"""Value bound to a name, and the wrapper around the statements in its scope."""


class BufferParser(BlockParser):
    """A parser of the statement forms that define buffers (alloc_buffer, decl_buffer,
    match_buffer).
    """

    def __init__(self, source: ScriptSource, names: Mapping[str, object]) -> None:
        super().__init__(source, names)
        self.handles: dict[Var, Buffer | None] = {}
        """Buffers matched to parameters declared as handles."""
        self.memory: dict[Buffer, Buffer | None] = {}
        """Buffers declared over each T.allocate."""
        self.offsets: set[str] = set()
        """Buffers whose element offset the script declares as a variable."""

    def _parse_alloc_buffer(self, node: ast.AST, name: str, arguments: CallArguments) -> Opened:
        buffer = self._evaluate_buffer(node, arguments.args, arguments.keywords, name)
        return buffer, lambda body: Allocate(buffer, body)

    def _parse_allocate(self, node: ast.AST, name: str, given: CallArguments) -> Opened:
        """Parse T.allocate: raw memory, which the first T.decl_buffer of as many elements names."""
        keywords = dict(given.keywords)
        keywords.pop("annotations", None)
        if "extents" in keywords:
            keywords["shape"] = keywords.pop("extents")
        buffer = self._evaluate_buffer(node, given.args[:3], keywords, name)
        self.memory[buffer] = None

        def wrap(body: Stmt) -> Stmt:
            real = self.memory[buffer]
            return Allocate(real or buffer, rename(body, {}, {buffer: real} if real else {}))

        return buffer, wrap

    def _parse_decl_buffer(self, node: ast.AST, name: str, arguments: CallArguments) -> Opened:
        keywords = dict(arguments.keywords)
        data = keywords.pop("data", arguments.args[2] if len(arguments.args) > 2 else None)
        if data is None:
            return self._parse_alloc_buffer(node, name, arguments)
        address = self.evaluator.evaluate(data)
        source = address.buffer if isinstance(address, BufferAddress) else address
        if isinstance(source, Var) and source in self.handles:  # a parameter: its first buffer
            matched = self.handles[source]
            if matched is None:
                matched_buffer = self._evaluate_buffer(node, arguments.args[:2], keywords, name)
                self.handles[source] = matched_buffer
                return matched_buffer, None
            source = matched
        if not isinstance(source, Buffer):
            self.raise_error(data, "expected the address of a buffer: A.data")
        if "scope" not in keywords:
            keywords["scope"] = ast.Constant(source.scope)
        buffer = self._evaluate_buffer(node, arguments.args[:2], keywords, name)
        if self.memory.get(source, source) is None and _has_same_layout(buffer, source):
            self.memory[source] = buffer
            return buffer, None
        real = self.memory.get(source) or source
        return buffer, lambda body: DeclBuffer(buffer, real, (), (), body)

    def _evaluate_buffer(
        self, node: ast.AST, args: Sequence[ast.expr], keywords: Mapping[str, ast.expr], name: str
    ) -> Buffer:
        """Return the buffer that T.Buffer's arguments describe; the third may be the scope."""
        values = [self.evaluator.evaluate(a) for a in args]
        named = {k: self.evaluator.evaluate(v) for k, v in keywords.items()}
        if len(values) > 2:
            named.setdefault("scope", values.pop(2))
        buffer = self.evaluator.call_reporting_errors(
            node,
            lambda: script.Buffer(*values, **named, name=name),  # type: ignore[arg-type]
        )
        assert isinstance(buffer, Buffer)
        if name in self.offsets and buffer.elem_offset is None:
            is_free = "offset_factor" in named
            offset = Var(f"{name}_elem_offset") if is_free else const(0)
            buffer = buffer.with_fields(elem_offset=offset)
        return buffer

    def _parse_match_buffer(self, node: ast.AST, name: str, arguments: CallArguments) -> Opened:
        if not arguments.args or isinstance(arguments.args[0], ast.Subscript):
            return self._parse_match_region(node, name, arguments)
        handle = self.evaluator.evaluate(arguments.args[0])
        if isinstance(handle, Buffer):
            return self._parse_match_region(node, name, arguments)
        if not isinstance(handle, Var) or handle not in self.handles:
            self.raise_error(node, "T.match_buffer takes a parameter of type T.handle, or a region")
        if self.handles[handle] is not None:
            self.raise_error(node, f"parameter '{handle.name}' is matched twice")
        buffer = self._evaluate_buffer(node, arguments.args[1:], arguments.keywords, name)
        self.handles[handle] = buffer
        return buffer, None

    def _parse_match_region(self, node: ast.AST, name: str, arguments: CallArguments) -> Opened:
        """Bind a buffer that is a region of another, whose dtype and scope it takes."""
        if not arguments.args:
            self.raise_error(node, "T.match_buffer takes a parameter or a region, and a shape")
        region = self.evaluator.evaluate_region(arguments.args[0])
        keywords = dict(arguments.keywords)
        keywords.setdefault("scope", ast.Constant(region.buffer.scope))
        if len(arguments.args) < 3:
            keywords.setdefault("dtype", ast.Constant(region.buffer.dtype))
        buffer = self._evaluate_buffer(node, arguments.args[1:], keywords, name)
        outer = len(region.region) - len(buffer.shape)
        if outer < 0 or any(not is_const(r.extent, 1) for r in region.region[:outer]):
            self.raise_error(
                node, f"a region of {len(region.region)} axes has no {len(buffer.shape)} axes"
            )
        mins, extents = (r.min for r in region.region), (r.extent for r in region.region)
        bounds = tuple(mins), tuple(extents)
        return buffer, lambda body: DeclBuffer(buffer, region.buffer, *bounds, body)


def _has_same_layout(a: Buffer, b: Buffer) -> bool:
    """Return whether two dense row-major buffers have the same number of elements, dtype
    and scope.
    """
    if a.dtype != b.dtype or a.scope != b.scope or a.strides or a.elem_offset is not None:
        return False
    sizes = [reduce(operator.mul, buffer.shape, const(1)) for buffer in (a, b)]
    return prove_equal(*sizes)
