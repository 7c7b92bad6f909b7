"""Statements of loop programs.

Stmt = BufferStore | For | While | SeqStmt | IfThenElse | LetStmt | Allocate | DeclBuffer |
       Evaluate | AssertStmt | Prefetch | BlockRealize
Scheduled programs (te.create_prim_func, Schedule) contain BlockRealize; lowering removes it. Code
generators take the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from ekiden._lazy import LazyModule
from ekiden.ir import dtype as dt
from ekiden.ir.expr import BaseFunc, RelayExpr
from ekiden.ir.node import Node, binding, ignored_field, node, set_frozen_fields
from ekiden.ir.prim import AnyDim, ExprLike, PrimExpr, StringImm, Var, const, convert
from ekiden.ir.range import Range
from ekiden.ir.span import Span
from ekiden.tir.expr import Buffer

if TYPE_CHECKING:
    import string

    from ekiden.runtime.profile import html
    from ekiden.tir import printer
else:
    html = LazyModule("ekiden.runtime.profile.html")
    printer = LazyModule("ekiden.tir.printer")  # which imports this
    string = LazyModule("string")


class Stmt(Node):
    """Base of statements."""

    __slots__ = ()

    def astext(self) -> str:
        """Return the statement as Python text, for messages."""
        return printer.format_stmt(self)

    def __repr__(self) -> str:
        return self.astext()


class ForKind(Enum):
    """The execution kind of a loop."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    THREAD_BINDING = "thread_binding"


@node("tir.BufferStore")
class BufferStore(Stmt):
    """A store `buffer[indices] = value`, of a vector as in BufferLoad.

    `predicate`: a bool vector that enables the stored lanes.
    """

    buffer: Buffer
    value: PrimExpr
    indices: tuple[PrimExpr, ...]
    predicate: PrimExpr | None = None

    def __post_init__(self) -> None:
        """Convert a number to the buffer's dtype. Raises TypeError for a value of another dtype,
        except uint8 for a small one.
        """
        raw_value: object = self.value
        if not isinstance(raw_value, PrimExpr):
            number = convert(raw_value, dt.element_dtype(self.buffer.dtype))  # type: ignore[arg-type]
            set_frozen_fields(self, value=number)
        indices: Sequence[object] = self.indices
        for index in indices:
            if not isinstance(index, PrimExpr):
                set_frozen_fields(self, indices=tuple(convert(i, "int64") for i in self.indices))
                break
        if self.value.dtype == self.buffer.dtype:
            return
        stored, buffer_dtype = (
            dt.element_dtype(self.value.dtype),
            dt.element_dtype(self.buffer.dtype),
        )
        if stored != buffer_dtype and not (stored == "uint8" and dt.is_byte_stored(buffer_dtype)):
            raise TypeError(
                f"a store to {self.buffer.name!r}: it holds {buffer_dtype}, not {stored}"
            )


@node("tir.For")
class For(Stmt):
    """A loop `for loop_var in range(min, min + extent)`.

    annotations: {"grain": int} on parallel loops, {"thread": "threadIdx.x"} on those bound to a
    thread axis, ...
    """

    loop_var: Var = binding()
    min: PrimExpr
    extent: PrimExpr
    kind: ForKind
    body: Stmt
    annotations: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        """Convert bounds that are numbers to expressions of the variable's dtype."""
        low: ExprLike = self.min
        extent: ExprLike = self.extent
        if isinstance(low, int) or isinstance(extent, int):
            dtype = self.loop_var.dtype
            set_frozen_fields(
                self, min=convert(self.min, dtype), extent=convert(self.extent, dtype)
            )


@node("tir.While")
class While(Stmt):
    """A loop that repeats its body while a condition on memory holds; the condition is evaluated
    before each iteration.
    """

    condition: PrimExpr
    body: Stmt

    def __post_init__(self) -> None:
        """Convert a comparison (`i == 0`) to an expression."""
        condition: object = self.condition
        if not isinstance(condition, PrimExpr):
            set_frozen_fields(self, condition=convert(self.condition))


@node("tir.SeqStmt")
class SeqStmt(Stmt):
    """A sequence of statements; `s[i]` is one of them."""

    seq: tuple[Stmt, ...]

    def __getitem__(self, i: int) -> Stmt:
        return self.seq[i]

    def __len__(self) -> int:
        return len(self.seq)


@node("tir.IfThenElse")
class IfThenElse(Stmt):
    """A branch on a scalar bool."""

    condition: PrimExpr
    then_case: Stmt
    else_case: Stmt | None = None

    def __post_init__(self) -> None:
        """Convert a comparison (`i == 0`) to an expression."""
        condition: object = self.condition
        if not isinstance(condition, PrimExpr):
            set_frozen_fields(self, condition=convert(self.condition))


@node("tir.LetStmt")
class LetStmt(Stmt):
    """A binding `let var = value in body`."""

    var: Var = binding()
    value: PrimExpr
    body: Stmt

    def __post_init__(self) -> None:
        """Convert a number to the variable's dtype."""
        value: object = self.value
        if not isinstance(value, PrimExpr):
            set_frozen_fields(self, value=convert(self.value, self.var.dtype))


