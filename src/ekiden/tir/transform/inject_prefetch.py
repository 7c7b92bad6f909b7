"""Prefetch what a block reads some iterations later, where a loop's annotation requests it.

    for k in range(8, annotations={"bring_ahead": [1, 8, 16]}):   for k in range(8):
        for lane in vectorized(16):                        ->         prefetch(W[k + 8, j])
            with block("sum"): ... W[k, j + lane] ...                 for lane in vectorized(16): ..

The annotation gives the index of the buffer among the block's reads, the distance in iterations of
its last reduction, and the number of consecutive elements; one cache line is prefetched at a time.
Hardware prefetchers stop at page boundaries, and one row may fill a page.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import substitute
from ekiden.runtime.errors import CompileError
from ekiden.tir.access_regions import block_regions
from ekiden.tir.stmt import BlockRealize, For, IterKind, Prefetch, Stmt
from ekiden.tir.visitor import flatten_seq, pre_order_stmts

PREFETCH_ANNOTATION = "bring_ahead"
CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""


def inject_prefetch(loop: For) -> For:
    """Return the loop with the annotated prefetches; itself without the annotation. Raises
    CompileError where the annotation names nothing that the block reads.
    """
    notes = dict(loop.annotations or {})
    if PREFETCH_ANNOTATION not in notes:
        return loop
    annotation, blocks = (
        notes.pop(PREFETCH_ANNOTATION),
        [s for s in pre_order_stmts(loop) if isinstance(s, BlockRealize)],
    )
    is_list = isinstance(annotation, (list, tuple)) and len(annotation) == 3
    numbers = [_int_value(n) for n in annotation] if is_list else []  # type: ignore[attr-defined]
    if len(blocks) != 1 or not numbers or min(numbers) < 0:
        raise CompileError(
            f"{PREFETCH_ANNOTATION} of loop '{loop.loop_var.name}': [which buffer a block "
            "reads, steps, elements]"
            f" and one block expected, got {annotation!r} and {len(blocks)} blocks"
        )
    lines = _emit_prefetches(loop, blocks[0], *numbers)
    return loop.with_fields(body=flatten_seq(*lines, loop.body), annotations=notes or None)


def _int_value(value: object) -> int:
    number = getattr(value, "value", value)
    return number if isinstance(number, int) else -1


def _emit_prefetches(
    loop: For, realize: BlockRealize, read: int, steps: int, elements: int
) -> list[Stmt]:
    """Emit a prefetch per cache line, for the first iteration of the inner loops."""
    block = realize.block
    reads, _ = block_regions(block)
    reduced = [v.var for v in block.iter_vars if v.kind is IterKind.REDUCE]
    if read >= len(reads) or not reduced:
        raise CompileError(
            f"{PREFETCH_ANNOTATION}: block '{block.name}' has no read {read} along a reduction"
        )
    first: dict[Var, PrimExpr] = {
        s.loop_var: s.min for s in pre_order_stmts(loop.body) if isinstance(s, For)
    }
    bindings = zip(block.iter_vars, realize.iter_values, strict=True)
    values = {v.var: substitute(e, first) for v, e in bindings}
    values[reduced[-1]] = values[reduced[-1]] + steps
    buffer = reads[read].buffer
    *outer, last = (substitute(axis_range.min, values) for axis_range in reads[read].region)
    elements_per_line = max(1, CACHE_LINE_BYTES // dt.itemsize(buffer.dtype))
    # One per cache line, with locality 3: into the first-level cache.
    return [Prefetch(buffer, (*outer, last + n), 3) for n in range(0, elements, elements_per_line)]


__all__ = ["PREFETCH_ANNOTATION", "inject_prefetch"]
