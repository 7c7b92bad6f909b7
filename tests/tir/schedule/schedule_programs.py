"""Random tensor programs with their meaning in NumPy, and random steps on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ekiden import te, tir
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, const, logical_and, maximum
from ekiden.runtime.errors import ScheduleError
from ekiden.te import Tensor

Array = npt.NDArray[np.float32]
Values = Mapping[str, Array]
Reference = Callable[[Values], Array]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor and what it is in NumPy; `size` are its dimensions at run time."""

    tensor: Tensor
    reference: Reference
    size: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorProgram:
    """A function, the sizes of its inputs, and its outputs in NumPy."""

    func: tir.PrimFunc
    inputs: Mapping[str, tuple[int, ...]]
    outputs: tuple[Value, ...]

    def arguments(self, seed: int = 0) -> tuple[list[Array], list[Array]]:
        """Inputs and empty outputs, then what the outputs must be. Whole numbers: sums are exact in
        any order.
        """
        rng = np.random.default_rng(seed)
        inputs = {
            name: rng.integers(-2, 3, size).astype("float32") for name, size in self.inputs.items()
        }
        expected = [np.asarray(v.reference(inputs), "float32") for v in self.outputs]
        empty = [np.full(v.size, 7, "float32") for v in self.outputs]
        return [*inputs.values(), *empty], expected