@node("tir.Allocate")
class Allocate(Stmt):
    """An allocation of a buffer for the duration of body.

    Global scope: ek_workspace_alloc; local: stack (constant size); register: SSA values.
    """

    buffer: Buffer = binding()
    body: Stmt

    @property
    def extents(self) -> tuple[PrimExpr, ...]:
        """Return the buffer's shape."""
        return self.buffer.shape

    @property
    def dtype(self) -> str:
        """Return the element dtype."""
        return self.buffer.dtype

    @property
    def buffer_var(self) -> PrimExpr:
        """Return the buffer's address; in TVM a variable."""
        return self.buffer.data


@node("tir.DeclBuffer")
class DeclBuffer(Stmt):
    """A buffer in body without memory of its own: a view of `source`.

    With `mins` and `extents`, one per axis of the source, it is that region: its axes are the last
    ones; the leading ones have extent 1. Without, it begins at the source's first element, and its
    shape (or strides) defines the element order.
    """

    buffer: Buffer = binding()
    source: Buffer
    mins: tuple[PrimExpr, ...]
    extents: tuple[PrimExpr, ...]
    body: Stmt

    @property
    def region(self) -> tuple[Range, ...]:
        """Return the region of the source, or ()."""
        return tuple(map(Range.from_min_extent, self.mins, self.extents))


@node("tir.AttrStmt")
class AttrStmt(Stmt):
    """An attribute of `body`: "pragma_...", "storage_scope" and the like of a variable, a buffer, a
    target or a text. No pass here reads one, and lowering drops it; threads are loops.
    """

    node: object
    attr_key: str
    value: PrimExpr
    body: Stmt

    def __post_init__(self) -> None:
        """Convert a number or a text to an expression."""
        value: object = self.value
        converted = StringImm(value) if isinstance(value, str) else convert(value)  # type: ignore[arg-type]
        set_frozen_fields(self, value=converted)


@node("tir.Evaluate")
class Evaluate(Stmt):
    """An expression evaluated for its effects (an empty statement is Evaluate(const(0)))."""

    value: PrimExpr

    def __post_init__(self) -> None:
        """Convert a number to an expression."""
        value: object = self.value
        if not isinstance(value, PrimExpr):
            set_frozen_fields(self, value=convert(self.value))


@node("tir.AssertStmt")
class AssertStmt(Stmt):
    """A check that fails the kernel with an error of this kind and message unless the condition
    holds.

    With `values`, integers, the message is a Python format with a "{}" per value (and literal
    braces doubled); without, it is plain text.
    """

    condition: PrimExpr
    message: str
    kind: str = "RunError"
    values: tuple[PrimExpr, ...] = ()

    @property
    def format(self) -> str:
        """Return the message as a C format whose arguments are the values as 64-bit integers."""
        # The text becomes a printf format, in which a percent sign must be doubled.
        if not self.values:
            return self.message.replace("%", "%%")
        pieces = string.Formatter().parse(self.message)
        return "".join(
            text.replace("%", "%%") + ("" if hole is None else "%lld") for text, hole, *_ in pieces
        )


@node("tir.Prefetch")
class Prefetch(Stmt):
    """A hint that `buffer[indices]` is read soon; locality 3 keeps it in L1, 2 in L2."""

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    locality: int = 3


class IterKind(Enum):
    """The kind of a block iterator. ORDERED: its steps may touch what earlier ones wrote, so that
    they run in order, as those of a scan or of a scatter.
    """

    SPATIAL = "spatial"
    REDUCE = "reduce"
    ORDERED = "ordered"
    OPAQUE = "opaque"


@node("tir.IterVar")
class IterVar(Node):
    """A block iterator: its variable, domain [0, extent) and kind.

    The numbers are TVM's kinds of axes (see `ekiden.te.schedule`). In arithmetic it stands for its
    variable.
    """

    var: Var = binding()
    extent: PrimExpr
    kind: IterKind

    DataPar: ClassVar[int] = 0
    ThreadIndex: ClassVar[int] = 1
    CommReduce: ClassVar[int] = 2
    Ordered: ClassVar[int] = 3
    Opaque: ClassVar[int] = 4
    Unrolled: ClassVar[int] = 5
    Vectorized: ClassVar[int] = 6
    Parallelized: ClassVar[int] = 7
    Tensorized: ClassVar[int] = 8

    def __add__(self, operand: ExprLike) -> PrimExpr:
        return self.var + operand

    def __radd__(self, operand: ExprLike) -> PrimExpr:
        return operand + self.var

    def __sub__(self, operand: ExprLike) -> PrimExpr:
        return self.var - operand

    def __rsub__(self, operand: ExprLike) -> PrimExpr:
        return operand - self.var

    def __mul__(self, operand: ExprLike) -> PrimExpr:
        return self.var * operand

    def __rmul__(self, operand: ExprLike) -> PrimExpr:
        return operand * self.var

    def __floordiv__(self, operand: ExprLike) -> PrimExpr:
        return self.var // operand

    def __mod__(self, operand: ExprLike) -> PrimExpr:
        return self.var % operand

    def __lt__(self, operand: ExprLike) -> PrimExpr:
        return self.var < operand

    def asobject(self) -> PrimExpr:
        """Return its variable, for use as an expression."""
        return self.var

    @property
    def dom(self) -> Range | None:
        """Return its range; None for a thread axis without an extent."""
        return None if isinstance(self.extent, AnyDim) else Range(self.extent)

    @property
    def iter_type(self) -> int:
        """Return the kind as TVM's number."""
        return _TVM_ITER_TYPES[self.kind]


