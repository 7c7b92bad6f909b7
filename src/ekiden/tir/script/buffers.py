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
from ekiden.tir.script.blocks import Arguments, BlockReader
from ekiden.tir.script.evaluate import Source
from ekiden.tir.stmt import Allocate, DeclBuffer, Stmt
from ekiden.tir.visitor import rename

Wrap: TypeAlias = Callable[[Stmt], Stmt]


Opened: TypeAlias = tuple[Buffer | Var, Wrap | None]
"""What a name stands for, and what is put around the statements that may use it."""


class BufferReader(BlockReader):
    """Reads what gives names to buffers."""

    def __init__(self, source: Source, names: Mapping[str, object]) -> None:
        super().__init__(source, names)
        self.handles: dict[Var, Buffer | None] = {}
        """Parameters declared as handles, and the buffers matched to them."""
        self.memory: dict[Buffer, Buffer | None] = {}
        """What T.allocate made, and the buffers declared over it."""
        self.offsets: set[str] = set()
        """The buffers whose offset the text asks for."""

    def _alloc_buffer(self, node: ast.AST, name: str, given: Arguments) -> Opened:
        buffer = self._buffer(node, given.args, given.keywords, name)
        return buffer, lambda body: Allocate(buffer, body)

    def _allocate(self, node: ast.AST, name: str, given: Arguments) -> Opened:
        """Memory; the first T.decl_buffer of as many elements is the buffer that it is for."""
        keywords = dict(given.keywords)
        keywords.pop("annotations", None)
        if "extents" in keywords:
            keywords["shape"] = keywords.pop("extents")
        buffer = self._buffer(node, given.args[:3], keywords, name)
        self.memory[buffer] = None

        def wrap(body: Stmt) -> Stmt:
            real = self.memory[buffer]
            return Allocate(real or buffer, rename(body, {}, {buffer: real} if real else {}))

        return buffer, wrap

    def _decl_buffer(self, node: ast.AST, name: str, given: Arguments) -> Opened:
        keywords = dict(given.keywords)
        data = keywords.pop("data", given.args[2] if len(given.args) > 2 else None)
        if data is None:
            return self._alloc_buffer(node, name, given)
        at = self.evaluator.value(data)
        source = at.buffer if isinstance(at, BufferAddress) else at
        if isinstance(source, Var) and source in self.handles:  # a parameter: its first buffer
            matched = self.handles[source]
            if matched is None:
                made = self._buffer(node, given.args[:2], keywords, name)
                self.handles[source] = made
                return made, None
            source = matched
        if not isinstance(source, Buffer):
            self.fail(data, "expected the address of a buffer: A.data")
        if "scope" not in keywords:
            keywords["scope"] = ast.Constant(source.scope)
        buffer = self._buffer(node, given.args[:2], keywords, name)
        if self.memory.get(source, source) is None and _is_as_large(buffer, source):
            self.memory[source] = buffer
            return buffer, None
        real = self.memory.get(source) or source
        return buffer, lambda body: DeclBuffer(buffer, real, (), (), body)

    def _buffer(
        self, node: ast.AST, args: Sequence[ast.expr], keywords: Mapping[str, ast.expr], name: str
    ) -> Buffer:
        """The buffer that T.Buffer's arguments describe; the third may be the scope."""
        values = [self.evaluator.value(a) for a in args]
        named = {k: self.evaluator.value(v) for k, v in keywords.items()}
        if len(values) > 2:
            named.setdefault("scope", values.pop(2))
        made = self.evaluator.call(
            node,
            lambda: script.Buffer(*values, **named, name=name),  # type: ignore[arg-type]
        )
        assert isinstance(made, Buffer)
        if name in self.offsets and made.elem_offset is None:
            is_free = "offset_factor" in named
            offset = Var(f"{name}_elem_offset") if is_free else const(0)
            made = made.with_fields(elem_offset=offset)
        return made

    def _match_buffer(self, node: ast.AST, name: str, given: Arguments) -> Opened:
        if not given.args or isinstance(given.args[0], ast.Subscript):
            return self._match_region(node, name, given)
        handle = self.evaluator.value(given.args[0])
        if isinstance(handle, Buffer):
            return self._match_region(node, name, given)
        if not isinstance(handle, Var) or handle not in self.handles:
            self.fail(node, "T.match_buffer takes a parameter of type T.handle, or a region")
        if self.handles[handle] is not None:
            self.fail(node, f"parameter '{handle.name}' is matched twice")
        buffer = self._buffer(node, given.args[1:], given.keywords, name)
        self.handles[handle] = buffer
        return buffer, None

    def _match_region(self, node: ast.AST, name: str, given: Arguments) -> Opened:
        """A buffer that is a part of another, whose dtype and scope it has."""
        if not given.args:
            self.fail(node, "T.match_buffer takes a parameter or a region, and a shape")
        part = self.evaluator.region(given.args[0])
        keywords = dict(given.keywords)
        keywords.setdefault("scope", ast.Constant(part.buffer.scope))
        if len(given.args) < 3:
            keywords.setdefault("dtype", ast.Constant(part.buffer.dtype))
        buffer = self._buffer(node, given.args[1:], keywords, name)
        outer = len(part.region) - len(buffer.shape)
        if outer < 0 or any(not is_const(r.extent, 1) for r in part.region[:outer]):
            self.fail(node, f"a region of {len(part.region)} axes has no {len(buffer.shape)} axes")
        mins, extents = (r.min for r in part.region), (r.extent for r in part.region)
        at = tuple(mins), tuple(extents)
        return buffer, lambda body: DeclBuffer(buffer, part.buffer, *at, body)


def _is_as_large(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers hold the same elements, in row-major order."""
    if a.dtype != b.dtype or a.scope != b.scope or a.strides or a.elem_offset is not None:
        return False
    sizes = [reduce(operator.mul, each.shape, const(1)) for each in (a, b)]
    return prove_equal(*sizes)
