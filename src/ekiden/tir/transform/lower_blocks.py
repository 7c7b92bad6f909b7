"""Replace each block by its statements, its iterators by the loop expressions they are bound to.

for i, k in grid(16, 8):                          for i in range(16):
    with block("sum"):                                B[i] = 0
        vi, vk = axis.remap("SR", [i, k])     ->      for k in range(8):
        with init(): B[vi] = 0                            B[i] = B[i] + A[i, k]
        B[vi] = B[vi] + A[vi, vk]

The init goes before the loops around the block that only the reduction uses, if they begin where
all its iterators are 0. Where there are none, as for k outside of i, it stays in the body, which
asks: `if k == 0: B[i] = 0`. A block's predicate becomes a condition marked `likely`, which
LoopPartition takes out of the part of the loops that does the work.
"""

from __future__ import annotations

from ekiden.arith import simplify
from ekiden.ir.prim import EQ, Intrinsic, PrimExpr, Var, binary, const, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.tir.predicates import conjunction, init_conditions
from ekiden.tir.stmt import BlockRealize, For, ForKind, IfThenElse, IterKind, PrimFunc, Stmt
from ekiden.tir.transform.align_storage import KEY, Rule, alignments_of
from ekiden.tir.transform.bring_ahead import brought_ahead
from ekiden.tir.transform.inject_double_buffer import MARK
from ekiden.tir.visitor import StmtMutator, sequence, substitute


class _LowerBlocks(StmtMutator):
    def __init__(self) -> None:
        self.aligned: dict[str, tuple[Rule, ...]] = {}

    def visit_for(self, stmt: For) -> Stmt:
        """Where all loops from here to a block reduce, its init goes before them; it then runs even
        if they are empty.
        """
        stmt = brought_ahead(stmt)
        filled = _only_block(stmt)
        if filled is not None and _is_double_buffered(filled):
            plain = filled.with_fields(block=filled.block.with_fields(annotations=None))
            return _filling(self.visit(_replace_inner(stmt, plain)))
        realize = _reducing_nest(stmt)
        if realize is None:
            return super().visit_for(stmt)
        block = realize.block.with_fields(init=None)
        loops = super().visit_for(_replace_inner(stmt, realize.with_fields(block=block)))
        assert realize.block.init is not None
        init = substitute(self.visit(realize.block.init), _spatial_values(realize))
        predicate = conjunction(init_conditions(realize))
        return sequence(_guarded(init, _marked(predicate)), loops)

    def visit_realize(self, stmt: BlockRealize) -> Stmt:
        """for ..: block(vi = e): init; body  ->  for ..: if first: init[vi := e]; body[vi := e]"""
        self.aligned |= alignments_of(stmt.block)
        values = {i.var: v for i, v in zip(stmt.block.iter_vars, stmt.iter_values, strict=True)}
        body = substitute(self.visit(stmt.block.body), values)
        if stmt.block.init is not None:
            first: PrimExpr = const(True)
            for each, value in zip(stmt.block.iter_vars, stmt.iter_values, strict=True):
                if each.kind is IterKind.REDUCE:
                    first = logical_and(first, binary(EQ, value, 0))
            init = substitute(self.visit(stmt.block.init), values)
            body = sequence(_guarded(init, first), body)
        if _is_double_buffered(stmt):
            body = _filling(body)
        return _guarded(body, _marked(stmt.predicate))


def _guarded(body: Stmt, condition: PrimExpr) -> Stmt:
    return body if is_const(condition, True) else IfThenElse(condition, body)


def _marked(predicate: PrimExpr) -> PrimExpr:
    """A predicate cuts off what a split leaves over: loop_partition makes it true where it can."""
    return predicate if is_const(predicate) else Intrinsic("likely", (predicate,), "bool")


def _is_double_buffered(realize: BlockRealize) -> bool:
    return (realize.block.annotations or {}).get("double_buffer_scope") is not None


def _filling(body: Stmt) -> Stmt:
    """The mark that inject_double_buffer looks for."""
    return For(Var("fill"), const(0), const(1), ForKind.SERIAL, body, {MARK: True})


def _only_block(stmt: Stmt) -> BlockRealize | None:
    """The block at the end of a chain of loops."""
    while isinstance(stmt, For):
        stmt = stmt.body
    return stmt if isinstance(stmt, BlockRealize) else None


def _spatial_values(realize: BlockRealize) -> dict[Var, PrimExpr]:
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return {i.var: v for i, v in pairs if i.kind is IterKind.SPATIAL}


def _reducing_nest(stmt: For) -> BlockRealize | None:
    """The block with an init at the end of a chain of loops that only its reduction uses."""
    loops: dict[Var, PrimExpr] = {}
    inner: Stmt = stmt
    while isinstance(inner, For) and inner.kind in (ForKind.SERIAL, ForKind.UNROLLED):
        loops[inner.loop_var] = inner.min
        inner = inner.body
    if not isinstance(inner, BlockRealize) or inner.block.init is None:
        return None
    if not loops.keys().isdisjoint(free_vars(*_spatial_values(inner).values())):
        return None  # asked first: most nests are done with here
    if not loops.keys().isdisjoint(free_vars(*init_conditions(inner))):
        return None
    return inner if _starts_at_zero(inner, loops) else None


def _starts_at_zero(realize: BlockRealize, loops: dict[Var, PrimExpr]) -> bool:
    """Whether the first step of the loops is the first of the reduction, which the rest of a split
    loop's is not, and no other is: a loop that nothing depends on repeats the whole sum.
    """
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    reduced = [v for i, v in pairs if i.kind is IterKind.REDUCE]
    if not loops.keys() <= set(free_vars(*reduced)):
        return False
    return all(is_const(simplify(substitute_expr(v, loops)), 0) for v in reduced)


def _replace_inner(stmt: Stmt, inner: Stmt) -> For:
    chain: list[For] = []
    while isinstance(stmt, For):
        chain.append(stmt)
        stmt = stmt.body
    for loop in reversed(chain):
        inner = loop.with_fields(body=inner)
    assert isinstance(inner, For)
    return inner


def lower_blocks(func: PrimFunc) -> PrimFunc:
    """The function without blocks; the strides they ask for are an attribute of it."""
    lowering = _LowerBlocks()
    body = lowering.visit(func.body)
    attrs = {**(func.attrs or {}), KEY: lowering.aligned} if lowering.aligned else func.attrs
    return func.with_fields(body=body, attrs=attrs)
