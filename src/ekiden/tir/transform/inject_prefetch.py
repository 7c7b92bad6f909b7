"""Prefetch what a block touches some iterations later, where a loop's annotation requests it.

    for k in range(8, annotations={"bring_ahead": [1, 8, 16]}):   for k in range(8):
        for lane in vectorized(16):                        ->         prefetch(W[k + 8, j])
            with block("sum"): ... W[k, j + lane] ...                 for lane in vectorized(16): ..

The annotation gives the index of the buffer among the block's reads, then its other writes, the
distance in iterations of its last reduced or ordered axis, and the number of consecutive elements;
one cache line is prefetched at a time. Hardware prefetchers stop at page boundaries, and one row
may fill a page; rows that are looked up in a table no processor guesses.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, minimum
from ekiden.ir.prim_visitor import substitute
from ekiden.runtime.errors import CompileError
from ekiden.tir.access_regions import BufferRegion, block_regions
from ekiden.tir.stmt import Block, BlockRealize, For, IterKind, Prefetch, Stmt
from ekiden.tir.visitor import flatten_seq, pre_order_stmts

PREFETCH_ANNOTATION = "bring_ahead"
CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""


def inject_prefetch(loop: For) -> For:
    """Return the loop with the annotated prefetches; itself without the annotation. Raises
    CompileError where the annotation names nothing that the block touches.
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


def accessed_regions(block: Block) -> list[BufferRegion]:
    """Return what a block reads, then what it only writes, in the order that the annotation counts
    in.
    """
    reads, writes = block_regions(block)
    read_buffers = {r.buffer for r in reads}
    return [*reads, *(w for w in writes if w.buffer not in read_buffers)]


def _emit_prefetches(
    loop: For, realize: BlockRealize, read: int, steps: int, elements: int
) -> list[Stmt]:
    """Emit a prefetch per cache line, for the first iteration of the inner loops."""
    block = realize.block
    touched = accessed_regions(block)
    along = [v for v in block.iter_vars if v.kind in (IterKind.REDUCE, IterKind.ORDERED)]
    if read >= len(touched) or not along:
        raise CompileError(
            f"{PREFETCH_ANNOTATION}: block '{block.name}' has no buffer {read} along a reduced or "
            "ordered axis"
        )
    first: dict[Var, PrimExpr] = {
        s.loop_var: s.min for s in pre_order_stmts(loop.body) if isinstance(s, For)
    }
    bindings = zip(block.iter_vars, realize.iter_values, strict=True)
    values = {v.var: substitute(e, first) for v, e in bindings}
    last_axis = along[-1]
    later = values[last_axis.var] + steps
    if last_axis.kind is IterKind.ORDERED:
        # An ordered step may look its row up: no index behind the last step's is read.
        later = minimum(later, last_axis.extent - 1)
    values[last_axis.var] = later
    buffer = touched[read].buffer
    *outer, last = (substitute(axis_range.min, values) for axis_range in touched[read].region)
    elements_per_line = max(1, CACHE_LINE_BYTES // dt.itemsize(buffer.dtype))
    # One per cache line, with locality 3: into the first-level cache.
    return [Prefetch(buffer, (*outer, last + n), 3) for n in range(0, elements, elements_per_line)]


__all__ = ["PREFETCH_ANNOTATION", "accessed_regions", "inject_prefetch"]
