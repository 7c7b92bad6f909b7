"""Schedule records of stages: axes, the relations that derive axes from others, and axis
annotations.

A stage's steps are Split, Fuse, Singleton and Reorder in the order they were asked for; an axis is
an `IterVar` of a computation or of a step, or a `ReduceAxis`.
"""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from ekiden.ir.node import Node, node
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, Var, const
from ekiden.ir.range import Range
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te.reducer import ReduceAxis
from ekiden.te.tensor import Operation
from ekiden.tir.stmt import IterKind, IterVar

Axis: TypeAlias = IterVar | ReduceAxis


@node("te.ThreadAxis")
class ThreadAxis(IterVar):
    """A thread axis: "blockIdx.x", "threadIdx.y", "vthread", ...; `extent` is an AnyDim until a
    loop is bound to it.
    """

    thread_tag: str = ""


def thread_axis(
    dom: int | PrimExpr | tuple[int | PrimExpr, int | PrimExpr] | Range | str | None = None,
    tag: str = "",
    name: str = "",
) -> ThreadAxis:
    """Return a thread axis for `Stage.bind`: `te.thread_axis("threadIdx.x")`, `te.thread_axis((0,
    64), "threadIdx.x")`, `te.thread_axis(64, "vthread")`. Raises ValueError without a tag.
    """
    if isinstance(dom, str):
        tag, dom = dom, None
    if not tag:
        raise ValueError("thread_axis: a tag such as 'threadIdx.x' must be given")
    extent: PrimExpr = AnyDim("int64")
    if dom is not None:
        extent = _as_range(dom).extent
    return ThreadAxis(Var(name or tag), extent, IterKind.OPAQUE, tag)


def _as_range(dom: int | PrimExpr | tuple[int | PrimExpr, int | PrimExpr] | Range) -> Range:
    if isinstance(dom, Range):
        return dom
    return Range(*dom) if isinstance(dom, (tuple, list)) else Range(dom)


@node("te.Relation")
class Relation(Node):
    """Relation between derived axes and others."""


@node("te.Split")
class Split(Relation):
    """Split of `parent` into outer * factor + inner, or into `nparts` parts; one of the two is
    None.
    """

    parent: Axis
    outer: IterVar
    inner: IterVar
    factor: PrimExpr | None
    nparts: PrimExpr | None


@node("te.Fuse")
class Fuse(Relation):
    """Fusion of the adjacent axes `outer` and `inner`."""

    outer: Axis
    inner: Axis
    fused: IterVar


@node("te.Singleton")
class Singleton(Relation):
    """Axis of one iteration, derived from none."""

    iter: IterVar


@dataclass(frozen=True, slots=True)
class Reorder:
    """Order of the named leaves; others stay in place."""

    order: tuple[Axis, ...]


Step: TypeAlias = Split | Fuse | Singleton | Reorder


@dataclass(slots=True)
class AxisAttr:
    """Annotations of an axis: its iteration kind, thread binding and pragmas."""

    iter_type: int = IterVar.DataPar
    bind_thread: ThreadAxis | None = None
    pragmas: dict[str, object] = field(default_factory=dict)
    tensor_intrin: object = None

    @property
    def pragma_keys(self) -> list[str]:
        """Return the names of the pragmas."""
        return list(self.pragmas)

    @property
    def pragma_values(self) -> list[object]:
        """Return the values of the pragmas."""
        return list(self.pragmas.values())


def root_axes(op: Operation) -> tuple[Axis, ...]:
    """Return an operation's root axes: spatial, then reduction axes."""
    return (*getattr(op, "axis", ()), *getattr(op, "reduce_axis", ()))


def is_reduce_axis(axis: Axis) -> bool:
    """Return whether an axis is a reduction axis."""
    return isinstance(axis, ReduceAxis) or axis.kind is IterKind.REDUCE


def iter_kind_of(axis: Axis) -> IterKind:
    """Return the kind of axes derived from this one."""
    return IterKind.REDUCE if isinstance(axis, ReduceAxis) else axis.kind


def ceil_div(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return how many parts of size b cover a."""
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return const(-(-a.value // b.value), a.dtype)
    return (a + (b - 1)) // b


__all__ = [
    "Axis", "AxisAttr", "Fuse", "IterVar", "Relation", "Reorder", "Singleton", "Split", "Step",
    "ThreadAxis", "ceil_div", "is_reduce_axis", "iter_kind_of", "root_axes", "thread_axis",
]  # fmt: skip
