"""Buffer views (DeclBuffer) and their resolution to accesses of the source buffer.

    with T.match_buffer(A[i * 4:i * 4 + 4, j], (4, 1)) as B:      A[i * 4 + k, j] = 0.0
        B[k, 0] = 0.0                                         ->

Stride and offset variables of a view are replaced by the source's values. TVM's pass
LowerMatchBuffer, for regions; an address (`data=A.data`) is a view here too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, cast, const, convert, is_const
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore, DeclBuffer, Prefetch, PrimFunc, Stmt
from ekiden.tir.visitor import ExprRewriter, StmtMutator, pre_order_stmts, substitute, with_body


def resolve_view(view: DeclBuffer) -> Stmt:
    """Return the body of a view, its accesses replaced by accesses of the source buffer.

    Stride and offset variables get the values that the source gives them. Raises CompileError for a
    view with another element dtype.
    """
    if dt.element_dtype(view.buffer.dtype) != dt.element_dtype(view.source.dtype):
        raise CompileError(
            f"buffer {view.buffer.name!r}: elements of {view.buffer.dtype} cannot lie in"
            f" {view.source.name!r}, which holds {view.source.dtype}"
        )
    body = _ViewResolver(view).visit(view.body)
    # Without a region, the view is the whole source with other dimensions: its layout variables
    # keep their defaults.
    if not view.mins:
        return body
    strides = _row_major_strides(view.source)[len(view.mins) - len(view.buffer.shape) :]
    offset = view.source.offset_of(view.mins) if view.buffer.elem_offset is not None else const(0)
    named = [*zip(view.buffer.strides, strides, strict=False), (view.buffer.elem_offset, offset)]
    values = {v: cast(value, v.dtype) for v, value in named if isinstance(v, Var)}
    return substitute(body, values)


def _row_major_strides(buffer: Buffer) -> list[PrimExpr]:
    if buffer.strides:
        return list(buffer.strides)
    strides: list[PrimExpr] = []
    size = convert(1, "int64")
    for extent in reversed(buffer.shape):
        strides.insert(0, size)
        size = size * extent
    return strides


def _add_offset(index: PrimExpr, by: PrimExpr) -> PrimExpr:
    """Return an index plus an offset; the index may be a vector."""
    if isinstance(index, Ramp):
        return index.with_fields(base=index.base + by)
    lanes = dt.lanes(index.dtype)
    return by + index if lanes == 1 else index + Broadcast(by, lanes)


class _ViewResolver(ExprRewriter):
    def __init__(self, view: DeclBuffer) -> None:
        super().__init__(self._rewrite_node)
        self._view = view

    def _rewrite_node(self, e: PrimExpr) -> PrimExpr:
        view = self._view
        if isinstance(e, BufferLoad) and e.buffer is view.buffer:
            return e.with_fields(buffer=view.source, indices=self._source_indices(e.indices))
        if isinstance(e, BufferAddress) and e.buffer is view.buffer:
            return self._resolve_address(e)
        return e

    def _resolve_address(self, e: BufferAddress) -> PrimExpr:
        view = self._view
        if view.mins and len(e.indices) == 1 < len(view.buffer.shape):
            begin = e.indices[0]
            # A region's rows are not contiguous in the source, so a flat offset within it has no
            # single address.
            if not is_const(begin, 0) and begin is not view.buffer.elem_offset:
                raise CompileError(
                    f"buffer {view.buffer.name!r}: elements of a part of {view.source.name!r} do"
                    " not follow each other; an address within it needs an index for each axis"
                )
            return e.with_fields(buffer=view.source, indices=view.mins, extents=view.extents)
        if e.indices:
            ones = (const(1),) * (len(view.mins) - len(e.indices))
            extents = (*ones, *e.extents) if e.extents else ()
            return e.with_fields(
                buffer=view.source, indices=self._source_indices(e.indices), extents=extents
            )
        if not view.mins:
            return e.with_fields(buffer=view.source)
        return e.with_fields(buffer=view.source, indices=view.mins, extents=view.extents)

    def _source_indices(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        view = self._view
        if not view.mins:
            if len(indices) == 1 and not view.buffer.strides and view.buffer.elem_offset is None:
                return tuple(indices)
            return (view.buffer.offset_of(indices),)
        outer = len(view.mins) - len(indices)
        if len(indices) != len(view.buffer.shape) or outer < 0:
            raise CompileError(
                f"buffer {view.buffer.name!r}: a part of {view.source.name!r} is read with"
                f" {len(view.buffer.shape)} indices, got {len(indices)}"
            )
        return (*view.mins[:outer], *map(_add_offset, indices, view.mins[outer:]))

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Redirect a store to the source."""
        visited = super().visit_store(stmt)
        assert isinstance(visited, BufferStore)
        if visited.buffer is not self._view.buffer:
            return visited
        return visited.with_fields(
            buffer=self._view.source, indices=self._source_indices(visited.indices)
        )

    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """Redirect a prefetch to the source."""
        visited = super().visit_prefetch(stmt)
        assert isinstance(visited, Prefetch)
        if visited.buffer is not self._view.buffer:
            return visited
        return visited.with_fields(
            buffer=self._view.source, indices=self._source_indices(visited.indices)
        )

    def visit_decl(self, stmt: DeclBuffer) -> Stmt:
        """Resolve a view of a view first."""
        if stmt.source is self._view.buffer:
            return self.visit(resolve_view(stmt))
        return super().visit_decl(stmt)


class _MatchBufferLowerer(StmtMutator):
    def visit_decl(self, stmt: DeclBuffer) -> Stmt:
        return self.visit(resolve_view(stmt))


def lower_match_buffer(func: PrimFunc) -> PrimFunc:
    """Return the function without views. Raises CompileError for a view with another
    element dtype.
    """
    if not any(isinstance(s, DeclBuffer) for s in pre_order_stmts(func.body)):
        return func
    return with_body(func, _MatchBufferLowerer().visit(func.body))


__all__ = ["lower_match_buffer", "resolve_view"]
