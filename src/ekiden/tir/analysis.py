"""Analyses of loop programs (purity, FLOPs, allocated bytes, free variables), by TVM's names."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.arith import Analyzer
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.module import IRModule
from ekiden.ir.prim import BinaryExpr, IntImm, Intrinsic, PrimExpr, Select, Var
from ekiden.ir.prim_visitor import children, post_order
from ekiden.runtime.errors import ScheduleError, VerifyError
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, DeclBuffer, For, IfThenElse, PrimFunc, Stmt
from ekiden.tir.verifier import verify
from ekiden.tir.visitor import stmt_exprs, sub_statements


def _prim_funcs_by_name(program: PrimFunc | IRModule) -> dict[str, PrimFunc]:
    """Return the loop programs by name; a single PrimFunc is called "main"."""
    if isinstance(program, PrimFunc):
        return {"main": program}
    functions = program.functions.items()
    return {name.name_hint: f for name, f in functions if isinstance(f, PrimFunc)}


def verify_well_formed(obj: PrimFunc | IRModule, assert_mode: bool = True) -> bool:
    """Return whether each loop program is well-formed (see `tir.verify`), with blocks or without.

    With `assert_mode` raises VerifyError, which names the place.
    """
    for func in _prim_funcs_by_name(obj).values():
        try:
            verify(func, lowered=False)
        except VerifyError:
            if assert_mode:
                raise
            return False
    return True


def calculate_allocated_bytes(func_or_mod: PrimFunc | IRModule) -> dict[str, dict[str, int]]:
    """Return the peak of allocated bytes per function and memory scope.

    Raises ScheduleError for a buffer whose size is no number.
    """
    return {name: _peak_bytes_by_scope(f) for name, f in _prim_funcs_by_name(func_or_mod).items()}


def _peak_bytes_by_scope(func: PrimFunc) -> dict[str, int]:
    """Return the peak of live bytes per memory scope of one function."""
    live_bytes: dict[str, int] = {}
    peak_bytes: dict[str, int] = {}
    stack: list[Stmt | tuple[str, int]] = [func.body]
    while stack:
        s = stack.pop()
        if isinstance(s, tuple):
            live_bytes[s[0]] -= s[1]
            continue
        if isinstance(s, Allocate):
            scope, size = s.buffer.scope, _allocation_bytes(s)
            # Allocations nest as scopes, so a running sum per scope is exact: no interval graph is
            # needed.
            live_bytes[scope] = live_bytes.get(scope, 0) + size
            peak_bytes[scope] = max(peak_bytes.get(scope, 0), live_bytes[scope])
            # Pushed below the body, so popped when the whole allocation scope has been walked: the
            # buffer is freed there.
            stack.append((scope, size))
        stack.extend(reversed(sub_statements(s)))
    return peak_bytes


def _allocation_bytes(s: Allocate) -> int:
    """Return the size of an allocation in bytes."""
    size = dt.itemsize(s.buffer.dtype) * dt.lanes(s.buffer.dtype)
    for extent in s.buffer.shape:
        if not isinstance(extent, IntImm):
            raise ScheduleError(f"allocated bytes: {s.buffer.name!r} has the size {extent}")
        size *= extent.value
    return size


def estimate_tir_flops(stmt: PrimFunc | IRModule | Stmt) -> float:
    """Return the number of two-operand operations that a program's stored values compute.

    Index arithmetic does not count; of a branch the costlier side does, and a loop with a symbolic
    extent counts its upper bound. A function's attribute "estimated_flops" overrides the count.
    Raises ScheduleError for a loop without an upper bound. Source: TVM's
    tir.analysis.estimate_tir_flops.
    """
    if isinstance(stmt, Stmt):
        return _stmt_flops(stmt)
    total = 0.0
    for func in _prim_funcs_by_name(stmt).values():
        declared_flops = (func.attrs or {}).get("estimated_flops")
        total += (
            float(str(declared_flops)) if declared_flops is not None else _stmt_flops(func.body)
        )
    return total


def _stmt_flops(root: Stmt) -> float:
    """Return the FLOPs of a statement: a post-order walk on an explicit stack."""
    analyzer = Analyzer()
    flops_by_stmt: dict[int, float] = {}
    stack: list[tuple[Stmt, bool]] = [(root, False)]
    while stack:
        s, is_open = stack.pop()
        if not is_open:
            if isinstance(s, For):
                # Bound before the body is visited, so that extents of inner loops that depend on
                # this variable have an upper bound.
                analyzer.bind(s.loop_var, s.min, s.extent)
            stack.append((s, True))
            stack.extend((child, False) for child in sub_statements(s))
            continue
        num_operations = sum(_count_arithmetic_ops(e) for e in _stored_values(s))
        inside = [flops_by_stmt[id(child)] for child in sub_statements(s)]
        if isinstance(s, For):
            flops_by_stmt[id(s)] = _max_trip_count(s, analyzer) * sum(inside)
        else:
            flops_by_stmt[id(s)] = num_operations + (
                max(inside) if isinstance(s, IfThenElse) else sum(inside)
            )
    return flops_by_stmt[id(root)]


def _max_trip_count(loop: For, analyzer: Analyzer) -> float:
    high = analyzer.const_int_bound(loop.extent)[1]
    if high == float("inf"):
        raise ScheduleError(f"flops: loop {loop.loop_var.name!r} has the extent {loop.extent}")
    return max(0.0, float(high))


def _stored_values(s: Stmt) -> tuple[PrimExpr, ...]:
    """Return the values that a statement computes, without its indices."""
    value = getattr(s, "value", None)
    if isinstance(value, PrimExpr):
        return (value,)
    return stmt_exprs(s) if isinstance(s, IfThenElse) else ()


def _count_arithmetic_ops(e: PrimExpr) -> float:
    """Return the number of two-operand operations of an expression, without those of indices."""
    counts: dict[int, float] = {}
    for sub_expr in post_order(e):
        inside = (
            [] if isinstance(sub_expr, BufferLoad) else [counts[id(c)] for c in children(sub_expr)]
        )
        if isinstance(sub_expr, Select):
            # A select evaluates one side: the dearer one is counted, so that the estimate stays an
            # upper bound.
            counts[id(sub_expr)] = inside[0] + max(inside[1:])
        else:
            counts[id(sub_expr)] = sum(inside) + isinstance(sub_expr, BinaryExpr)
    return counts[id(e)]


def is_pure_function(func: PrimFunc) -> bool:
    """Return whether a function only computes a value (`tir.ret`): it writes no memory but its own
    allocations and calls nothing with side effects.
    """
    return _find_side_effect(func) == ""


def assert_pure_function(func: PrimFunc) -> bool:
    """Return True for a pure function; raise AssertionError, which names the effect, for
    another.
    """
    effect = _find_side_effect(func)
    if effect:
        raise AssertionError(f"function {func.name!r} is not pure: it {effect}")
    return True


def _find_side_effect(func: PrimFunc) -> str:
    """Return the first side effect of a function that is visible outside, as text, or ""
    for none.
    """
    allocated: set[Buffer] = set()
    stack: list[Stmt] = [func.body]
    while stack:
        s = stack.pop()
        if isinstance(s, Allocate) or (isinstance(s, DeclBuffer) and s.source in allocated):
            allocated.add(s.buffer)
        elif isinstance(s, BufferStore) and s.buffer not in allocated:
            return f"writes into {s.buffer.name!r}"
        for e in post_order(*stmt_exprs(s)):
            if (
                isinstance(e, Intrinsic)
                and find_intrinsic(e.op).has_effects
                and e.op not in ("ret", "assume")
            ):
                return f"calls {e.op}"
        stack.extend(sub_statements(s))
    return ""


def undefined_vars(node: Stmt | PrimExpr, defs: Mapping[Var, object] | None = None) -> list[Var]:
    """Return the variables that are used but not defined inside, in order of first use, without
    those in `defs`.
    """
    predefined = set(defs or ())
    bound: set[Var] = set()
    used: dict[Var, None] = {}
    stack: list[Stmt] = [node] if isinstance(node, Stmt) else []
    roots: list[PrimExpr] = [] if isinstance(node, Stmt) else [node]
    while stack:
        s = stack.pop()
        for field in ("loop_var", "var"):
            if isinstance(var := getattr(s, field, None), Var):
                bound.add(var)
        bound.update(i.var for i in getattr(s, "iter_vars", ()))
        roots += stmt_exprs(s)
        stack.extend(reversed(sub_statements(s)))
    for e in post_order(*roots):
        if isinstance(e, Var):
            used[e] = None
    return [v for v in used if v not in bound and v not in predefined]


__all__ = [
    "assert_pure_function",
    "calculate_allocated_bytes",
    "estimate_tir_flops",
    "is_pure_function",
    "undefined_vars",
    "verify_well_formed",
]
