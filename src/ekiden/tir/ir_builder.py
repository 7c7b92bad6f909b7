"""Imperative builder of statements, under TVM's name (`tir.ir_builder`).

ib = tir.ir_builder.create()
source, target = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
with ib.for_range(0, n, "i") as i:
    with ib.if_scope(source[i] > 0.0):
        target[i] = source[i]
    with ib.else_scope():
        target[i] = 0.0
body = ib.get()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    Add,
    AnyDim,
    ExprLike,
    PrimExpr,
    StringImm,
    Sub,
    Var,
    cast,
    convert,
    fold_binary,
    is_const,
)
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    LetStmt,
    Stmt,
    While,
)
from ekiden.tir.visitor import flatten_seq

Indices = ExprLike | Sequence[ExprLike]
_TVM_LOOP_KINDS = {"vectorize": "vectorized", "unroll": "unrolled"}


class BufferVar:
    """A buffer being written: `p[i]` loads, `p[i] = value` stores a value converted to its dtype.

    A buffer of several dimensions takes as many indices, or one flat (row-major) one.
    """

    def __init__(self, builder: IRBuilder, buffer: Buffer) -> None:
        self._builder = builder
        self.buffer = buffer
        self.dtype = buffer.dtype

    def asobject(self) -> Buffer:
        """Return the buffer."""
        return self.buffer

    __iter__ = None  # else Python would ask for elements 0, 1, ... without an end

    def __getitem__(self, indices: Indices) -> PrimExpr:
        return BufferLoad(self.buffer, self._normalize_indices(indices), self.buffer.dtype)

    def __setitem__(self, indices: Indices, value: ExprLike) -> None:
        stored = cast(
            convert(value, None if isinstance(value, PrimExpr) else self.dtype), self.dtype
        )
        self._builder.emit(BufferStore(self.buffer, stored, self._normalize_indices(indices)))

    def _normalize_indices(self, indices: Indices) -> tuple[PrimExpr, ...]:
        index_tuple = tuple(indices) if isinstance(indices, Sequence) else (indices,)
        converted = tuple(convert(i, "int64") for i in index_tuple)
        shape = self.buffer.shape
        if len(converted) == 1 and len(shape) != 1:
            return _unravel_index(converted[0], shape)
        if len(converted) != len(shape):
            raise ValueError(
                f"buffer {self.buffer.name!r}: expected {len(shape)} indices, or one flat one, got"
                f" {len(converted)}"
            )
        return converted


def _unravel_index(flat: PrimExpr, shape: Sequence[PrimExpr]) -> tuple[PrimExpr, ...]:
    indices: list[PrimExpr] = []
    for axis, extent in reversed(list(enumerate(shape))):
        unit = is_const(extent, 1)
        indices.append(convert(0) if unit else flat % extent if axis else flat)
        flat = flat if unit else flat // extent
    return tuple(reversed(indices))


class IRBuilder:
    """A builder that collects statements; a scope (loop, condition) collects those emitted while it
    is open.
    """

    def __init__(self) -> None:
        self._scope_stack: list[list[Stmt]] = [[]]
        self._enclosing: list[list[Callable[[Stmt], Stmt]]] = [[]]

    def emit(self, stmt: Stmt | PrimExpr) -> None:
        """Append a statement, or an expression to evaluate."""
        self._scope_stack[-1].append(Evaluate(stmt) if isinstance(stmt, PrimExpr) else stmt)

    def _push_scope(self) -> None:
        self._scope_stack.append([])
        self._enclosing.append([])

    def _pop_scope(self) -> Stmt:
        """Close the innermost scope; return its statements within its allocations and
        definitions.
        """
        body = flatten_seq(*self._scope_stack.pop())
        for wrap in reversed(self._enclosing.pop()):
            body = wrap(body)
        return body

    def _wrap_following(self, wrap: Callable[[Stmt], Stmt]) -> None:
        """Wrap the statements emitted later in this scope in `wrap`."""
        before = self._scope_stack[-1]
        if before:
            done = flatten_seq(*before)
            self._enclosing[-1].append(lambda body: flatten_seq(done, body))
        # The statements so far stay in front of the wrapped ones: a let or an allocation covers
        # only what follows it.
        self._scope_stack[-1] = []
        self._enclosing[-1].append(wrap)

    @contextmanager
    def for_range(
        self,
        begin: ExprLike,
        end: ExprLike,
        name: str = "i",
        dtype: str = "int64",
        kind: str = "serial",
        annotations: Mapping[str, object] | None = None,
    ) -> Iterator[Var]:
        """Open a loop over [begin, end); kind is one of ForKind's values (serial, parallel, ...) or
        TVM's name of it (vectorize, unroll).
        """
        var = Var(name, dtype)
        low, high = convert(begin, dtype), convert(end, dtype)
        self._push_scope()
        yield var
        extent, kind_of_loop = fold_binary(Sub, high, low), ForKind(_TVM_LOOP_KINDS.get(kind, kind))
        self.emit(For(var, low, extent, kind_of_loop, self._pop_scope(), annotations=annotations))

    @contextmanager
    def new_scope(self) -> Iterator[None]:
        """Open a scope that ends the allocations, lets and attributes made inside."""
        self._push_scope()
        yield
        self.emit(self._pop_scope())

    @contextmanager
    def while_loop(self, condition: PrimExpr) -> Iterator[None]:
        """Open a loop that runs while the condition holds; it is evaluated before each
        iteration.
        """
        self._push_scope()
        yield
        self.emit(While(condition, self._pop_scope()))

    @contextmanager
    def if_scope(self, condition: PrimExpr) -> Iterator[None]:
        """Open the branch that runs if the condition holds."""
        self._push_scope()
        yield
        self.emit(IfThenElse(condition, self._pop_scope()))

    @contextmanager
    def else_scope(self) -> Iterator[None]:
        """Open the else branch of the `if_scope` just before.

        Raises ValueError unless an if_scope is just before.
        """
        previous = self._scope_stack[-1].pop() if self._scope_stack[-1] else None
        if not isinstance(previous, IfThenElse) or previous.else_case is not None:
            raise ValueError("else_scope: expected an if_scope just before")
        self._push_scope()
        yield
        self.emit(previous.with_fields(else_case=self._pop_scope()))

    def let(self, name: str, value: PrimExpr) -> Var:
        """Bind a value to a name until the end of the scope."""
        var = Var(name, value.dtype)
        self._wrap_following(lambda body: LetStmt(var, value, body))
        return var

    def allocate(
        self,
        dtype: str,
        shape: ExprLike | Sequence[ExprLike],
        name: str = "buf",
        scope: str = "global",
    ) -> BufferVar:
        """Allocate a buffer that lives until the end of the scope."""
        dims = shape if isinstance(shape, Sequence) else (shape,)
        buffer = Buffer(name, tuple(convert(d, "int64") for d in dims), dtype, scope)
        self._wrap_following(lambda body: Allocate(buffer, body))
        return BufferVar(self, buffer)

    def likely(self, expr: ExprLike) -> PrimExpr:
        """Return a condition that loop partitioning may peel: a tail guard that is true in the main
        loop.
        """
        return call_intrin("likely", convert(expr))

    def pointer(self, content_type: str, name: str = "ptr", scope: str = "") -> BufferVar:
        """Return a one-dimensional parameter buffer of as many elements as the caller passes."""
        return BufferVar(self, Buffer(name, (AnyDim(),), content_type, scope or "global"))

    def scope_attr(self, node: object, attr_key: str, value: ExprLike | str) -> None:
        """Bind the rest of the scope to threads, or attach an attribute to it.

        With "thread_extent" or "virtual_thread" the rest of the scope runs on that many threads of
        an axis (`te.thread_axis`); other keys are attributes that no pass reads (`tir.AttrStmt`).
        Raises ValueError where axis and extent differ in dtype.
        """
        if attr_key not in ("thread_extent", "virtual_thread") or not isinstance(node, IterVar):
            attr_node = node.buffer if isinstance(node, BufferVar) else node
            attr_value = StringImm(value) if isinstance(value, str) else convert(value)
            self._wrap_following(lambda body: AttrStmt(attr_node, attr_key, attr_value, body))
            return
        assert not isinstance(value, str)
        extent, kind = convert(value, node.var.dtype), ForKind.THREAD_BINDING
        low, notes = (
            convert(0, extent.dtype),
            {"thread": str(getattr(node, "thread_tag", "vthread"))},
        )
        var = node.var
        if extent.dtype != var.dtype:
            raise ValueError(f"scope_attr: {var.name} is {var.dtype}, its extent {extent.dtype}")
        self._wrap_following(lambda body: For(var, low, extent, kind, body, notes))

    def buffer_ptr(self, buffer: Buffer) -> BufferVar:
        """Return a buffer wrapped for loads and stores."""
        return BufferVar(self, buffer)

    def increase(self, target: BufferVar, indices: Indices, by: ExprLike = 1) -> None:
        """Emit `target[indices] = target[indices] + by`."""
        target[indices] = fold_binary(Add, target[indices], by)

    def get(self) -> Stmt:
        """Return the whole statement. Raises ValueError while a scope is open."""
        if len(self._scope_stack) != 1:
            raise ValueError("ir_builder: a scope is still open")
        body = self._pop_scope()
        self._scope_stack, self._enclosing = [[]], [[]]
        return body


def create() -> IRBuilder:
    """Return a new builder."""
    return IRBuilder()
