"""Visitors and mutators of statements.

Walks use an explicit stack; a StmtMutator recurses, on a fresh thread stack every
`MAX_RECURSION_LEVELS` levels, so programs may nest arbitrarily deep. Expressions are handled by
prim_visitor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from ekiden.ir.deep_recursion import MAX_RECURSION_LEVELS, call_on_fresh_stack
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, Var, const
from ekiden.ir.prim_visitor import children, expr_leaves, post_order, rebuild, rewrite
from ekiden.tir.expr import LATE_SCOPES, Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
    seq,
)

NO_OP = Evaluate(const(0))
"""The empty statement."""


def is_no_op(stmt: Stmt) -> bool:
    """Return whether a statement has no effect."""
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, IntImm)


def flatten_seq(*statements: Stmt) -> Stmt:
    """Return statements in order as `seq` does, without no-ops."""
    nonempty = [s for s in statements if not is_no_op(s)]
    return seq(*nonempty) if nonempty else NO_OP


def sub_statements(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return the statements directly inside."""
    get = _SUB_STATEMENT_GETTERS.get(type(stmt))
    return () if get is None else get(stmt)


def _body(stmt: For | While | LetStmt | Allocate | DeclBuffer | AttrStmt) -> tuple[Stmt, ...]:
    return (stmt.body,)


def _branches(stmt: IfThenElse) -> tuple[Stmt, ...]:
    return (stmt.then_case,) if stmt.else_case is None else (stmt.then_case, stmt.else_case)


def _init_and_body(stmt: Block) -> tuple[Stmt, ...]:
    return (stmt.body,) if stmt.init is None else (stmt.init, stmt.body)


_SUB_STATEMENT_GETTERS: Mapping[type[Stmt], Callable[[Any], tuple[Stmt, ...]]] = {
    **dict.fromkeys((For, While, LetStmt, Allocate, DeclBuffer, AttrStmt), _body),
    SeqStmt: lambda stmt: stmt.seq,
    IfThenElse: _branches,
    BlockRealize: lambda stmt: (stmt.block,),
    Block: _init_and_body,
}
"""Class -> its direct statements. A table, as every pass asks for those of every statement."""


def stmt_exprs(stmt: Stmt) -> tuple[PrimExpr, ...]:
    """Return the expressions directly inside."""
    match stmt:
        case BufferStore():
            predicate = () if stmt.predicate is None else (stmt.predicate,)
            return (*stmt.indices, stmt.value, *predicate)
        case For():
            return (stmt.min, stmt.extent)
        case IfThenElse() | While():
            return (stmt.condition,)
        case AssertStmt():
            return (stmt.condition, *stmt.values)
        case LetStmt() | Evaluate() | AttrStmt():
            return (stmt.value,)
        case Prefetch():
            return stmt.indices
        case BlockRealize():
            return (*stmt.iter_values, stmt.predicate)
        case Block():
            return tuple(v.extent for v in stmt.iter_vars)
        case Allocate():
            return stmt.buffer.sizes()
        case DeclBuffer():
            return (*stmt.mins, *stmt.extents, *stmt.buffer.shape)
        case _:
            return ()


def pre_order_stmts(root: Stmt) -> Iterator[Stmt]:
    """Yield every statement in pre-order, which is program order."""
    stack = [root]
    while stack:
        stmt = stack.pop()
        yield stmt
        stack.extend(reversed(sub_statements(stmt)))


def all_exprs(root: Stmt) -> Iterator[PrimExpr]:
    """Yield every expression node of every statement (a node shared between statements once per
    statement).
    """
    for stmt in pre_order_stmts(root):
        yield from post_order(*stmt_exprs(stmt))


_DIRECT_ACCESSES_CACHE: WeakKeyDictionary[Stmt, tuple[BufferLoad | BufferAddress, ...]] = (
    WeakKeyDictionary()
)


def direct_accesses(stmt: Stmt) -> tuple[BufferLoad | BufferAddress, ...]:
    """Return the loads and addresses in the expressions of a statement, in post-order; those of
    statements inside it are not among them. Cached by object: each proof of a schedule asks for
    those of the same stores again.
    """
    cached = _DIRECT_ACCESSES_CACHE.get(stmt)
    if cached is None:
        order = post_order(*stmt_exprs(stmt))
        cached = tuple(e for e in order if isinstance(e, (BufferLoad, BufferAddress)))
        _DIRECT_ACCESSES_CACHE[stmt] = cached
    return cached


