"""Pad the strides of intermediates as `Schedule.storage_align` requested.

align b, axis 0, factor 32, offset 1:
b = alloc(32, 32); .. b[i, j] ..   ->   b = alloc(1056); .. b[i * 33 + j] ..
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, cast, const
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import Allocate, Block, BufferStore, PrimFunc, Stmt
from ekiden.tir.visitor import (
    ExprRewriter,
    StmtMutator,
    all_exprs,
    buffers_written,
    has_only_region_accesses,
)

ALIGNMENT_ANNOTATION = "buffer_dim_align"
"""Annotation with alignment rules (buffer index, axis, factor, offset); as a function attribute
keyed by buffer name.
"""
AlignmentRule: TypeAlias = tuple[int, int, int]
"""Alignment rule (axis, factor, offset)."""


def alignment_rules(block: Block) -> dict[str, tuple[AlignmentRule, ...]]:
    """Return a block's alignment rules, by buffer name."""
    rules: dict[str, tuple[AlignmentRule, ...]] = {}
    annotation = (block.annotations or {}).get(ALIGNMENT_ANNOTATION)
    if isinstance(annotation, (list, tuple)):
        written = buffers_written(block.body)
        for number, axis, factor, offset in annotation:
            name = written[number].name
            rules[name] = (*rules.get(name, ()), (axis, factor, offset))
    return rules


class _StrideRewriter(ExprRewriter):
    """A rewriter of a buffer's accesses to flat indices with given strides."""

    def __init__(self, old: Buffer, new: Buffer, strides: Sequence[PrimExpr]) -> None:
        super().__init__(self._flatten_load)
        self._old, self._new, self._strides = old, new, strides

    def _flat_index(self, indices: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
        total: PrimExpr = const(0)
        for index, stride in zip(indices, self._strides, strict=True):
            total = total + index * stride
        return (total,)

    def _flatten_load(self, e: PrimExpr) -> PrimExpr:
        if (
            isinstance(e, Intrinsic)
            and e.op == "region_stride"
            and self._is_address_of_buffer(e.args[0])
        ):
            # Calls that ask for a stride of the buffer must get the padded one.
            assert isinstance(e.args[1], IntImm)
            return cast(self._strides[e.args[1].value], e.dtype)
        if isinstance(e, BufferLoad) and e.buffer is self._old:
            return BufferLoad(self._new, self._flat_index(e.indices), e.dtype)
        if isinstance(e, BufferAddress) and e.buffer is self._old:
            return e.with_fields(
                buffer=self._new, indices=self._flat_index(e.indices), extents=(const(1),)
            )
        return e

    def _is_address_of_buffer(self, e: PrimExpr) -> bool:
        """Return whether an expression is an address in the buffer."""
        return isinstance(e, BufferAddress) and e.buffer in (self._old, self._new)

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite t[i, j] = v to t[i * stride + j] = v."""
        new = super().visit_store(stmt)
        if stmt.buffer is self._old:
            assert isinstance(new, BufferStore)
            return new.with_fields(buffer=self._new, indices=self._flat_index(new.indices))
        return new


class _StorageAligner(StmtMutator):
    def __init__(self, rules: Mapping[str, tuple[AlignmentRule, ...]]) -> None:
        self._rules = rules

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Pad the buffer's rows, unless calls require it to be dense."""
        body = self.visit(stmt.body)
        old = stmt.buffer
        rules = self._rules.get(old.name)
        if rules is None or old.strides or len(old.shape) < 2 or _requires_dense(body, old):
            return stmt.with_fields(body=body)
        strides = _aligned_strides(old, rules)
        # Padded rows have gaps, so the new buffer is flat and its indices apply the strides.
        new = old.with_fields(shape=(simplify(strides[0] * old.shape[0]),))
        return Allocate(new, _StrideRewriter(old, new, strides).visit(body))


def _requires_dense(body: Stmt, buffer: Buffer) -> bool:
    """Return whether a call is passed the buffer, which it requires to be dense."""
    handed = any(isinstance(e, BufferAddress) and e.buffer is buffer for e in all_exprs(body))
    return handed and not has_only_region_accesses(body, buffer)


def _aligned_strides(buffer: Buffer, rules: Sequence[AlignmentRule]) -> list[PrimExpr]:
    """Return row-major strides, rounded up to k * factor + offset where a rule requests it."""
    # The innermost stride stays 1, so that rows remain contiguous.
    strides: list[PrimExpr] = [const(1)]
    for axis in reversed(range(len(buffer.shape) - 1)):
        stride = strides[0] * buffer.shape[axis + 1]
        for rule_axis, factor, offset in rules:
            if rule_axis == axis:
                # The least stride, not below the dense one, that is congruent to offset modulo
                # factor.
                stride = stride + (const(offset) - stride) % factor
        strides.insert(0, simplify(stride))
    return strides


def align_storage(func: PrimFunc) -> PrimFunc:
    """Return the function with the requested strides."""
    attrs = dict(func.attrs or {})
    rules = attrs.pop(ALIGNMENT_ANNOTATION, None)
    if not isinstance(rules, Mapping):
        return func
    return func.with_fields(attrs=attrs, body=_StorageAligner(rules).visit(func.body))
