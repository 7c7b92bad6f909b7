"""Primitives on loops: each is a function from a PrimFunc to a PrimFunc that means the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.tir.schedule.tree import find_loop, fresh, reduce_variables, replace, require
from ekiden.tir.stmt import BlockRealize, For, ForKind, PrimFunc, Stmt
from ekiden.tir.visitor import sequence, substitute, walk

TAIL = "_tail"
"""What is appended to the names of blocks in the rest that a split leaves."""


def split(func: PrimFunc, loop: Var, factors: Sequence[int | None]) -> tuple[PrimFunc, list[Var]]:
    """for i in n: s   ->   for o in n // f: for j in f: s[o*f + j];  for t in n % f: s[(n // f)*f +
    t]

    One factor, the first, may be None: as many as it takes. The rest, if there may be one, is a
    copy of its own.
    """
    old = find_loop(func, loop)
    require(
        None not in factors[1:],
        f"split {loop.name!r}: only the first factor may be None, got {list(factors)}",
    )
    inner = [f for f in factors[1:] if f is not None]
    require(
        all(f > 0 for f in inner),
        f"split {loop.name!r}: factors must be positive, got {list(factors)}",
    )
    step = 1
    for factor in inner:
        step *= factor
    first = factors[0]
    outer = simplify(old.extent // step) if first is None else const(first)
    if first is not None:
        whole = is_const(simplify(old.extent - first * step), 0)
        require(
            whole,
            f"split {loop.name!r}: {list(factors)} must multiply to the extent, or begin with None",
        )
    variables = [Var(f"{loop.name}_{n}") for n in range(len(factors))]
    index: PrimExpr = const(0)
    for var, factor in zip(variables, [1, *inner], strict=True):
        index = index * factor + var
    main = substitute(old.body, {loop: old.min + index})
    for var, extent in reversed(list(zip(variables, [outer, *map(const, inner)], strict=True))):
        main = For(var, const(0), extent, ForKind.SERIAL, main)
    return replace(func, old, sequence(main, _rest(old, outer * step))), variables


def _rest(old: For, done: PrimExpr) -> Stmt:
    left = simplify(old.extent - done)
    if is_const(left, 0):
        return sequence()
    tail = fresh(old, TAIL)
    assert isinstance(tail, For)
    body = substitute(tail.body, {tail.loop_var: tail.min + done + tail.loop_var})
    return tail.with_fields(min=const(0), extent=left, body=body)


def fuse(func: PrimFunc, loops: Sequence[Var]) -> tuple[PrimFunc, Var]:
    """for i in n: for j in m: s   ->   for f in n*m: s[i := f // m, j := f % m]"""
    require(len(loops) > 0, "fuse: expected at least one loop")
    nest = [find_loop(func, v) for v in loops]
    for outer, inner in pairwise(nest):
        require(
            outer.body is inner,
            f"fuse: {inner.loop_var.name!r} must be alone inside {outer.loop_var.name!r}",
        )
    fused = Var("_".join(v.name for v in loops))
    total: PrimExpr = const(1)
    for each in nest:
        require(is_const(each.min, 0), f"fuse: loop {each.loop_var.name!r} must start at 0")
        total = total * each.extent
    rest: PrimExpr = fused
    values: dict[Var, PrimExpr] = {}
    for each in reversed(nest[1:]):
        values[each.loop_var] = rest % each.extent
        rest = rest // each.extent
    values[nest[0].loop_var] = rest
    body = substitute(nest[-1].body, values)
    return replace(
        func, nest[0], For(fused, const(0), simplify(total), ForKind.SERIAL, body)
    ), fused


def reorder(func: PrimFunc, loops: Sequence[Var]) -> PrimFunc:
    """The loops, which lie in one nest, in the given order; others between them stay where they
    are.
    """
    wanted = [find_loop(func, v) for v in loops]
    outermost = next(s for s in walk(func.body) if any(s is w for w in wanted))
    nest = _chain(outermost, len(wanted), wanted)
    order = iter(wanted)
    slots = [next(order) if any(s is w for w in wanted) else s for s in nest]
    defined: set[Var] = set()
    inside = {s.loop_var for s in nest}
    for each in slots:
        early = [v for v in free_vars(each.min, each.extent) if v in inside and v not in defined]
        require(
            not early,
            f"reorder: the range of {each.loop_var.name!r} depends on {[v.name for v in early]}",
        )
        defined.add(each.loop_var)
    body = nest[-1].body
    for each in reversed(slots):
        body = each.with_fields(body=body)
    return replace(func, outermost, body)


def _chain(outermost: Stmt, count: int, wanted: Sequence[For]) -> list[For]:
    """The loops from the outermost wanted one down to the last, each alone in the one before."""
    nest: list[For] = []
    s = outermost
    while isinstance(s, For) and count:
        nest.append(s)
        count -= any(s is w for w in wanted)
        s = s.body
    names = [w.loop_var.name for w in wanted]
    require(
        count == 0, f"reorder: loops {names} must lie in one nest with nothing else between them"
    )
    return nest


def _blocks(loop: For) -> list[BlockRealize]:
    return [s for s in walk(loop) if isinstance(s, BlockRealize)]


def set_kind(
    func: PrimFunc, loop: Var, kind: ForKind, annotations: Mapping[str, object] | None = None
) -> PrimFunc:
    """Run a loop in parallel, as vectors or unrolled.

    A loop that a reduction runs over may only be unrolled.
    """
    old = find_loop(func, loop)
    if kind in (ForKind.PARALLEL, ForKind.VECTORIZED):
        for realize in _blocks(old):
            reduced = free_vars(*reduce_variables(realize))
            carried = loop in reduced
            require(
                not carried,
                f"{kind.value} {loop.name!r}: block {realize.block.name!r} reduces over it",
            )
    if kind is ForKind.UNROLLED:
        require(
            isinstance(old.extent, IntImm), f"unroll {loop.name!r}: the extent must be a constant"
        )
    notes = {**(old.annotations or {}), **(annotations or {})} or None
    return replace(func, old, old.with_fields(kind=kind, annotations=notes))


def annotate_loop(func: PrimFunc, loop: Var, key: str, value: object) -> PrimFunc:
    """Set one annotation of a loop."""
    old = find_loop(func, loop)
    return replace(func, old, old.with_fields(annotations={**(old.annotations or {}), key: value}))