def has_only_region_accesses(root: Stmt, buffer: Buffer) -> bool:
    """Return whether each call that is passed a buffer declares the accessed region and its layout,
    so that the layout may change.
    """
    rank = len(buffer.shape)
    for e in all_exprs(root):
        for operand in children(e):
            if not isinstance(operand, BufferAddress) or operand.buffer is not buffer:
                continue
            is_box = len(operand.indices) == len(operand.extents) == rank
            if not (is_box and isinstance(e, Intrinsic) and find_intrinsic(e.op).has_exact_regions):
                return False
    return buffer.scope in LATE_SCOPES


def buffers_read(root: Stmt) -> list[Buffer]:
    """Return the buffers that are loaded from, by loads and by calls, in order of first use."""
    accesses = (e for s in pre_order_stmts(root) for e in direct_accesses(s))
    return list(dict.fromkeys(e.buffer for e in accesses if _has_access_mode(e, "r")))


def _has_access_mode(e: BufferLoad | BufferAddress, how: str) -> bool:
    return (isinstance(e, BufferLoad) and how == "r") or (
        isinstance(e, BufferAddress) and how in e.access
    )


def buffers_written(root: Stmt) -> list[Buffer]:
    """Return the buffers that are stored to, by stores and by calls, in order of first use."""
    written: dict[Buffer, None] = {}
    for s in pre_order_stmts(root):
        for e in direct_accesses(s):
            if _has_access_mode(e, "w"):
                written[e.buffer] = None
        if isinstance(s, BufferStore):
            written[s.buffer] = None
    return list(written)


def free_vars_and_buffers(
    region: Stmt, roots: Callable[[Stmt], tuple[PrimExpr, ...]] = stmt_exprs
) -> list[Var | Buffer]:
    """Return the variables and buffers that a statement uses and does not define, in order of first
    use.

    `roots` returns the expressions of a statement that count.
    """
    inside: set[Var | Buffer] = set()
    used: dict[Var | Buffer, None] = {}
    for s in pre_order_stmts(region):
        match s:
            case For():
                inside.add(s.loop_var)
            case LetStmt():
                inside.add(s.var)
            case Allocate():
                inside.add(s.buffer)
            case DeclBuffer():
                inside.add(s.buffer)
                used[s.source] = None
            case BufferStore() | Prefetch():
                used[s.buffer] = None
        for e in post_order(*roots(s)):
            if isinstance(e, Var):
                used[e] = None
            elif isinstance(e, (BufferLoad, BufferAddress)):
                used[e.buffer] = None
    return [item for item in used if item not in inside]


def conditional_nodes(root: PrimExpr, order: list[PrimExpr]) -> set[int]:
    """Return the ids of the nodes in `order` that are evaluated only conditionally under `root`."""
    if not any(isinstance(e, Intrinsic) and e.op == "if_then_else" for e in order):
        return set()
    always: set[int] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if id(e) in always:
            continue
        always.add(id(e))
        # Only if_then_else is lazy; Select may evaluate both sides. Its condition is always
        # evaluated.
        conditional = isinstance(e, Intrinsic) and e.op == "if_then_else"
        stack.extend(children(e)[:1] if conditional else children(e))
    return {id(e) for e in order} - always