class _Writer:
    """Stages being made, each from those before."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.count = 0
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.dims = [source.choice([2, 3, 4, 5, 6, 7, 8, 9, 12, 16]) for _ in range(3)]
        self.symbol: SizeVar | None = SizeVar("n") if source.random() < 0.3 else None

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def dim(self, size: int) -> PrimExpr | int:
        """The first dimension is symbolic in some programs."""
        return self.symbol if self.symbol is not None and size == self.dims[0] else size

    def shape(self, size: Sequence[int]) -> list[PrimExpr | int]:
        return [self.dim(s) for s in size]

    def input(self, size: tuple[int, ...]) -> Value:
        name = f"x{len(self.inputs)}"
        tensor = te.placeholder(self.shape(size), name=name)
        result = Value(tensor, lambda env: env[name], size)
        self.inputs.append(result)
        self.values.append(result)
        return result

    def emit(
        self,
        size: tuple[int, ...],
        body: Callable[..., PrimExpr],
        reference: Reference,
        shape: Sequence[PrimExpr | int] | None = None,
    ) -> Value:
        dims = self.shape(size) if shape is None else list(shape)
        tensor = te.compute(dims, body, name=self.name())
        result = Value(tensor, reference, size)
        self.values.append(result)
        return result

    def some(self, rank: int | None = None) -> Value:
        """A recent value, of a rank if one is given; an input is made where there is none."""
        fitting = [v for v in self.values[-4:] if rank is None or len(v.size) == rank]
        if not fitting:
            return self.input(tuple(self.source.choice(self.dims) for _ in range(rank or 2)))
        return self.source.choice(fitting)

    # Kinds of stages.

    def unary(self) -> None:
        a = self.some()
        t, kind = a.tensor, self.source.randrange(3)
        bodies: list[Callable[..., PrimExpr]] = [
            lambda *i: t[i] * 2.0 + 1.0,
            lambda *i: maximum(t[i], 0.0),
            lambda *i: t[i] - 3.0,
        ]
        refs: list[Callable[[Array], Array]] = [
            lambda x: x * 2 + 1,
            lambda x: np.maximum(x, 0),
            lambda x: x - 3,
        ]
        ref = refs[kind]
        self.emit(a.size, _ranked(bodies[kind], len(a.size)), lambda env: ref(a.reference(env)))

    def binary(self) -> None:
        a = self.some()
        others = [v for v in self.values if v.size == a.size and v is not a]
        b = self.source.choice(others) if others else self.input(a.size)
        s, t = a.tensor, b.tensor
        self.emit(
            a.size,
            _ranked(lambda *i: s[i] + t[i], len(a.size)),
            lambda env: a.reference(env) + b.reference(env),
        )

    def broadcast(self) -> None:
        a = self.some(2)
        axis = self.source.randrange(2)
        b = self.input((a.size[axis],))
        s, t = a.tensor, b.tensor
        self.emit(
            a.size,
            lambda i, j: s[i, j] * t[(i, j)[axis]],
            lambda env: (
                a.reference(env)
                * (b.reference(env)[:, None] if axis == 0 else b.reference(env)[None, :])
            ),
        )

    def transpose(self) -> None:
        a = self.some(2)
        t = a.tensor
        self.emit(a.size[::-1], lambda i, j: t[j, i], lambda env: a.reference(env).T)

    def reduce(self) -> None:
        a = self.some(2)
        t, axis = a.tensor, self.source.randrange(2)
        k = te.reduce_axis((0, t.shape[axis]), "k")
        big = self.source.random() < 0.3
        reducer = te.max if big else te.sum
        self.emit(
            (a.size[1 - axis],),
            lambda i: reducer(t[(k, i) if axis == 0 else (i, k)], k),
            lambda env: (np.max if big else np.sum)(a.reference(env), axis=axis),
        )

    def product(self) -> None:
        a = self.some(2)
        t = a.tensor
        b = self.input((a.size[1], self.source.choice(self.dims[1:])))
        u = b.tensor
        k = te.reduce_axis((0, t.shape[1]), "k")
        self.emit(
            (a.size[0], b.size[1]),
            lambda i, j: te.sum(t[i, k] * u[k, j], k),
            lambda env: a.reference(env) @ b.reference(env),
        )

    def window(self) -> None:
        """A convolution along one axis without padding."""
        a = self.some(2)
        if a.size[1] < 3 or self.dim(a.size[1]) is self.symbol:
            return self.unary()
        t = a.tensor
        taps = self.input((3,))
        w = taps.tensor
        k = te.reduce_axis((0, 3), "k")
        size = a.size[1] - 2

        def reference(env: Values) -> Array:
            x, y = a.reference(env), taps.reference(env)
            return sum(x[:, n : n + size] * y[n] for n in range(3))  # type: ignore[return-value]

        self.emit(
            (a.size[0], size),
            lambda i, j: te.sum(t[i, j + k] * w[k], k),
            reference,
            [self.dim(a.size[0]), size],
        )
        return None

    def pad(self) -> None:
        a = self.some(2)
        if self.dim(a.size[1]) is self.symbol:
            return self.unary()
        t, n = a.tensor, a.size[1]
        self.emit(
            (a.size[0], n + 2),
            lambda i, j: if_then_else(
                logical_and(j >= 1, j < n + 1), t[i, j - 1], const(0.0, "float32")
            ),
            lambda env: np.pad(a.reference(env), ((0, 0), (1, 1))),
            [self.dim(a.size[0]), n + 2],
        )
        return None

    def bordered(self) -> None:
        """A convolution along one axis whose terms in the border are left out."""
        a = self.some(2)
        taps = self.input((3,))
        t, w = a.tensor, taps.tensor
        k, n = te.reduce_axis((0, 3), "k"), t.shape[1]

        def reference(env: Values) -> Array:
            x, y = np.pad(a.reference(env), ((0, 0), (1, 1))), taps.reference(env)
            return sum(x[:, m : m + a.size[1]] * y[m] for m in range(3))  # type: ignore[return-value]

        self.emit(
            a.size,
            lambda i, j: te.sum(
                if_then_else(
                    logical_and(j + k >= 1, j + k < n + 1),
                    t[i, j + k - 1] * w[k],
                    const(0.0, "float32"),
                ),
                k,
            ),
            reference,
        )

    def outer(self) -> None:
        a = self.some(1)
        b = self.input((self.source.choice(self.dims[1:]),))
        s, t = a.tensor, b.tensor
        self.emit(
            (*a.size, *b.size),
            lambda i, j: s[i] * t[j],
            lambda env: np.outer(a.reference(env), b.reference(env)),
        )


def _ranked(body: Callable[..., PrimExpr], rank: int) -> Callable[..., PrimExpr]:
    """A function with as many named parameters as there are axes."""
    if rank == 1:
        return lambda i: body(i)
    return lambda i, j: body(i, j)


STAGES = (
    "unary",
    "unary",
    "binary",
    "broadcast",
    "transpose",
    "reduce",
    "product",
    "product",
    "window",
    "window",
    "pad",
    "bordered",
    "outer",
)


def random_program(source: random.Random) -> TensorProgram:
    """Several stages; the last and sometimes one more are outputs."""
    writer = _Writer(source)
    writer.input((writer.dims[0], writer.dims[1]))
    for _ in range(source.randint(1, 4)):
        getattr(writer, source.choice(STAGES))()
    result = [v for v in writer.values if v not in writer.inputs]
    outputs = [result[-1]]
    if len(result) > 1 and source.random() < 0.2:
        outputs.append(result[0])
    needed = set(te.post_order_tensors([v.tensor for v in outputs]))
    inputs = [v for v in writer.inputs if v.tensor in needed]
    args = [*(v.tensor for v in inputs), *(v.tensor for v in outputs)]
    func = te.create_prim_func(args)
    return TensorProgram(func, {v.tensor.name: v.size for v in inputs}, tuple(outputs))


# Random steps.


class Steps:
    """Steps with arguments drawn at random, many of which are refused."""

    def __init__(self, sch: tir.Schedule, source: random.Random) -> None:
        self.sch, self.source = sch, source

    def block(self) -> str:
        return self.source.choice(list(self.sch._current_program.blocks))

    def loop(self, block: str | None = None) -> tir.LoopRV:
        loops = self.sch.get_loops(block or self.block())
        if not loops:
            raise ScheduleError("no loop")
        return self.source.choice(loops)

    def split(self) -> None:
        kind = self.source.randrange(6)
        factors: list[int | None] = [None, self.source.randint(1, 6)]
        if kind == 0:
            factors = [None, 2, 2]
        if kind == 1:
            factors = [self.source.randint(1, 4), None]
        tail = "loop" if kind == 2 else "predicate"
        self.sch.split(self.loop(), factors, tail=tail)

    def partition_by_conditions(self) -> None:
        block = self.block()
        self.sch.partition_by_conditions(block, self.loop(block))

    def fuse(self) -> None:
        loops = self.sch.get_loops(self.block())
        n = self.source.randrange(max(len(loops) - 1, 1))
        self.sch.fuse(*loops[n : n + 2])

    def reorder(self) -> None:
        loops = self.sch.get_loops(self.block())
        self.source.shuffle(loops)
        self.sch.reorder(*loops[: self.source.randint(2, 4)])

    def tile(self) -> None:
        loops = self.sch.get_loops(self.block())
        if len(loops) > 1:
            self.sch.tile(loops[0], loops[1], 2, self.source.randint(1, 4))

    def parallel(self) -> None:
        self.sch.parallel(self.loop())

    def vectorize(self) -> None:
        self.sch.vectorize(self.loop(), self.source.choice([None, 4]))

    def unroll(self) -> None:
        self.sch.unroll(self.loop())

    def neighbour(self, block: str, readers: bool) -> tir.LoopRV:
        """A loop of a block that reads what another makes, or makes what it reads."""
        near = self.sch.get_consumers(block) if readers else self.sch.get_producers(block)
        loops = self.sch.get_loops(self.source.choice(near)) if near else []
        if not loops:
            raise ScheduleError("no neighbour")
        return self.source.choice(loops)

    def compute_at(self) -> None:
        block = self.block()
        keep, place = self.source.random() < 0.3, self.source.choice([-1, -1, -2])
        self.sch.compute_at(block, self.neighbour(block, readers=True), keep, place)

    def reverse_compute_at(self) -> None:
        block = self.block()
        self.sch.reverse_compute_at(
            block, self.neighbour(block, readers=False), self.source.random() < 0.3
        )

    def roll(self) -> None:
        """compute_at, and what is then computed again and again kept."""
        block = self.block()
        self.sch.compute_at(block, self.neighbour(block, readers=True))
        self.sch.rolling_buffer(block, 0)

    def compute_inline(self) -> None:
        self.sch.compute_inline(self.block())

    def reverse_compute_inline(self) -> None:
        self.sch.reverse_compute_inline(self.block())

    def cache_read(self) -> None:
        self.sch.cache_read(self.block(), self.source.randrange(2), self.scope())

    def cache_write(self) -> None:
        self.sch.cache_write(self.block(), 0, self.scope())

    def scope(self) -> str:
        """A stack buffer needs a constant size."""
        sizes = [d for b in self.sch.func.params for d in b.shape]
        fixed = all(isinstance(d, IntImm) for d in sizes)
        return self.source.choice(["global", "global", "local" if fixed else "global"])

    def reindex(self) -> None:
        side = self.source.choice([("read", 0), ("read", 1), ("write", 0)])
        self.sch.reindex(self.block(), side)

    def rfactor(self) -> None:
        self.sch.rfactor(self.loop(), self.source.randint(0, 2))

    def decompose_reduction(self) -> None:
        block = self.block()
        self.sch.decompose_reduction(block, self.loop(block))

    def merge_reduction(self) -> None:
        inits = [b for b in self.sch._current_program.blocks if b.endswith("_init")]
        if inits:
            name = self.source.choice(inits)
            self.sch.merge_reduction(name, name.removesuffix("_init"))

    def blockize(self) -> None:
        self.sch.blockize(self.loop())

    def transform_layout(self) -> None:
        maps: list[Callable[..., object]] = [
            lambda i, j: (j, i),
            lambda i, j: (i // 4, j, i % 4),
            lambda i, j: (i, j // 3, j % 3),
            lambda i: (i // 2, i % 2),
        ]
        block = self.block()
        realize = self.sch._current_program.blocks[block]
        if self.sch._current_program.is_param(tir.schedule.program.block_writes(realize.block)[0]):
            return  # the function would take another layout
        self.sch.transform_layout(block, ("write", 0), self.source.choice(maps))  # type: ignore[arg-type]

    def transform_block_layout(self) -> None:
        maps: list[Callable[..., object]] = [
            lambda i, j: (j, i),
            lambda i, j, k: (j, i, k),
            lambda i, j: (i // 2, j, i % 2),
            lambda i, j, k: (i, k, j),
        ]
        self.sch.transform_block_layout(self.block(), self.source.choice(maps))  # type: ignore[arg-type]

    def pad_einsum(self) -> None:
        self.sch.pad_einsum(self.block(), [self.source.choice([1, 4]) for _ in range(3)])

    def rolling_buffer(self) -> None:
        self.sch.rolling_buffer(self.block(), 0)

    def set_scope(self) -> None:
        self.sch.set_scope(self.block(), 0, self.scope())

    def storage_align(self) -> None:
        self.sch.storage_align(self.block(), 0, -2, 4, 1)

    def reorder_block_iter_var(self) -> None:
        self.sch.reorder_block_iter_var(self.block(), [1, 0])

    def add_unit_loop(self) -> None:
        self.sch.add_unit_loop(self.block() if self.source.random() < 0.5 else self.loop())

    def annotate(self) -> None:
        self.sch.annotate(self.block(), "note", self.source.randint(0, 9))

    def sampled_split(self) -> None:
        loop = self.loop()
        self.sch.split(loop, self.sch.sample_perfect_tile(loop, 2))

    def sampled_place(self) -> None:
        block = self.block()
        self.sch.compute_at(block, self.sch.sample_compute_location(block))


KINDS = tuple(
    name
    for name in vars(Steps)
    if name not in ("block", "loop", "scope", "neighbour") and name[0] != "_"
)
COMPOSED = ("tile", "roll", "sampled_split", "sampled_place")
"""Kinds of several steps, the first of which may be done when a later one is refused."""
WEIGHTS = {
    "split": 5,
    "reorder": 4,
    "fuse": 3,
    "compute_at": 6,
    "reverse_compute_at": 5,
    "decompose_reduction": 3,
    "cache_write": 3,
    "cache_read": 3,
    "rfactor": 3,
    "roll": 4,
    "blockize": 2,
    "vectorize": 3,
    "parallel": 3,
    "partition_by_conditions": 3,
}


def random_steps(
    sch: tir.Schedule, source: random.Random, count: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Try random steps; how many of each kind were accepted, and refused.

    A refused step must leave the function as it was.
    """
    steps = Steps(sch, source)
    accepted: dict[str, int] = {}
    refused: dict[str, int] = {}
    weights = [WEIGHTS.get(kind, 1) for kind in KINDS]
    for kind in source.choices(KINDS, weights, k=count):
        before = sch.func
        try:
            getattr(steps, kind)()
        except ScheduleError:
            assert kind in COMPOSED or sch.func is before, kind
            refused[kind] = refused.get(kind, 0) + 1
        else:
            accepted[kind] = accepted.get(kind, 0) + 1
    return accepted, refused
