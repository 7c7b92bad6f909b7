"""Bring near what a block reads some steps later, where a loop around it asks for that.

for k in range(8, annotations={"bring_ahead": [1, 8, 16]}):      for k in range(8):
    for lane in vectorized(16):                           ->         prefetch(W[k + 8, j])
        with block("sum"): ... W[k, j + lane] ...                    for lane in vectorized(16): ...

The annotation says which of the buffers that the block reads, how many steps of its last reduction
later, and how many neighbouring elements from there on; a line of a cache is brought at a time.
Processors fetch ahead by themselves within a page, which a row of the data may fill.
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import substitute
from ekiden.runtime.errors import CompileError
from ekiden.tir.regions import block_regions
from ekiden.tir.stmt import BlockRealize, For, IterKind, Prefetch, Stmt
from ekiden.tir.visitor import sequence, walk

KEY = "bring_ahead"
LINE = 64
"""Bytes of a cache line."""


def brought_ahead(loop: For) -> For:
    """The loop with what its annotation asks for; itself where it has none. Raises CompileError for
    one that asks for what the block does not read."""
    notes = dict(loop.annotations or {})
    if KEY not in notes:
        return loop
    asked, blocks = notes.pop(KEY), [s for s in walk(loop) if isinstance(s, BlockRealize)]
    is_list = isinstance(asked, (list, tuple)) and len(asked) == 3
    numbers = [_number(n) for n in asked] if is_list else []  # type: ignore[attr-defined]
    if len(blocks) != 1 or not numbers or min(numbers) < 0:
        raise CompileError(
            f"{KEY} of loop '{loop.loop_var.name}': [which buffer a block reads, steps, elements]"
            f" and one block expected, got {asked!r} and {len(blocks)} blocks"
        )
    lines = _lines(loop, blocks[0], *numbers)
    return loop.with_fields(body=sequence(*lines, loop.body), annotations=notes or None)


def _number(value: object) -> int:
    found = getattr(value, "value", value)
    return found if isinstance(found, int) else -1


def _lines(loop: For, realize: BlockRealize, read: int, steps: int, elements: int) -> list[Stmt]:
    """A prefetch for each line, of the first turn of the loops inside."""
    block = realize.block
    reads, _ = block_regions(block)
    reduced = [v.var for v in block.iter_vars if v.kind is IterKind.REDUCE]
    if read >= len(reads) or not reduced:
        raise CompileError(f"{KEY}: block '{block.name}' has no read {read} along a reduction")
    first: dict[Var, PrimExpr] = {s.loop_var: s.min for s in walk(loop.body) if isinstance(s, For)}
    places = zip(block.iter_vars, realize.iter_values, strict=True)
    values = {v.var: substitute(e, first) for v, e in places}
    values[reduced[-1]] = values[reduced[-1]] + steps
    buffer = reads[read].buffer
    *outer, last = (substitute(each.min, values) for each in reads[read].region)
    each = max(1, LINE // dt.itemsize(buffer.dtype))
    return [Prefetch(buffer, (*outer, last + n), 3) for n in range(0, elements, each)]


__all__ = ["KEY", "brought_ahead"]