class StmtMutator:
    """A bottom-up rebuilder of statements. Override `rewrite_expr` for expressions,
    `rewrite_buffer` for buffers, or one `visit_*`.

    An unchanged statement stays the same object.
    """

    _depth = 0
    _keeps_stores = True
    """Whether neither expressions nor buffers change, so that a store stays as it is."""

    def __init_subclass__(cls) -> None:
        """Note whether the class rewrites expressions or buffers: most statements are stores."""
        super().__init_subclass__()
        cls._keeps_stores = (
            cls.rewrite_expr is StmtMutator.rewrite_expr
            and cls.rewrite_buffer is StmtMutator.rewrite_buffer
            and cls.exprs is StmtMutator.exprs
        )

    def visit(self, stmt: Stmt) -> Stmt:
        """Return the replacement of `stmt`."""
        method: Callable[[Stmt], Stmt] = getattr(self, _VISIT_METHODS[type(stmt)])
        self._depth += 1
        try:
            # Python's recursion limit and the C stack are per thread: deep programs continue on
            # another one.
            return (
                method(stmt)
                if self._depth % MAX_RECURSION_LEVELS
                else call_on_fresh_stack(method, stmt)
            )
        finally:
            self._depth -= 1

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the replacement of a whole expression of a statement."""
        return expr

    def rewrite_buffer(self, buffer: Buffer) -> Buffer:
        """Return the replacement of a buffer that is stored to, allocated or prefetched (loads:
        `rewrite_expr`).
        """
        return buffer

    def exprs(self, originals: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        """Return `rewrite_expr` of each, the same tuple if nothing changed."""
        new = tuple(self.rewrite_expr(e) for e in originals)
        return originals if all(a is b for a, b in zip(new, originals, strict=True)) else new

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rebuild a BufferStore."""
        if self._keeps_stores:
            return stmt
        return stmt.with_fields(
            buffer=self.rewrite_buffer(stmt.buffer),
            value=self.rewrite_expr(stmt.value),
            indices=self.exprs(stmt.indices),
            predicate=None if stmt.predicate is None else self.rewrite_expr(stmt.predicate),
        )

    def visit_for(self, stmt: For) -> Stmt:
        """Rebuild a For; an empty one is removed."""
        low, extent = self.rewrite_expr(stmt.min), self.rewrite_expr(stmt.extent)
        body = self.visit(stmt.body)
        return body if is_no_op(body) else stmt.with_fields(min=low, extent=extent, body=body)

    def visit_while(self, stmt: While) -> Stmt:
        """Rebuild a While; one with a false condition is removed."""
        condition = self.rewrite_expr(stmt.condition)
        if isinstance(condition, IntImm) and not condition.value:
            return NO_OP
        return stmt.with_fields(condition=condition, body=self.visit(stmt.body))

    def visit_seq(self, stmt: SeqStmt) -> Stmt:
        """Rebuild a SeqStmt."""
        new = tuple(self.visit(s) for s in stmt.seq)
        if all(a is b for a, b in zip(new, stmt.seq, strict=True)):
            return stmt
        return flatten_seq(*new)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Rebuild an IfThenElse; a constant condition leaves one side."""
        condition = self.rewrite_expr(stmt.condition)
        if isinstance(condition, IntImm):
            side = stmt.then_case if condition.value else stmt.else_case
            return NO_OP if side is None else self.visit(side)
        else_case = None if stmt.else_case is None else self.visit(stmt.else_case)
        return stmt.with_fields(
            condition=condition, then_case=self.visit(stmt.then_case), else_case=else_case
        )

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Rebuild a LetStmt."""
        return stmt.with_fields(value=self.rewrite_expr(stmt.value), body=self.visit(stmt.body))

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Rebuild an Allocate."""
        return stmt.with_fields(buffer=self.rewrite_buffer(stmt.buffer), body=self.visit(stmt.body))

    def visit_decl(self, stmt: DeclBuffer) -> Stmt:
        """Rebuild a DeclBuffer."""
        return stmt.with_fields(
            buffer=self.rewrite_buffer(stmt.buffer),
            source=self.rewrite_buffer(stmt.source),
            mins=self.exprs(stmt.mins),
            extents=self.exprs(stmt.extents),
            body=self.visit(stmt.body),
        )

    def visit_attr(self, stmt: AttrStmt) -> Stmt:
        """Rebuild an AttrStmt; an attribute of a buffer moves to its replacement."""
        attr_node = self.rewrite_buffer(stmt.node) if isinstance(stmt.node, Buffer) else stmt.node
        return stmt.with_fields(
            node=attr_node, value=self.rewrite_expr(stmt.value), body=self.visit(stmt.body)
        )

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        """Rebuild an Evaluate."""
        return stmt.with_fields(value=self.rewrite_expr(stmt.value))

    def visit_assert(self, stmt: AssertStmt) -> Stmt:
        """Rebuild an AssertStmt."""
        return stmt.with_fields(
            condition=self.rewrite_expr(stmt.condition), values=self.exprs(stmt.values)
        )

    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """Rebuild a Prefetch."""
        return stmt.with_fields(
            buffer=self.rewrite_buffer(stmt.buffer), indices=self.exprs(stmt.indices)
        )

    def visit_realize(self, stmt: BlockRealize) -> Stmt:
        """Rebuild a BlockRealize and its block."""
        block = self.visit(stmt.block)
        return stmt.with_fields(
            iter_values=self.exprs(stmt.iter_values),
            predicate=self.rewrite_expr(stmt.predicate),
            block=block,
        )

    def visit_block(self, stmt: Block) -> Stmt:
        """Rebuild a Block."""
        domains = tuple(i.with_fields(extent=self.rewrite_expr(i.extent)) for i in stmt.iter_vars)
        same = all(a is b for a, b in zip(domains, stmt.iter_vars, strict=True))
        init = None if stmt.init is None else self.visit(stmt.init)
        return stmt.with_fields(
            iter_vars=stmt.iter_vars if same else domains, body=self.visit(stmt.body), init=init
        )


_VISIT_METHODS: dict[type[Stmt], str] = {
    BufferStore: "visit_store",
    For: "visit_for",
    While: "visit_while",
    SeqStmt: "visit_seq",
    IfThenElse: "visit_if",
    LetStmt: "visit_let",
    Allocate: "visit_allocate",
    DeclBuffer: "visit_decl",
    AttrStmt: "visit_attr",
    Evaluate: "visit_evaluate",
    AssertStmt: "visit_assert",
    Prefetch: "visit_prefetch",
    BlockRealize: "visit_realize",
    Block: "visit_block",
}


class ExprRewriter(StmtMutator):
    """A StmtMutator that rewrites expressions node by node: `change` is called with each rebuilt
    node.
    """

    def __init__(self, change: Callable[[PrimExpr], PrimExpr]) -> None:
        self._rewrite_node = change
        self._memo: dict[int, PrimExpr] = {}
        self._keepalive: list[PrimExpr] = []

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Rewrite the expression bottom-up."""
        # The memo is keyed by id: expressions stay referenced so that their ids are not reused.
        self._keepalive.append(expr)
        return rewrite(expr, self._rewrite_node, self._memo)


