"""Lower blocks to their statements, with iterators replaced by their bindings.

    for i, k in grid(16, 8):                          for i in range(16):
        with block("sum"):                                B[i] = 0
            vi, vk = axis.remap("SR", [i, k])     ->      for k in range(8):
            with init(): B[vi] = 0                            B[i] = B[i] + A[i, k]
            B[vi] = B[vi] + A[vi, vk]

The init goes before the enclosing loops that only the reduction uses, if they begin where all
reduction iterators are 0. Where there are none, as for k outside of i, it stays in the body under a
condition: `if k == 0: B[i] = 0`. A block's predicate becomes a condition marked `likely`, which
LoopPartition removes from the main part of the loops.
"""

from __future__ import annotations

from ekiden.arith import simplify
from ekiden.ir.prim import EQ, Intrinsic, PrimExpr, Var, const, fold_binary, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.tir.predicates import init_conditions, join_conjuncts
from ekiden.tir.stmt import BlockRealize, For, ForKind, IfThenElse, IterKind, PrimFunc, Stmt
from ekiden.tir.transform.double_buffering import DOUBLE_BUFFER_ANNOTATION
from ekiden.tir.transform.inject_prefetch import inject_prefetch
from ekiden.tir.transform.storage_alignment import (
    ALIGNMENT_ANNOTATION,
    AlignmentRule,
    alignment_rules,
)
from ekiden.tir.visitor import StmtMutator, flatten_seq, substitute


class _BlockLowerer(StmtMutator):
    def __init__(self) -> None:
        self.aligned: dict[str, tuple[AlignmentRule, ...]] = {}

    def visit_for(self, stmt: For) -> Stmt:
        """Place a block's init before the loop where all loops from here to the block reduce; it
        then runs even if they are empty.
        """
        # First, while the block still tells what it reads.
        stmt = inject_prefetch(stmt)
        filled = _block_of_perfect_nest(stmt)
        if filled is not None and _is_double_buffered(filled):
            plain = filled.with_fields(block=filled.block.with_fields(annotations=None))
            return _mark_double_buffer(self.visit(_replace_innermost(stmt, plain)))
        realize = _match_reduction_nest(stmt)
        if realize is None:
            return super().visit_for(stmt)
        block = realize.block.with_fields(init=None)
        loops = super().visit_for(_replace_innermost(stmt, realize.with_fields(block=block)))
        assert realize.block.init is not None
        init = substitute(self.visit(realize.block.init), _spatial_values(realize))
        predicate = join_conjuncts(init_conditions(realize))
        return flatten_seq(_guard_body(init, _mark_likely(predicate)), loops)

    def visit_realize(self, stmt: BlockRealize) -> Stmt:
        """Rewrite for ..: block(vi = e): init; body to for ..: if first: init[vi := e]; body[vi :=
        e].
        """
        self.aligned |= alignment_rules(stmt.block)
        values = {i.var: v for i, v in zip(stmt.block.iter_vars, stmt.iter_values, strict=True)}
        body = substitute(self.visit(stmt.block.body), values)
        if stmt.block.init is not None:
            first: PrimExpr = const(True)
            for iter_var, value in zip(stmt.block.iter_vars, stmt.iter_values, strict=True):
                if iter_var.kind is IterKind.REDUCE:
                    first = logical_and(first, fold_binary(EQ, value, 0))
            init = substitute(self.visit(stmt.block.init), values)
            body = flatten_seq(_guard_body(init, first), body)
        if _is_double_buffered(stmt):
            body = _mark_double_buffer(body)
        return _guard_body(body, _mark_likely(stmt.predicate))


def _guard_body(body: Stmt, condition: PrimExpr) -> Stmt:
    return body if is_const(condition, True) else IfThenElse(condition, body)


def _mark_likely(predicate: PrimExpr) -> PrimExpr:
    """Return a predicate marked likely, so that loop_partition may peel the tail it masks."""
    return predicate if is_const(predicate) else Intrinsic("likely", (predicate,), "bool")


def _is_double_buffered(realize: BlockRealize) -> bool:
    return (realize.block.annotations or {}).get("double_buffer_scope") is not None


def _mark_double_buffer(body: Stmt) -> Stmt:
    """Return the statement in the marked loop that inject_double_buffer looks for."""
    return For(
        Var("fill"), const(0), const(1), ForKind.SERIAL, body, {DOUBLE_BUFFER_ANNOTATION: True}
    )


def _block_of_perfect_nest(stmt: Stmt) -> BlockRealize | None:
    """Return the block at the end of a perfect loop nest, or None."""
    while isinstance(stmt, For):
        stmt = stmt.body
    return stmt if isinstance(stmt, BlockRealize) else None


def _spatial_values(realize: BlockRealize) -> dict[Var, PrimExpr]:
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return {i.var: v for i, v in pairs if i.kind is IterKind.SPATIAL}


def _match_reduction_nest(stmt: For) -> BlockRealize | None:
    """Return the block with an init at the end of a nest of loops that only its reduction uses, or
    None.
    """
    loops: dict[Var, PrimExpr] = {}
    inner: Stmt = stmt
    while isinstance(inner, For) and inner.kind in (ForKind.SERIAL, ForKind.UNROLLED):
        loops[inner.loop_var] = inner.min
        inner = inner.body
    if not isinstance(inner, BlockRealize) or inner.block.init is None:
        return None
    if not loops.keys().isdisjoint(free_vars(*_spatial_values(inner).values())):
        return None  # asked first: most nests are done with here
    # A condition on these loops cannot be tested before them.
    if not loops.keys().isdisjoint(free_vars(*init_conditions(inner))):
        return None
    return inner if _starts_reduction_once(inner, loops) else None


def _starts_reduction_once(realize: BlockRealize, loops: dict[Var, PrimExpr]) -> bool:
    """Return whether the first iteration of the loops, and no other, starts the reduction.

    In the tail of a split loop it does not; and a loop that nothing depends on repeats the whole
    reduction.
    """
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    reduced = [v for i, v in pairs if i.kind is IterKind.REDUCE]
    if not loops.keys() <= set(free_vars(*reduced)):
        return False
    return all(is_const(simplify(substitute_expr(v, loops)), 0) for v in reduced)


def _replace_innermost(stmt: Stmt, inner: Stmt) -> For:
    chain: list[For] = []
    while isinstance(stmt, For):
        chain.append(stmt)
        stmt = stmt.body
    for loop in reversed(chain):
        inner = loop.with_fields(body=inner)
    assert isinstance(inner, For)
    return inner


def lower_blocks(func: PrimFunc) -> PrimFunc:
    """Return the function without blocks; requested strides become a function attribute."""
    lowering = _BlockLowerer()
    body = lowering.visit(func.body)
    attrs = (
        {**(func.attrs or {}), ALIGNMENT_ANNOTATION: lowering.aligned}
        if lowering.aligned
        else func.attrs
    )
    return func.with_fields(body=body, attrs=attrs)
