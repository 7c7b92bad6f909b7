"""What a plan of memory needs to know of a compiled kernel; kept beside its object code.

They are read off the loop program that is compiled, so that they hold for whatever schedule made
it: how much it allocates at once (outside of parallel loops once, inside once a thread), which
inputs are read before the same element of the output is written, and whether there is a vector in
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from ekiden.arith import simplify
from ekiden.codegen.common import DEVICE_TYPE, in_place
from ekiden.ir import dtype as dt
from ekiden.ir.json import load_json, save_json
from ekiden.ir.prim import PrimExpr, Var, const, maximum
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.relay.transform.memory_plan import KernelFacts
from ekiden.target import Target
from ekiden.tir.contents import contents
from ekiden.tir.stmt import Allocate, For, ForKind, IfThenElse, LetStmt, PrimFunc, SeqStmt, Stmt

LINE = 64
"""Bytes that ek_workspace_alloc puts before each block, whose size it rounds up to as many."""


def facts_of(lowered: PrimFunc, target: Target) -> KernelFacts:
    """The facts of a kernel that is ready to be compiled; with a thread per core of the target."""
    if DEVICE_TYPE in (lowered.attrs or {}):  # it takes what it needs from its device
        return KernelFacts(const(0), (), True)
    alone, each = _needs(lowered.body, frozenset())
    space = simplify(alone + each * target.cores)
    updates = bool((lowered.attrs or {}).get("tir.updates"))
    return KernelFacts(space, in_place(lowered), _has_vectors(lowered), updates)


def _has_vectors(lowered: PrimFunc) -> bool:
    """Whether any value of a kernel is a vector; what moves no elements needs none."""
    found = contents(lowered.body)
    return For not in found.statements or found.has_vectors


def renamed(facts: KernelFacts, symbols: Mapping[str, PrimExpr]) -> KernelFacts:
    """The facts for a caller that calls the kernel's symbols so. Symbols that it has no name for
    make the workspace unknown: 0.
    """
    free = free_vars(facts.workspace)
    if any(v.name not in symbols for v in free):
        return replace(facts, workspace=const(0))
    size = simplify(substitute(facts.workspace, {v: symbols[v.name] for v in free}))
    return replace(facts, workspace=size)


_Need = tuple[PrimExpr, PrimExpr]
"""Bytes at once of the thread that calls, and of each thread in a parallel loop."""


def _needs(stmt: Stmt, bound: frozenset[Var]) -> _Need:
    """Recursive: statements nest as deep as loops do. Sizes that depend on loops count nothing: the
    caller could not say them, so the kernel takes such memory from its thread. Of statements in a
    row and of branches the greatest counts, as each gives back what it took."""
    match stmt:
        case Allocate(buffer=buffer, body=body):
            alone, each = _needs(body, bound)
            size: PrimExpr = const(dt.itemsize(buffer.dtype))
            for extent in buffer.shape:
                size = size * extent
            if buffer.scope != "global" or not bound.isdisjoint(free_vars(size)):
                return alone, each
            return alone + (size + (LINE - 1)) // LINE * LINE + LINE, each
        case For(kind=kind, body=body, loop_var=var):
            alone, each = _needs(body, bound | {var})
            if kind is ForKind.PARALLEL:
                return const(0), alone + each
            return alone, each
        case LetStmt():
            names: set[Var] = set()
            while isinstance(stmt, LetStmt):
                names.add(stmt.var)
                stmt = stmt.body
            return _needs(stmt, bound | names)
        case IfThenElse(then_case=then, else_case=other):
            return _most([_needs(s, bound) for s in (then, other) if s is not None])
        case SeqStmt(seq=parts):
            return _most([_needs(s, bound) for s in parts])
        case _:
            return const(0), const(0)


def _most(needs: list[_Need]) -> _Need:
    alone, each = needs[0]
    for more, more_each in needs[1:]:
        alone, each = maximum(alone, more), maximum(each, more_each)
    return simplify(alone), simplify(each)


def packed(facts: KernelFacts, code: bytes) -> bytes:
    """Facts and object code as the cache keeps them: a line of JSON, then the code."""
    head = {
        "workspace": save_json(facts.workspace),
        "in_place": facts.in_place,
        "vectors": facts.vectors,
        "updates": facts.updates,
    }
    return json.dumps(head).encode() + b"\n" + code


def unpacked(kept: bytes) -> tuple[KernelFacts, bytes]:
    """What `packed` has put together."""
    head, _, code = kept.partition(b"\n")
    found = json.loads(head)
    workspace = load_json(found["workspace"])
    assert isinstance(workspace, PrimExpr)
    flags = bool(found["vectors"]), bool(found["updates"])
    return KernelFacts(workspace, tuple(found["in_place"]), *flags), code


__all__ = ["facts_of", "packed", "renamed", "unpacked"]
