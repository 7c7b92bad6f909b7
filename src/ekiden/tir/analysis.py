"""Questions about loop programs, by TVM's names."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.arith import Analyzer
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import row_of
from ekiden.ir.module import IRModule
from ekiden.ir.prim import BinaryExpr, IntImm, Intrinsic, PrimExpr, Select, Var
from ekiden.ir.prim_visitor import children, post_order
from ekiden.runtime.errors import ScheduleError, VerifyError
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import Allocate, BufferStore, DeclBuffer, For, IfThenElse, PrimFunc, Stmt
from ekiden.tir.verifier import verify
from ekiden.tir.visitor import expressions, sub_statements


def _functions(program: PrimFunc | IRModule) -> dict[str, PrimFunc]:
    """The loop programs by name; one alone is "main"."""
    if isinstance(program, PrimFunc):
        return {"main": program}
    found = program.functions.items()
    return {name.name_hint: f for name, f in found if isinstance(f, PrimFunc)}


def verify_well_formed(obj: PrimFunc | IRModule, assert_mode: bool = True) -> bool:
    """Whether each loop program is well-formed (see `tir.verify`), with blocks or without.

    With `assert_mode` raises VerifyError, which names the place.
    """
    for func in _functions(obj).values():
        try:
            verify(func, lowered=False)
        except VerifyError:
            if assert_mode:
                raise
            return False
    return True


def calculate_allocated_bytes(func_or_mod: PrimFunc | IRModule) -> dict[str, dict[str, int]]:
    """Function -> scope -> how many bytes of it are allocated at most at once.

    Raises ScheduleError for a buffer whose size is no number.
    """
    return {name: _allocated(f) for name, f in _functions(func_or_mod).items()}


def _allocated(func: PrimFunc) -> dict[str, int]:
    now: dict[str, int] = {}
    most: dict[str, int] = {}
    stack: list[Stmt | tuple[str, int]] = [func.body]
    while stack:
        s = stack.pop()
        if isinstance(s, tuple):
            now[s[0]] -= s[1]
            continue
        if isinstance(s, Allocate):
            scope, size = s.buffer.scope, _bytes(s)
            now[scope] = now.get(scope, 0) + size
            most[scope] = max(most.get(scope, 0), now[scope])
            stack.append((scope, size))
        stack.extend(reversed(sub_statements(s)))
    return most


def _bytes(s: Allocate) -> int:
    size = dt.itemsize(s.buffer.dtype) * dt.lanes(s.buffer.dtype)
    for extent in s.buffer.shape:
        if not isinstance(extent, IntImm):
            raise ScheduleError(f"allocated bytes: {s.buffer.name!r} has the size {extent}")
        size *= extent.value
    return size


def estimate_tir_flops(stmt: PrimFunc | IRModule | Stmt) -> float:
    """How many operations of two operands a program computes in what it stores.

    Indices do not count; of a branch the longer side does, of a loop whose extent is no number the
    longest. A function's attribute "estimated_flops" is believed. Raises ScheduleError for a loop
    without a longest turn. Source: TVM's tir.analysis.estimate_tir_flops.
    """
    if isinstance(stmt, Stmt):
        return _flops(stmt)
    total = 0.0
    for func in _functions(stmt).values():
        said = (func.attrs or {}).get("estimated_flops")
        total += float(str(said)) if said is not None else _flops(func.body)
    return total


def _flops(root: Stmt) -> float:
    """Inner statements first, on a stack of its own."""
    analyzer = Analyzer()
    found: dict[int, float] = {}
    stack: list[tuple[Stmt, bool]] = [(root, False)]
    while stack:
        s, is_open = stack.pop()
        if not is_open:
            if isinstance(s, For):
                analyzer.bind(s.loop_var, s.min, s.extent)
            stack.append((s, True))
            stack.extend((each, False) for each in sub_statements(s))
            continue
        own = sum(_operations(e) for e in _values(s))
        inside = [found[id(each)] for each in sub_statements(s)]
        if isinstance(s, For):
            found[id(s)] = _turns(s, analyzer) * sum(inside)
        else:
            found[id(s)] = own + (max(inside) if isinstance(s, IfThenElse) else sum(inside))
    return found[id(root)]


def _turns(loop: For, analyzer: Analyzer) -> float:
    high = analyzer.const_int_bound(loop.extent)[1]
    if high == float("inf"):
        raise ScheduleError(f"flops: loop {loop.loop_var.name!r} has the extent {loop.extent}")
    return max(0.0, float(high))


def _values(s: Stmt) -> tuple[PrimExpr, ...]:
    """What a statement computes but for the places of it."""
    value = getattr(s, "value", None)
    if isinstance(value, PrimExpr):
        return (value,)
    return expressions(s) if isinstance(s, IfThenElse) else ()


def _operations(e: PrimExpr) -> float:
    """The operations of an expression, those of indices left out."""
    counts: dict[int, float] = {}
    for each in post_order(e):
        inside = [] if isinstance(each, BufferLoad) else [counts[id(c)] for c in children(each)]
        if isinstance(each, Select):
            counts[id(each)] = inside[0] + max(inside[1:])
        else:
            counts[id(each)] = sum(inside) + isinstance(each, BinaryExpr)
    return counts[id(e)]


def is_pure_function(func: PrimFunc) -> bool:
    """Whether a function does nothing but give a value (`tir.ret`): it writes into no memory but
    its own, and calls nothing that may."""
    return _effect(func) == ""


def assert_pure_function(func: PrimFunc) -> bool:
    """True for a pure function. Raises AssertionError, which says what another does."""
    found = _effect(func)
    if found:
        raise AssertionError(f"function {func.name!r} is not pure: it {found}")
    return True


def _effect(func: PrimFunc) -> str:
    """What a function does that can be seen outside of it, "" for nothing."""
    own: set[Buffer] = set()
    stack: list[Stmt] = [func.body]
    while stack:
        s = stack.pop()
        if isinstance(s, Allocate) or (isinstance(s, DeclBuffer) and s.source in own):
            own.add(s.buffer)
        elif isinstance(s, BufferStore) and s.buffer not in own:
            return f"writes into {s.buffer.name!r}"
        for e in post_order(*expressions(s)):
            if isinstance(e, Intrinsic) and row_of(e.op).effects and e.op not in ("ret", "assume"):
                return f"calls {e.op}"
        stack.extend(sub_statements(s))
    return ""


def undefined_vars(node: Stmt | PrimExpr, defs: Mapping[Var, object] | None = None) -> list[Var]:
    """The variables that are used and not defined inside, in order of appearance; those of `defs`
    are not named."""
    known = set(defs or ())
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
        roots += expressions(s)
        stack.extend(reversed(sub_statements(s)))
    for e in post_order(*roots):
        if isinstance(e, Var):
            used[e] = None
    return [v for v in used if v not in bound and v not in known]


__all__ = [
    "assert_pure_function",
    "calculate_allocated_bytes",
    "estimate_tir_flops",
    "is_pure_function",
    "undefined_vars",
    "verify_well_formed",
]