_TVM_ITER_TYPES = {
    IterKind.SPATIAL: IterVar.DataPar,
    IterKind.REDUCE: IterVar.CommReduce,
    IterKind.ORDERED: IterVar.Ordered,
    IterKind.OPAQUE: IterVar.Opaque,
}


@node("tir.Block")
class Block(Stmt):
    """A computation over a domain: `init` (if any) runs before the first reduction step of each
    spatial point.

    body writes one element (or several outputs') as a function of the iterators.
    """

    name: str
    iter_vars: tuple[IterVar, ...] = binding()
    body: Stmt
    init: Stmt | None = None
    annotations: Mapping[str, object] | None = None

    @property
    def name_hint(self) -> str:
        """Return `name`; TVM's name."""
        return self.name


@node("tir.BlockRealize")
class BlockRealize(Stmt):
    """A block with its iterators bound to expressions of the loops around it; runs only where
    predicate holds.
    """

    iter_values: tuple[PrimExpr, ...]
    predicate: PrimExpr
    block: Block


IMPORT_LLVM_ATTR = "tir.import_llvm"
"""Attribute of a function: texts of LLVM IR with definitions of C functions that it calls."""


@node("tir.PrimFunc")
class PrimFunc(BaseFunc):
    """A function over buffers and scalars: `params` in calling order, outputs last.

    A Var among them is a scalar argument. Symbolic dimensions (SizeVar) in the shapes of the others
    are bound from the arguments' shapes at entry. attrs: {"global_symbol": str, "num_outputs": int,
    ...}.
    """

    params: tuple[Buffer | Var, ...] = binding()
    body: Stmt
    attrs: Mapping[str, object] | None = None
    span: Span | None = ignored_field(default=None)

    def astext(
        self,
        show_meta_data: bool = True,
        annotate: Callable[[RelayExpr], str] | None = None,
        show_spans: bool = False,
    ) -> str:
        """Return the function as Python text, which `ekiden.tir.parse` reads back.

        The arguments are those of Relay's text format and are ignored.
        """
        del show_meta_data, annotate, show_spans
        return printer.astext(self)

    def _repr_html_(self) -> str:
        return html.program_html(html.colour_tokens(self.astext(), html.PYTHON_TOKENS))

    @property
    def buffer_map(self) -> dict[Buffer, Buffer]:
        """Return the buffer of each parameter. TVM's parameters are handles; here they are the
        buffers.
        """
        return {p: p for p in self.buffers}

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Return the parameters that are buffers."""
        return tuple(p for p in self.params if isinstance(p, Buffer))

    @property
    def scalars(self) -> tuple[Var, ...]:
        """Return the parameters that are scalars."""
        return tuple(p for p in self.params if isinstance(p, Var))

    def script(self, name: str | None = None, show_meta: bool = False) -> str:
        """Return `astext()`, by TVM's name, optionally under another function name. `show_meta` is
        ignored: loop programs have no metadata section.
        """
        shown = self if name is None else self.with_attr("global_symbol", name)
        return shown.astext()

    @property
    def name(self) -> str:
        """Return the symbol under which it is compiled."""
        return str((self.attrs or {}).get("global_symbol", "main"))

    def with_body(self, new_body: Stmt) -> PrimFunc:
        """Return the same function with another body."""
        return self.with_fields(body=new_body)

    specializer: ClassVar[Callable[..., PrimFunc]]
    """Implementation of `specialize`, set by `ekiden.tir.specialize`, which imports this module."""

    def specialize(self, param_map: Mapping[Buffer | Var, Buffer | ExprLike]) -> PrimFunc:
        """Return the function for given scalars and sizes; see
        `ekiden.tir.specialize.specialized`.
        """
        return type(self).specializer(self, param_map)


def seq(*statements: Stmt) -> Stmt:
    """Return statements in order; nested sequences are flattened, a single statement is returned
    itself, none yields the empty statement.
    """
    flat: list[Stmt] = []
    for stmt in statements:
        flat.extend(stmt.seq if isinstance(stmt, SeqStmt) else (stmt,))
    if not flat:
        return Evaluate(const(0))
    return flat[0] if len(flat) == 1 else SeqStmt(tuple(flat))
