"""Random programs with an ordered block, their meaning in NumPy, and random steps on them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from schedule_programs import COMPOSED, Steps

from ekiden import te, tir
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, Var, const, maximum
from ekiden.runtime.errors import ScheduleError
from ekiden.te.tensor import extern_op
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
    seq,
)

Array = npt.NDArray[np.generic]
Combine = Callable[[PrimExpr, PrimExpr], PrimExpr]
COMBINES: dict[str, tuple[Combine, Callable[[Array, Array], Array]]] = {
    "last": (lambda old, new: new, lambda old, new: new),
    "alternate": (lambda old, new: new - old, lambda old, new: new - old),
    "add": (lambda old, new: old + new, lambda old, new: old + new),
    "largest": (maximum, np.maximum),
}
"""(old, new) -> element by name; of the first two the order of the steps decides the result."""


@dataclass(frozen=True, slots=True)
class OrderedProgram:
    """A function with an ordered block: the sizes of its ordered and spatial axes, the rows of its
    result, how an element is combined, and whether its rows are looked up or follow one another.
    """

    func: PrimFunc
    steps: tuple[int, ...]
    columns: tuple[int, ...]
    rows: int
    combine: str
    form: str
    has_epilogue: bool

    def arguments(self, seed: int) -> tuple[list[Array], list[Array]]:
        """Return the arguments with empty outputs, and what the outputs must be; whole numbers."""
        rng = np.random.default_rng(seed)
        x = rng.integers(-3, 4, (*self.steps, *self.columns)).astype("float32")
        table = rng.integers(0, self.rows, self.steps)
        combine = COMBINES[self.combine][1]
        out = np.zeros((self.rows, *self.columns), "float32")
        scaled = x * 2 + 1
        for number, at in enumerate(itertools.product(*map(range, self.steps))):
            if self.form == "scatter":
                out[table[at]] = combine(out[table[at]], scaled[at])
            else:
                out[number + 1] = combine(out[number], scaled[at])
        result = np.maximum(out, 1) if self.has_epilogue else out
        return [x, table, np.full(result.shape, 7, "float32")], [result.astype("float32")]


def random_ordered_program(source: random.Random) -> OrderedProgram:
    """Return a producer, a buffer of zeros, an ordered block over both, and often a consumer."""
    form = source.choice(["scatter", "scatter", "recurrence"])
    sizes = [1, 2, 3, 4, 5, 7, 8]
    steps = tuple(source.choice(sizes) for _ in range(source.choice([1, 2, 2])))
    columns = tuple(source.choice(sizes) for _ in range(source.randint(0, 2)))
    rows = source.randint(1, 5) if form == "scatter" else int(np.prod(steps)) + 1
    combine, has_epilogue = source.choice(list(COMBINES)), source.random() < 0.7
    dims: list[PrimExpr | int] = [*columns]
    if columns and source.random() < 0.3:
        dims[0] = SizeVar("n")
    x = te.placeholder((*steps, *dims), name="x")
    table = te.placeholder(steps, "int64", name="table")
    scaled = te.compute(x.shape, lambda *i: x[i] * 2.0 + 1.0, name="scaled")
    (out,) = extern_op(
        [(rows, *dims)],
        [scaled, table],
        lambda ins, outs: _ordered_nest(ins, outs[0], len(steps), COMBINES[combine][0], form),
        ["float32"],
        name="ordered",
    )
    result = out
    if has_epilogue:
        result = te.compute(out.shape, lambda *i: maximum(out[i], 1.0), name="epilogue")
    func = te.create_prim_func([x, table, result])
    return OrderedProgram(func, steps, columns, rows, combine, form, has_epilogue)


def _ordered_nest(
    ins: Sequence[Buffer], out: Buffer, num_steps: int, combine: Combine, form: str
) -> Stmt:
    scaled, table = ins
    zero = _nest("start", out.shape, 0, lambda at: BufferStore(out, const(0.0, "float32"), at))

    def update(at: tuple[Var, ...]) -> Stmt:
        """Return the update of one element of the row that belongs to a step."""
        step, columns = at[:num_steps], at[num_steps:]
        if form == "scatter":
            target = source = table[step]
        else:
            source = const(0)
            for var, extent in zip(step, scaled.shape, strict=False):
                source = source * extent + var
            target = source + 1
        value = combine(out[(source, *columns)], scaled[at])
        return BufferStore(out, value, (target, *columns))

    return seq(zero, _nest("update", scaled.shape, num_steps, update))


def _nest(
    name: str, shape: Sequence[PrimExpr], num_ordered: int, body: Callable[[tuple[Var, ...]], Stmt]
) -> Stmt:
    """Return a block in loops of its own over a shape, its first axes ordered."""
    iters = tuple(
        IterVar(Var(f"v{n}"), d, IterKind.ORDERED if n < num_ordered else IterKind.SPATIAL)
        for n, d in enumerate(shape)
    )
    loops = tuple(Var(f"i{n}") for n in range(len(shape)))
    block = Block(name, iters, body(tuple(i.var for i in iters)))
    nest: Stmt = BlockRealize(loops, const(True), block)
    for var, extent in reversed(list(zip(loops, shape, strict=True))):
        nest = For(var, const(0), extent, ForKind.SERIAL, nest)
    return nest


class OrderedSteps(Steps):
    """Random steps, which split by every tail."""

    def split(self) -> None:
        tail = self.source.choice(["predicate", "loop", "short", "balanced"])
        size = self.source.randint(1, 5)
        factors = [size, None] if tail == "balanced" and size % 2 else [None, size]
        self.sch.split(self.loop(), factors, tail=tail)

    def partition(self) -> None:
        self.sch.partition(self.loop(), [self.source.randint(0, 4)])


KIND_WEIGHTS = {
    "split": 6, "reorder": 8, "fuse": 3, "parallel": 4, "vectorize": 3, "unroll": 1,
    "partition": 1, "blockize": 2, "compute_at": 3, "reverse_compute_at": 3, "cache_read": 2,
    "cache_write": 1, "compute_inline": 1, "reverse_compute_inline": 1, "reindex": 1,
    "transform_layout": 1, "transform_block_layout": 2, "add_unit_loop": 1, "roll": 1,
    "reorder_block_iter_var": 1,
}  # fmt: skip


def random_ordered_steps(
    sch: tir.Schedule, source: random.Random, count: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Try random steps; return how many of each kind were accepted, and refused, of those whose
    block or loop may be any. A refused step must leave the function as it was.
    """
    steps = OrderedSteps(sch, source)
    accepted: dict[str, int] = {}
    refused: dict[str, int] = {}
    for kind in source.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()), k=count):
        before = sch.func
        try:
            getattr(steps, kind)()
        except ScheduleError:
            assert kind in COMPOSED or sch.func is before, kind
            refused[kind] = refused.get(kind, 0) + 1
        else:
            accepted[kind] = accepted.get(kind, 0) + 1
    return accepted, refused


def has_fixed_sizes(func: PrimFunc) -> bool:
    """Return whether all dimensions of the parameters are constants."""
    return all(isinstance(d, IntImm) for p in func.buffers for d in p.shape)