def substitute(stmt: Stmt, values: dict[Var, PrimExpr]) -> Stmt:
    """Return the statement with variables substituted."""
    return _VarSubstituter(values).visit(stmt) if values else stmt


class _VarSubstituter(ExprRewriter):
    """A rewriter of variables; expressions without any of them are not entered."""

    def __init__(self, values: Mapping[Var, PrimExpr]) -> None:
        super().__init__(lambda e: values.get(e, e) if isinstance(e, Var) else e)
        self._values = values

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Rewrite the expression if it has one of the variables."""
        if self._values.keys().isdisjoint(expr_leaves(expr)):
            return expr
        return super().rewrite_expr(expr)


class _DefinitionRenamer(ExprRewriter):
    """A rewriter that replaces variables and buffers, also where buffers are allocated."""

    def __init__(self, values: Mapping[Var, PrimExpr], buffers: Mapping[Buffer, Buffer]) -> None:
        def rename_node(e: PrimExpr) -> PrimExpr:
            """Replace a variable, or the buffer of a load or address."""
            if isinstance(e, Var):
                return values.get(e, e)
            if isinstance(e, (BufferLoad, BufferAddress)) and e.buffer in buffers:
                return e.with_fields(buffer=buffers[e.buffer])
            return e

        super().__init__(rename_node)
        self._buffers = buffers

    def rewrite_buffer(self, buffer: Buffer) -> Buffer:
        return self._buffers.get(buffer, buffer)


def rename(
    stmt: Stmt, values: Mapping[Var, PrimExpr], buffers: Mapping[Buffer, Buffer] | None = None
) -> Stmt:
    """Return the statement with variables and buffers replaced wherever they are used."""
    return _DefinitionRenamer(values, buffers or {}).visit(stmt)


def with_body(func: PrimFunc, body: Stmt) -> PrimFunc:
    """Return the function with another body."""
    return func.with_fields(body=body)


__all__ = [
    "NO_OP",
    "ExprRewriter",
    "StmtMutator",
    "all_exprs",
    "buffers_read",
    "buffers_written",
    "children",
    "conditional_nodes",
    "flatten_seq",
    "free_vars_and_buffers",
    "has_only_region_accesses",
    "is_no_op",
    "post_order",
    "pre_order_stmts",
    "rebuild",
    "rename",
    "rewrite",
    "stmt_exprs",
    "sub_statements",
    "substitute",
    "with_body",
]
