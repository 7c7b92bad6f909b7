"""Loop nests over flat accesses: axis fusion, parallelisation and vectorisation.

An access is flat if its address is a sum of strides times loop variables. Two neighbouring loops i
< n, j < m become one, k < n * m, iff each access has stride(i) = stride(j) * m, or does not move
with either. That needs symbols to be compared, so it is proved, and what cannot be proved stays as
it is: a kernel that is not shown to be parallel is a serial one, and still right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ekiden.arith import Analyzer, simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import EXPENSIVE_INTRINSICS, LATENCY_BOUND_INTRINSICS
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    BinaryExpr,
    IntImm,
    Intrinsic,
    PrimExpr,
    Var,
    const,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import children, post_order, rewrite, substitute
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import For, ForKind, LetStmt, Stmt

MIN_PARALLEL_WORK = 32768
"""Work, in copied elements, below which a nest stays on one thread."""
PARALLEL_CHUNK_ELEMENTS = 8192
"""Elements per iteration of a flat parallel loop."""
ASSUMED_SYMBOLIC_EXTENT = 64
"""Assumed value of a symbolic extent in work estimates."""
VECTORS_PER_ITERATION = 2
"""Vectors of an expensive computation per iteration, which hide each other's latency. More do not
find registers (Zen 3: exp takes 0.75 of the time, tanh 0.8, log 0.85).
"""
MIN_PARALLEL_ITERATIONS = 64
"""Minimum iterations of a parallel loop, where axes can be fused."""


@dataclass(frozen=True, slots=True)
class LoopAxis:
    """A loop to be emitted: its variable and extent."""

    var: Var
    extent: PrimExpr


def estimated_product(extents: Sequence[PrimExpr]) -> int:
    """Return the product of extents, with ASSUMED_SYMBOLIC_EXTENT for each symbolic one."""
    return math.prod(e.value if isinstance(e, IntImm) else ASSUMED_SYMBOLIC_EXTENT for e in extents)


def element_cost(values: Sequence[PrimExpr]) -> int:
    """Return the estimated cost of computing an element, in units of copying one."""
    expensive = any(
        isinstance(e, Intrinsic) and e.op in EXPENSIVE_INTRINSICS for e in post_order(*values)
    )
    return 4 if expensive else 1


class NestAccesses:
    """Index expressions of a loop nest, and the variables that its values use directly."""

    def __init__(self, indices: Sequence[PrimExpr], values: Sequence[PrimExpr]) -> None:
        self._opaque: dict[int, Var] = {}
        self.direct: set[Var] = set()
        loads: dict[int, BufferLoad] = {}
        stack = list(values)
        visited: set[int] = set()
        while stack:
            e = stack.pop()
            if id(e) in visited:
                continue
            visited.add(id(e))
            if isinstance(e, Var):
                self.direct.add(e)
            elif isinstance(e, BufferLoad):
                loads[id(e)] = e
            else:
                stack.extend(children(e))
        inside = [
            e
            for e in post_order(*indices, *(i for x in loads.values() for i in x.indices))
            if isinstance(e, BufferLoad)
        ]
        loads.update((id(e), e) for e in inside)
        self.loads = list(loads.values())
        flat = [*indices, *(x.indices[0] for x in self.loads)]
        # A load inside an index is opaque to the analysis: it is replaced by a variable, equal
        # loads by the same one.
        self.indices = [self._replace_loads(i) for i in flat]
        self.load_indices = self.indices[len(indices) :]

    def _replace_loads(self, index: PrimExpr) -> PrimExpr:
        if not any(isinstance(e, BufferLoad) for e in post_order(index)):
            return index
        return rewrite(index, self._opaque_var)

    def _opaque_var(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad):
            return self._opaque.setdefault(id(e), Var("loaded", e.dtype))
        return e


def fuse_axes(
    axes: Sequence[LoopAxis], accesses: NestAccesses, analyzer: Analyzer
) -> tuple[list[LoopAxis], dict[Var, PrimExpr]]:
    """Fuse adjacent axes that every access treats as one contiguous axis.

    Returns:
        The axes, and the replacements of the old variables.
    """
    fused: list[LoopAxis] = []
    values: dict[Var, PrimExpr] = {}
    indices = accesses.indices
    for axis in axes:
        if isinstance(axis.extent, IntImm) and axis.extent.value == 1:
            values[axis.var] = const(0)
            continue
        outer = fused[-1] if fused else None
        # A value that uses the axis itself, not only as an index, would need a division per element
        # after fusion.
        direct = outer is not None and (outer.var in accesses.direct or axis.var in accesses.direct)
        if (
            outer is None
            or direct
            or not all(analyzer.can_fuse(i, outer.var, axis.var, axis.extent) for i in indices)
        ):
            fused.append(axis)
            continue
        joint = LoopAxis(Var(axis.var.name), simplify(outer.extent * axis.extent))
        analyzer.bind(joint.var, 0, joint.extent)
        step: dict[Var, PrimExpr] = {outer.var: const(0), axis.var: joint.var}
        values = {v: substitute(e, step) for v, e in values.items()} | step
        indices = [substitute(i, step) for i in indices]
        fused[-1] = joint
    return fused, values


def vector_lanes(
    target: Target, stored: str, loaded: Sequence[str], values: Sequence[PrimExpr] = ()
) -> int:
    """Return the vector lanes of a loop: full registers of its widest dtype, several of them for
    expensive values.
    """
    bits = dt.SCALAR_BITS[dt.element_dtype(stored)]
    for load_dtype in loaded:
        if load_dtype not in ("int64", "uint64") or stored in ("int64", "uint64", "float64"):
            bits = max(bits, dt.SCALAR_BITS[dt.element_dtype(load_dtype)])
    lanes = max(1, target.vector_bits // bits)
    is_long = any(
        isinstance(e, Intrinsic) and e.op in LATENCY_BOUND_INTRINSICS for e in post_order(*values)
    )
    return (
        lanes * VECTORS_PER_ITERATION
        if is_long and lanes > 1 and not target.kind.has_threads
        else lanes
    )


def serial_loops(axes: Sequence[LoopAxis], body: Stmt) -> Stmt:
    """Wrap a body in serial loops."""
    for axis in reversed(axes):
        body = For(axis.var, const(0), axis.extent, ForKind.SERIAL, body)
    return body


def vectorized_loop(axis: LoopAxis, lanes: int, body: Stmt, low: PrimExpr | None = None) -> Stmt:
    """Return a vectorised loop over an axis, with a scalar tail."""
    start = const(0) if low is None else low
    return For(axis.var, start, axis.extent, ForKind.VECTORIZED, body, {"lanes": lanes})


def parallel_outer_loops(axes: Sequence[LoopAxis], work: int, body: Stmt) -> Stmt:
    """Wrap a body in loops, the outer ones fused and parallel where there is enough work.

    Args:
        axes: The loops, outermost first.
        work: An estimate of the elements that one iteration of all the axes takes.
        body: The innermost statement.
    """
    count, grain = parallel_axes([a.extent for a in axes], work)
    if not count:
        return serial_loops(axes, body)
    return _fused_parallel_loop(list(axes[:count]), grain, serial_loops(axes[count:], body))


def parallel_axes(extents: Sequence[PrimExpr], work: int) -> tuple[int, int]:
    """Return how many of the outer loops to fuse into a parallel one, 0 where there is too little
    work for threads, and its grain.

    Args:
        extents: The extents of the loops, outermost first.
        work: An estimate of the elements that one iteration of all the loops takes.
    """
    is_static = all(isinstance(e, IntImm) for e in extents)
    if not extents or (is_static and estimated_product(extents) * work <= MIN_PARALLEL_WORK):
        return 0, 1
    count = 1
    # Only as many axes are fused as give threads enough steps: each one costs a division.
    while count < len(extents) and estimated_product(extents[:count]) < MIN_PARALLEL_ITERATIONS:
        count += 1
    step = max(1, work * estimated_product(extents[count:]))
    return count, max(1, MIN_PARALLEL_WORK // step)


def _fused_parallel_loop(axes: Sequence[LoopAxis], grain: int, body: Stmt) -> Stmt:
    if len(axes) == 1:
        return For(axes[0].var, const(0), axes[0].extent, ForKind.PARALLEL, body, {"grain": grain})
    joint = Var("_".join(a.var.name for a in axes))
    quotient: PrimExpr = joint
    lets: list[tuple[Var, PrimExpr]] = []
    # Divisions happen once per parallel iteration, not per element: the serial inner loops are
    # inside.
    for axis in reversed(axes[1:]):
        lets.append((axis.var, quotient % axis.extent))
        quotient = quotient // axis.extent
    lets.append((axes[0].var, quotient))
    for var, value in lets:
        body = LetStmt(var, value, body)
    return For(
        joint,
        const(0),
        product_of_dims([a.extent for a in axes]),
        ForKind.PARALLEL,
        body,
        {"grain": grain},
    )


def flat_parallel_loop(
    axis: LoopAxis, lanes: int, weight: int, body: Callable[[PrimExpr], Stmt]
) -> Stmt:
    """Return a loop nest over one long axis: parallel chunks of vectors.

    Args:
        axis: The axis.
        lanes: Lanes of a vector.
        weight: The `cost` of an element.
        body: Gives the statement for an index.
    """
    if isinstance(axis.extent, IntImm) and axis.extent.value * weight <= MIN_PARALLEL_WORK:
        return vectorized_loop(axis, lanes, body(axis.var))
    chunk, size = Var("chunk"), PARALLEL_CHUNK_ELEMENTS // weight
    is_exact = isinstance(axis.extent, IntImm) and axis.extent.value % size == 0
    chunk_extent = const(size) if is_exact else minimum(const(size), axis.extent - chunk * size)
    steps = simplify((axis.extent + (size - 1)) // size)
    nest = vectorized_loop(LoopAxis(axis.var, chunk_extent), lanes, body(chunk * size + axis.var))
    return For(
        chunk,
        const(0),
        steps,
        ForKind.PARALLEL,
        nest,
        {"grain": MIN_PARALLEL_WORK // PARALLEL_CHUNK_ELEMENTS},
    )


def _comparison_thresholds(
    condition: PrimExpr, axis: LoopAxis, inner_vars: set[Var], analyzer: Analyzer
) -> list[PrimExpr]:
    """Return the axis values at which a comparison changes, as expressions over variables outside
    the nest.
    """
    if not isinstance(condition, (LT, LE, GT, GE, EQ, NE)) or condition.a.dtype != "int64":
        return []
    difference = condition.a - condition.b
    scale = analyzer.coefficient(difference, axis.var)
    if not scale or (isinstance(condition, (EQ, NE)) and scale not in (1, -1)):
        return []
    intercept = analyzer.simplify(substitute(difference, {axis.var: const(0)}))
    # A split point is computed outside of the nest, where inner variables do not exist.
    if any(e in inner_vars or isinstance(e, BufferLoad) for e in post_order(intercept)):
        return []
    return _threshold_edges(type(condition), intercept, scale)


def _threshold_edges(kind: type[BinaryExpr], intercept: PrimExpr, scale: int) -> list[PrimExpr]:
    """Return the edges of a linear comparison: s*v + intercept < 0 iff v < -(intercept // s).
    >= intercept // s + 1.
    """
    if kind in (EQ, NE):
        root = -intercept if scale > 0 else intercept
        return [simplify(root), simplify(root + 1)]
    # For integers x <= 0 is x - 1 < 0, and > is the complement of <=.
    bound = intercept - 1 if kind in (LE, GT) else intercept
    return [simplify(-(bound // scale) if scale > 0 else bound // -scale + 1)]


MAX_AXIS_SEGMENTS = 80


def split_points(
    values: Sequence[PrimExpr], axis: LoopAxis, inner_vars: set[Var], analyzer: Analyzer
) -> list[PrimExpr]:
    """Return the points that split an axis into segments in which its conditions are constant.

    Returns:
        The points in increasing order, from 0 to the extent of the axis.
    """
    thresholds: dict[object, PrimExpr] = {}
    for e in post_order(*values):
        if e.dtype == "bool" and isinstance(e, BinaryExpr):
            for threshold in _comparison_thresholds(e, axis, inner_vars, analyzer):
                thresholds[threshold.value if isinstance(threshold, IntImm) else threshold] = (
                    threshold
                )
    inside = [
        p
        for p in (_clamp_point(p, axis.extent, analyzer) for p in thresholds.values())
        if p is not None
    ]
    ordered = _sort_points(inside, analyzer)
    # Each segment is a copy of the body: code size bounds their number.
    if ordered is None or len(ordered) > MAX_AXIS_SEGMENTS:
        return [const(0), axis.extent]
    return [const(0), *ordered, axis.extent]


def _clamp_point(point: PrimExpr, extent: PrimExpr, analyzer: Analyzer) -> PrimExpr | None:
    """Clamp a split point to [0, extent]; None at either end."""
    if analyzer.can_prove(point <= 0) or analyzer.can_prove(point >= extent):
        return None
    return analyzer.simplify(maximum(minimum(point, extent), 0))


def _sort_points(points: Sequence[PrimExpr], analyzer: Analyzer) -> list[PrimExpr] | None:
    """Return distinct points in increasing order; None if two cannot be compared. Numbers need no
    proofs; a symbol needs one for each that precedes it.
    """
    numbers = sorted({p.value for p in points if isinstance(p, IntImm)})
    ordered: list[PrimExpr] = [const(n) for n in numbers]
    for point in (p for p in points if not isinstance(p, IntImm)):
        # Symbols go in by insertion: only proofs order them, so `sorted` has no key to use.
        at = 0
        for at, existing in enumerate([*ordered, None]):  # noqa: B007
            if existing is None or analyzer.can_prove(point <= existing):
                break
            if not analyzer.can_prove(point >= existing):
                return None
        if at == len(ordered) or not analyzer.can_prove_equal(point, ordered[at]):
            ordered.insert(at, point)
    return ordered
