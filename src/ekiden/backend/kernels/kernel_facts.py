"""Kernel metadata for memory planning, cached beside the object code.

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
from ekiden.codegen.common import DEVICE_TYPE_ATTR, in_place_params
from ekiden.ir import dtype as dt
from ekiden.ir.json import load_json, save_json
from ekiden.ir.prim import PrimExpr, Var, const, maximum
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.relay.transform.memory_plan import KernelMemoryInfo
from ekiden.target import Target
from ekiden.tir.stmt import Allocate, For, ForKind, IfThenElse, LetStmt, PrimFunc, SeqStmt, Stmt
from ekiden.tir.stmt_summary import summarize_stmt

WORKSPACE_HEADER_BYTES = 64
"""Header and rounding granularity of an ek_workspace_alloc block in bytes."""


def kernel_facts(lowered: PrimFunc, target: Target) -> KernelMemoryInfo:
    """Return the facts of a lowered kernel, assuming one thread per core of the target."""
    if DEVICE_TYPE_ATTR in (lowered.attrs or {}):  # it takes what it needs from its device
        return KernelMemoryInfo(const(0), (), True)
    alone, per_thread = _workspace_need(lowered.body, frozenset())
    space = simplify(alone + per_thread * target.cores)
    updates = bool((lowered.attrs or {}).get("tir.updates"))
    return KernelMemoryInfo(space, in_place_params(lowered), _has_vectors(lowered), updates)


def _has_vectors(lowered: PrimFunc) -> bool:
    """Return whether any value of a kernel is a vector; code without loops needs none."""
    summary = summarize_stmt(lowered.body)
    return For not in summary.stmt_types or summary.has_vectors


def rename_facts(facts: KernelMemoryInfo, symbols: Mapping[str, PrimExpr]) -> KernelMemoryInfo:
    """Return the facts in the caller's symbols. A symbol that the caller cannot name makes the
    workspace unknown: 0.
    """
    free = free_vars(facts.workspace)
    if any(v.name not in symbols for v in free):
        return replace(facts, workspace=const(0))
    size = simplify(substitute(facts.workspace, {v: symbols[v.name] for v in free}))
    return replace(facts, workspace=size)


_WorkspaceNeed = tuple[PrimExpr, PrimExpr]
"""Peak workspace in bytes of the calling thread, and of each thread in a parallel loop."""


def _workspace_need(stmt: Stmt, bound: frozenset[Var]) -> _WorkspaceNeed:
    """Return the workspace need of a statement. Sizes that depend on loop variables count as 0: the
    caller cannot compute them, so the kernel allocates them itself. Of sequential statements and
    branches the largest counts, as each frees what it took. The recursion is as deep as loops
    nest.
    """
    match stmt:
        case Allocate(buffer=buffer, body=body):
            alone, per_thread = _workspace_need(body, bound)
            size: PrimExpr = const(dt.itemsize(buffer.dtype))
            for extent in buffer.shape:
                size = size * extent
            if buffer.scope != "global" or not bound.isdisjoint(free_vars(size)):
                return alone, per_thread
            return (
                alone
                + (size + (WORKSPACE_HEADER_BYTES - 1))
                // WORKSPACE_HEADER_BYTES
                * WORKSPACE_HEADER_BYTES
                + WORKSPACE_HEADER_BYTES,
                per_thread,
            )
        case For(kind=kind, body=body, loop_var=var):
            alone, per_thread = _workspace_need(body, bound | {var})
            if kind is ForKind.PARALLEL:
                return const(0), alone + per_thread
            return alone, per_thread
        case LetStmt():
            names: set[Var] = set()
            while isinstance(stmt, LetStmt):
                names.add(stmt.var)
                stmt = stmt.body
            return _workspace_need(stmt, bound | names)
        case IfThenElse(then_case=then_case, else_case=else_case):
            return _largest_need(
                [_workspace_need(s, bound) for s in (then_case, else_case) if s is not None]
            )
        case SeqStmt(seq=statements):
            return _largest_need([_workspace_need(s, bound) for s in statements])
        case _:
            return const(0), const(0)


def _largest_need(needs: list[_WorkspaceNeed]) -> _WorkspaceNeed:
    alone, per_thread = needs[0]
    for more, more_each in needs[1:]:
        alone, per_thread = maximum(alone, more), maximum(per_thread, more_each)
    return simplify(alone), simplify(per_thread)


def serialize_entry(facts: KernelMemoryInfo, code: bytes) -> bytes:
    """Serialise facts and object code for the cache; a line of JSON, then the code."""
    head = {
        "workspace": save_json(facts.workspace),
        "in_place": facts.in_place,
        "vectors": facts.is_vectorized,
        "updates": facts.updates_input,
    }
    return json.dumps(head).encode() + b"\n" + code


def deserialize_entry(entry: bytes) -> tuple[KernelMemoryInfo, bytes]:
    """Deserialise facts and object code from a cache entry."""
    head, _, code = entry.partition(b"\n")
    fields = json.loads(head)
    workspace = load_json(fields["workspace"])
    assert isinstance(workspace, PrimExpr)
    flags = bool(fields["vectors"]), bool(fields["updates"])
    return KernelMemoryInfo(workspace, tuple(fields["in_place"]), *flags), code


__all__ = ["deserialize_entry", "kernel_facts", "rename_facts", "serialize_entry"]
