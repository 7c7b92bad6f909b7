"""Classification of blocks, on which every proof of a primitive rests.

complete    every iterator is spatial, each point writes elements of its own, nothing that is
            written is read: any order, and any number of times, gives the same
reduction   an init, and an update `c = op(c, x)` by an operator whose order does not matter
update      such an update whose init is another block
ordered     ordered iterators, as of a scan or a scatter: points of one place in the spatial
            iterators read and write one another's elements, in the order in which they run;
            points of different places share none
opaque      anything else: nearly every primitive refuses it, saying why it is nothing better
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from ekiden.arith import injectivity_error
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var, is_const
from ekiden.ir.prim_visitor import free_vars, post_order
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.access_regions import iter_accesses
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.reduction import COMBINE_ANNOTATION, is_same_expr, match_update
from ekiden.tir.schedule.program import (
    accesses_of_buffer,
    block_reads,
    block_writes,
    iter_outermost_blocks,
    loop_ranges,
    refuse,
)
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, For, IterKind, Stmt
from ekiden.tir.visitor import sub_statements

COMPLETE, REDUCTION, UPDATE, OPAQUE = "complete", "reduction", "update", "opaque"
ORDERED = "ordered"


@dataclass(frozen=True, slots=True)
class BlockClassification:
    """The class of a block and, for an opaque one, the reason why it is in no better class."""

    kind: str
    reason: str = ""


_CLASSIFICATION_CACHE: WeakKeyDictionary[Block, BlockClassification] = WeakKeyDictionary()


def classify_block(block: Block) -> BlockClassification:
    """Return whether a block is complete, a reduction, an update, ordered or opaque; cached by
    block.
    """
    cached = _CLASSIFICATION_CACHE.get(block)
    if cached is None:
        cached = _CLASSIFICATION_CACHE[block] = _classify(block)
    return cached


def _classify(block: Block) -> BlockClassification:
    if not block_writes(block):
        return BlockClassification(OPAQUE, "it writes no buffer")
    if any(i.kind is IterKind.ORDERED for i in block.iter_vars):
        fault = _multi_element_fault(block) or _ordered_fault(block)
        return BlockClassification(ORDERED) if fault is None else BlockClassification(OPAQUE, fault)
    fault = _multi_element_fault(block) or _shared_element_fault(block)
    if fault is not None:
        return BlockClassification(OPAQUE, fault)
    own = set(block_writes(block))
    sums = own & set(block_reads(block))
    reduced = any(i.kind is IterKind.REDUCE for i in block.iter_vars)
    if not sums and block.init is None:
        if reduced:
            return BlockClassification(OPAQUE, "it has reduction iterators and no sum")
        return BlockClassification(COMPLETE)
    if not reduced and block.init is None:
        return BlockClassification(OPAQUE, f"it reads {next(iter(sums)).name!r}, which it writes")
    fault = _reduction_fault(block)
    if fault is not None:
        return BlockClassification(OPAQUE, fault)
    return BlockClassification(UPDATE if block.init is None else REDUCTION)


def _multi_element_fault(block: Block) -> str | None:
    """Return why a block touches more than one element at a time; None if it does not."""
    for buffer, access in iter_accesses(block.body):
        if access.extents is not None:
            return f"it hands a part of {buffer.name!r} to a call"
        if any(dt.lanes(i.dtype) > 1 for i in access.indices):
            return f"it accesses {buffer.name!r} in vectors"
    return None


def _shared_element_fault(block: Block) -> str | None:
    """Return why two spatial points may write one element; None if they never do."""
    spatial_vars = {i.var for i in block.iter_vars if i.kind is IterKind.SPATIAL}
    spatial_vars -= {i.var for i in block.iter_vars if is_const(i.extent, 1)}
    for buffer in block_writes(block):
        stores = [a for a in accesses_of_buffer(block.body, buffer) if a.is_store]
        for access in stores:
            if spatial_vars <= {i for i in access.indices if isinstance(i, Var)}:
                continue
            iters = {i.var: Range(i.extent) for i in block.iter_vars}
            iters |= loop_ranges(access.loops)
            fault = injectivity_error(access.indices, iters, spatial_vars)
            if fault is not None:
                return f"its points may write one element of {buffer.name!r}: {fault}"
    return None


# Of an element that a block with ordered iterators writes, one place in the spatial iterators has
# all reads and writes: h[t, j] = h[t - 1, j] + x[t, j] has, for a spatial j, and so has
# out[rows[e], j] += x[e, j], whatever the rows are. Then places are independent of each other, and
# only the order of one place's own steps must stay. It is shown by the axes of the buffer at which
# all accesses have the same index over iterators alone: those indices must tell the place.
def _ordered_fault(block: Block) -> str | None:
    """Return why a block with ordered iterators is none whose spatial points are independent; None
    if they are.
    """
    if block.init is not None:
        return "it has an init beside ordered iterators"
    for iter_var in block.iter_vars:
        if iter_var.kind not in (IterKind.SPATIAL, IterKind.ORDERED):
            return f"it has {_with_article(iter_var.kind.value)} iterator beside ordered ones"
    iters = {i.var: Range(i.extent) for i in block.iter_vars}
    spatial = {i.var for i in block.iter_vars if i.kind is IterKind.SPATIAL}
    spatial -= {i.var for i in block.iter_vars if is_const(i.extent, 1)}
    for buffer in block_writes(block):
        fault = injectivity_error(_common_indices(block, buffer), iters, spatial)
        if fault is not None:
            return f"two of its spatial points may touch one element of {buffer.name!r}: {fault}"
    return None


def _common_indices(block: Block, buffer: Buffer) -> list[PrimExpr]:
    """Return the indices, over iterators alone, at which all of a block's accesses of a buffer
    agree.
    """
    touched = accesses_of_buffer(block.body, buffer)
    iterators = {i.var for i in block.iter_vars}
    return [
        index
        for axis, index in enumerate(touched[0].indices)
        if all(is_same_expr(index, a.indices[axis]) for a in touched)
        and iterators.issuperset(free_vars(index))
        and not any(isinstance(e, BufferLoad) for e in post_order(index))
    ]


def stores_with_loops(block: Block) -> list[tuple[BufferStore, tuple[For, ...]]]:
    """Return every store of the body with the loops around it."""
    stores: list[tuple[BufferStore, tuple[For, ...]]] = []
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(block.body, ())]
    while stack:
        s, loops = stack.pop()
        if isinstance(s, BufferStore):
            stores.append((s, loops))
        inside = (*loops, s) if isinstance(s, For) else loops
        stack.extend((child, inside) for child in reversed(sub_statements(s)))
    return stores


def _reduction_fault(block: Block) -> str | None:
    """Return why a block is not a reduction `c = op(c, x)`; None if it is one."""
    if (block.annotations or {}).get(COMBINE_ANNOTATION):
        return _foreign_read_fault(block)
    nested = [s.block for s in iter_outermost_blocks(block.body)]
    if nested:
        faults = [_nested_block_fault(inner) for inner in nested]
        return next((f for f in faults if f is not None), None)
    for store, _ in stores_with_loops(block):
        operands = match_update(store)
        if operands is None:
            return (
                f"its update of {store.buffer.name!r} is no sum, product, minimum or maximum with "
                "the element itself"
            )
        if any(
            isinstance(e, BufferLoad) and e.buffer in block_writes(block)
            for e in post_order(operands[1])
        ):
            return f"it reads {store.buffer.name!r} elsewhere too"
    return None


def _foreign_read_fault(block: Block) -> str | None:
    """Return a fault if a block reads a buffer that it writes at another element than it writes;
    None if it does not.
    """
    for buffer in block_writes(block):
        touched = accesses_of_buffer(block.body, buffer)
        for access in touched:
            pairs = zip(access.indices, touched[-1].indices, strict=True)
            if not all(is_same_expr(a, b) for a, b in pairs):
                return f"it reads {buffer.name!r} elsewhere too"
    return None


def _nested_block_fault(inner: Block) -> str | None:
    kind = classify_block(inner)
    return None if kind.kind in (REDUCTION, UPDATE) else f"block {inner.name!r} in it is no sum"


def require_kind(step: str, realize: BlockRealize, *kinds: str) -> str:
    """Return the kind of a block; refuse it if it is none of `kinds`."""
    block_kind = classify_block(realize.block)
    if block_kind.kind not in kinds:
        reason = f": {block_kind.reason}" if block_kind.reason else ""
        refuse(
            f"{step} {realize.block.name!r}: expected {_format_kinds(kinds)} block, "
            f"got {_with_article(block_kind.kind)} one{reason}",
            realize,
        )
    return block_kind.kind


def _format_kinds(kinds: Sequence[str]) -> str:
    *others, last = map(_with_article, kinds)
    return f"{', '.join(others)} or {last}" if others else last


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def reduce_values(realize: BlockRealize) -> list[PrimExpr]:
    """Return the bindings of a block's reduction iterators."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [v for i, v in pairs if i.kind is IterKind.REDUCE]


def spatial_values(realize: BlockRealize) -> list[PrimExpr]:
    """Return the bindings of a block's spatial iterators."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [v for i, v in pairs if i.kind is IterKind.SPATIAL]


def ordered_values(realize: BlockRealize) -> list[PrimExpr]:
    """Return the bindings of a block's ordered iterators."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [v for i, v in pairs if i.kind is IterKind.ORDERED]


def reduce_loops(realize: BlockRealize, loops: Iterable[For]) -> list[For]:
    """Return those of the loops that a block's reduction iterators depend on."""
    used = set(free_vars(*reduce_values(realize)))
    return [s for s in loops if s.loop_var in used]
