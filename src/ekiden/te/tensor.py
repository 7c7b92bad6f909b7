"""Tensors and operations of tensor expressions: an element as a function of its indices.

Operation = PlaceholderOp | ComputeOp | ExternOp. PrimExpr gains ProducerLoad (an element of a
tensor), ReduceAxis and Reduce (see ekiden.te.reducer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from typing import NoReturn, cast, overload
from weakref import WeakKeyDictionary

from ekiden.ir import dtype as dt
from ekiden.ir.node import Node, node
from ekiden.ir.prim import ExprLike, IntImm, PrimExpr, SizeVar, Var, const, convert
from ekiden.ir.prim_visitor import post_order
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te.axis_names import axis_names, rank_mismatch_message
from ekiden.te.reducer import Reduce, ReduceAxis
from ekiden.te.stmt_renaming import replace_buffers
from ekiden.te.tag import CURRENT_TAG, tag_scope
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, Evaluate, IterKind, IterVar, PrimFunc, Stmt
from ekiden.tir.transform.scalars_as_tensors import numbers_as_tensors
from ekiden.tir.visitor import all_exprs, pre_order_stmts, substitute


class Operation(Node):
    """Operation that computes tensors."""

    __slots__ = ()
    name: str
    tag: str
    attrs: Mapping[str, object]

    def _output_types(self) -> Sequence[tuple[tuple[PrimExpr, ...], str]]:
        """Return the shape and dtype of each output."""
        raise NotImplementedError

    @property
    def num_outputs(self) -> int:
        """Return the number of outputs."""
        return len(self._output_types())

    def output(self, index: int) -> Tensor:
        """Return the n-th output tensor. Raises IndexError where there is none."""
        outputs = self._output_types()
        if not 0 <= index < len(outputs):
            raise IndexError(f"operation {self.name!r}: it has {len(outputs)} outputs, not {index}")
        return Tensor(self, index, *outputs[index])

    @property
    def input_tensors(self) -> list[Tensor]:
        """Return the tensors that it reads, each once, in order of appearance."""
        return []


BLOCK_ANNOTATIONS_ATTR = "block_annotations"
"""Attribute of a computation: the annotations of its block, which declare what its inputs hold."""


@node("te.PlaceholderOp")
class PlaceholderOp(Operation):
    """A placeholder operation: an input tensor."""

    name: str
    tag: str
    attrs: Mapping[str, object]
    shape: tuple[PrimExpr, ...]
    dtype: str

    def _output_types(self) -> Sequence[tuple[tuple[PrimExpr, ...], str]]:
        return [(self.shape, self.dtype)]


@node("te.ComputeOp")
class ComputeOp(Operation):
    """A compute operation: one expression per output over the same axes; all are plain, or all are
    a Reduce over the same axes.
    """

    name: str
    tag: str
    attrs: Mapping[str, object]
    axis: tuple[IterVar, ...]
    body: tuple[PrimExpr, ...]

    @property
    def reduce_axis(self) -> tuple[ReduceAxis, ...]:
        """Return the reduction axes; empty for a plain computation."""
        first = self.body[0]
        return first.axis if isinstance(first, Reduce) else ()

    def _output_types(self) -> Sequence[tuple[tuple[PrimExpr, ...], str]]:
        shape = tuple(a.extent for a in self.axis)
        return [(shape, b.dtype) for b in self.body]

    @property
    def input_tensors(self) -> list[Tensor]:
        """Return the tensors that it reads, each once, in order of appearance."""
        producers = _INPUT_TENSORS_CACHE.get(self)
        if producers is None:
            loads = (e for e in post_order(*self.body) if isinstance(e, ProducerLoad))
            producers = _INPUT_TENSORS_CACHE[self] = tuple(dict.fromkeys(e.producer for e in loads))
        return list(producers)


_INPUT_TENSORS_CACHE: WeakKeyDictionary[ComputeOp, tuple[Tensor, ...]] = WeakKeyDictionary()
"""Input tensors of each computation, cached for graph walks."""


@node("te.ExternOp")
class ExternOp(Operation):
    """An extern operation: statements over the buffers of its inputs and outputs; never inlined,
    and scheduled only where computations are `steps`.
    """

    name: str
    tag: str
    attrs: Mapping[str, object]
    inputs: tuple[Tensor, ...]
    input_buffers: tuple[Buffer, ...]
    output_buffers: tuple[Buffer, ...]
    body: Stmt
    steps: tuple[tuple[ComputeOp, str], ...] = ()
    """Scan-step computations that are blocks among the statements, with their block names; a
    schedule has stages of them.
    """

    def _output_types(self) -> Sequence[tuple[tuple[PrimExpr, ...], str]]:
        return [(b.shape, b.dtype) for b in self.output_buffers]

    @property
    def input_tensors(self) -> list[Tensor]:
        """Return the tensors that it reads, in order."""
        return list(self.inputs)


TENSOR_OPERATORS: dict[str, Callable[..., Tensor]] = {}
"""Implementations of Python's operators on tensors, by topi's function name; filled in by topi."""


def _topi_operator(name: str, reflected: bool = False) -> Callable[[Tensor, object], Tensor]:
    def apply_operator(self: Tensor, operand: object) -> Tensor:
        """Apply the operator of ekiden.topi, which registers it on import. Raises TypeError before
        that.
        """
        if name not in TENSOR_OPERATORS:
            raise TypeError(f"arithmetic on tensors ({name} of {self.name!r}): import ekiden.topi")
        return (
            TENSOR_OPERATORS[name](operand, self)
            if reflected
            else TENSOR_OPERATORS[name](self, operand)
        )

    return apply_operator


@node("te.Tensor")
class Tensor(Node):
    """Output of an operation. `t[i, j]` is an element; that of a rank 0 tensor is `t[()]`.

    Arithmetic on whole tensors broadcasts: `a + b` is topi.add(a, b). Two tensors are equal if they
    are the same output of the same operation.
    """

    op: Operation
    value_index: int
    shape: tuple[PrimExpr, ...]
    dtype: str

    def __eq__(self, tensor: object) -> bool:
        if self is tensor:
            return True
        if not isinstance(tensor, Tensor):
            return False
        return self.op is tensor.op and self.value_index == tensor.value_index

    def __hash__(self) -> int:
        return hash((id(self.op), self.value_index))

    @property
    def axis(self) -> tuple[IterVar, ...]:
        """Return the axes of its computation; none for an input."""
        return getattr(self.op, "axis", ())

    @property
    def name(self) -> str:
        """Return the name of the operation."""
        return self.op.name

    @property
    def whole_shape(self) -> tuple[PrimExpr, ...]:
        """Return the shape of the enclosing tensor that this one fills the beginning of (attribute
        "whole" of its operation); its own without one.
        """
        outer_shape = self.op.attrs.get("whole", self.shape)
        assert isinstance(outer_shape, tuple)
        return outer_shape

    @property
    def is_part(self) -> bool:
        """Return whether the tensor fills the beginning of a larger one, whose rest other kernels
        write.
        """
        return "whole" in self.op.attrs

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    __iter__ = None  # else Python would ask for elements 0, 1, ... without an end

    def __getitem__(self, indices: ExprLike | Sequence[ExprLike]) -> ProducerLoad:
        """Return an element; with fewer indices a partial index, so that `t[i][j]` works; with
        slices, `t[i, 0:16]`, a region for a tensor instruction.
        """
        index_list = (indices,) if isinstance(indices, (PrimExpr, int, slice)) else tuple(indices)  # type: ignore[arg-type]
        if any(isinstance(i, slice) for i in index_list):
            return cast(ProducerLoad, TensorRegion(self, index_list))
        if 0 < len(index_list) < len(self.shape):
            return cast(ProducerLoad, TensorSlice(self, index_list))  # which becomes one
        if len(index_list) != len(self.shape):
            raise ValueError(_index_count_message(self, len(index_list)))
        values = tuple(convert(i, None if _is_float_index(i) else "int64") for i in index_list)
        for index_expr in values:
            if not dt.is_int(index_expr.dtype):
                raise TypeError(
                    f"tensor {self.name!r}: an index must be an integer, got {index_expr!r}"
                )
        return ProducerLoad(self, values, self.dtype)

    def __call__(self, *indices: ExprLike) -> ProducerLoad:
        """Return `t[i, j]` for `t(i, j)`."""
        return self[indices]

    __add__, __radd__ = _topi_operator("add"), _topi_operator("add", True)
    __sub__, __rsub__ = _topi_operator("subtract"), _topi_operator("subtract", True)
    __mul__, __rmul__ = _topi_operator("multiply"), _topi_operator("multiply", True)
    __truediv__, __rtruediv__ = _topi_operator("divide"), _topi_operator("divide", True)
    __floordiv__, __rfloordiv__ = (
        _topi_operator("floor_divide"),
        _topi_operator("floor_divide", True),
    )
    __mod__, __rmod__ = _topi_operator("floor_mod"), _topi_operator("floor_mod", True)
    __lt__, __le__ = _topi_operator("less"), _topi_operator("less_equal")
    __gt__, __ge__ = _topi_operator("greater"), _topi_operator("greater_equal")

    def __neg__(self) -> Tensor:
        return TENSOR_OPERATORS["negative"](self)

    def astype(self, dtype: str) -> Tensor:
        """Convert each element, as topi.cast."""
        return TENSOR_OPERATORS["cast"](self, dtype)


def _is_float_index(index: object) -> bool:
    return isinstance(index, Real) and not isinstance(index, Integral)


def _index_count_message(tensor: Tensor, count: int) -> str:
    return f"tensor {tensor.name!r}: expected {len(tensor.shape)} indices, got {count}"


def _raise_partial_index(self: TensorSlice, *_: object) -> NoReturn:
    """Raise ValueError: a partially indexed tensor is no value."""
    raise ValueError(_index_count_message(self.tensor, len(self.indices)))


@dataclass(frozen=True, slots=True, eq=False)
class TensorSlice:
    """Partially indexed tensor: `t[i]` in `t[i][j]`."""

    tensor: Tensor
    indices: tuple[ExprLike, ...]

    __iter__ = None  # else Python would ask for elements 0, 1, ... without an end

    def __getitem__(self, indices: ExprLike | Sequence[ExprLike]) -> ProducerLoad:
        more = (indices,) if isinstance(indices, (PrimExpr, int)) else tuple(indices)  # type: ignore[arg-type]
        return self.tensor[(*self.indices, *more)]

    @property
    def dtype(self) -> str:
        """Return the dtype of the elements."""
        return self.tensor.dtype

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = (
        _raise_partial_index
    )
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = (
        _raise_partial_index
    )
    __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __bool__ = astype = (
        _raise_partial_index
    )


@dataclass(frozen=True, slots=True, eq=False)
class TensorRegion:
    """Region of a tensor: an index or a slice for each axis."""

    tensor: Tensor
    indices: tuple[object, ...]


class InstructionCall:
    """Call of a tensor instruction: the result of a `te.compute` function with fewer indices than
    axes; the instruction computes the remaining axes (`te.tensor_compute`).
    """

    __slots__ = ()

    def operation(
        self, name: str, tag: str, attrs: Mapping[str, object], axis: tuple[IterVar, ...], own: int
    ) -> ComputeOp:
        """Return the computation, whose last `own` axes are those of the instruction."""
        raise NotImplementedError


@node("te.ProducerLoad")
class ProducerLoad(PrimExpr):
    """Element of a tensor."""

    producer: Tensor
    indices: tuple[PrimExpr, ...]
    dtype: str


def var(name: str = "tindex", dtype: str = "int64") -> Var:
    """Return a named integer. (TVM's is int32 by default; every index here is int64.)"""
    return Var(name, dt.canonical_dtype(dtype))


def size_var(name: str = "size", dtype: str = "int64") -> SizeVar:
    """Return a named dimension, known to be at least 0; a kernel reads it from its arguments'
    shapes.
    """
    return SizeVar(name, dtype)


def as_dims(shape: ExprLike | Sequence[ExprLike], what: str) -> tuple[PrimExpr, ...]:
    """Return a shape as expressions; a float of a whole value (`n / 32`) is its integer. Raises
    ValueError for a negative dimension, TypeError for another float.
    """
    dim_list = (shape,) if isinstance(shape, (PrimExpr, int, float)) else tuple(shape)
    integral_dims = (int(d) if isinstance(d, float) and d.is_integer() else d for d in dim_list)
    dims = tuple(
        convert(d, "int64") if not isinstance(d, float) else convert(d) for d in integral_dims
    )
    for dim in dims:
        if not dt.is_int(dim.dtype):
            raise TypeError(f"{what}: a dimension must be an integer, got {dim!r}")
        if isinstance(dim, IntImm) and dim.value < 0:
            raise ValueError(f"{what}: a dimension must not be negative, got {dim_list}")
    return dims


def placeholder(
    shape: ExprLike | Sequence[ExprLike], dtype: str = "float32", name: str = "placeholder"
) -> Tensor:
    """Return an input tensor. Raises TypeError for an invalid dtype."""
    dims = as_dims(shape, f"placeholder {name!r}")
    if dtype not in dt.SCALAR_BITS:
        raise TypeError(
            f"placeholder {name!r}: dtype must be one of {', '.join(dt.SCALAR_BITS)}, got {dtype!r}"
        )
    return PlaceholderOp(name, "", {}, dims, dtype).output(0)


def _validate_reductions(name: str, bodies: Sequence[PrimExpr]) -> None:
    reduces = [b for b in bodies if isinstance(b, Reduce)]
    if (reduces and any(b.axis != reduces[0].axis for b in reduces)) or len(reduces) not in (
        0,
        len(bodies),
    ):
        raise ValueError(
            f"compute {name!r}: the outputs of one reduction must reduce over the same axes"
        )


def _normalize_bodies(name: str, result: object) -> tuple[PrimExpr, ...]:
    results = result if isinstance(result, (tuple, list)) else (result,)
    for expr in results:
        if isinstance(expr, TensorSlice):
            raise ValueError(_index_count_message(expr.tensor, len(expr.indices)))
        if not isinstance(expr, (PrimExpr, int, float)):
            raise TypeError(
                f"compute {name!r}: the function must give expressions, got {type(expr).__name__}"
            )
    return tuple(convert(result) for result in results)


def compute_op(
    shape: ExprLike | Sequence[ExprLike],
    fcompute: Callable[..., ExprLike | Sequence[ExprLike]],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> tuple[Tensor, ...]:
    """Return the tensors of a computation, one for each expression that the function returns; see
    `compute`.
    """
    dims = as_dims(shape, f"compute {name!r}")
    names, own = axis_names(fcompute, len(dims))
    axis = tuple(IterVar(Var(n), d, IterKind.SPATIAL) for n, d in zip(names, dims, strict=True))
    computed = fcompute(*(a.var for a in axis[: len(axis) - own]))
    label, notes = tag or CURRENT_TAG.get() or "", dict(attrs or {})
    if isinstance(computed, InstructionCall):
        op = computed.operation(name, label, notes, axis, own)
        bodies = op.body
    elif own:
        raise ValueError(rank_mismatch_message(len(dims), len(dims) - own))
    else:
        bodies = _normalize_bodies(name, computed)
        _validate_reductions(name, bodies)
        op = ComputeOp(name, label, notes, axis, bodies)
    return tuple(Tensor(op, n, dims, body.dtype) for n, body in enumerate(bodies))


@overload
def compute(
    shape: ExprLike | Sequence[ExprLike],
    fcompute: Callable[..., ExprLike],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Tensor: ...
@overload
def compute(
    shape: ExprLike | Sequence[ExprLike],
    fcompute: Callable[..., Sequence[ExprLike]],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> tuple[Tensor, ...]: ...
def compute(
    shape: ExprLike | Sequence[ExprLike],
    fcompute: Callable[..., ExprLike | Sequence[ExprLike]],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Return the tensor whose element at (i, j, ...) is `fcompute(i, j, ...)`; a tuple of tensors
    where the function returns several expressions. A reduction (`te.sum(...)`) must be the whole
    expression; what follows it is another compute.

    Args:
        shape: the tensor's shape.
        fcompute: function of the indices.
        name: the operation's name.
        tag: tag for schedule rules.
        attrs: attributes for schedule rules.
        varargs_names: names of `*indices`, accepted for TVM's sake.

    Returns:
        The tensor or tensors.

    Raises:
        ValueError: for a function of another number of indices.
        TypeError: for results that are no expressions.
    """
    tensors = compute_op(shape, fcompute, name, tag, attrs)
    return tensors[0] if len(tensors) == 1 else tensors


def extern_op(
    shapes: Sequence[Sequence[ExprLike]],
    inputs: Sequence[Tensor],
    fbuild: Callable[[Sequence[Buffer], Sequence[Buffer]], Stmt | PrimExpr],
    dtypes: Sequence[str],
    name: str = "extern",
    tag: str = "extern",
    attrs: Mapping[str, object] | None = None,
    steps: Sequence[tuple[ComputeOp, str]] = (),
) -> tuple[Tensor, ...]:
    """Create an extern operation as `extern`, for a list of shapes and dtypes; within
    `without_statements` without calling `fbuild`. Raises ValueError for another number of
    dtypes.
    """
    dims = [as_dims(shape, f"extern {name!r}") for shape in shapes]
    if len(dtypes) != len(dims):
        raise ValueError(f"extern {name!r}: {len(dims)} shapes need as many dtypes, got {dtypes}")
    ins = tuple(Buffer(t.name, t.shape, t.dtype) for t in inputs)
    outs = tuple(Buffer(name, d, t) for d, t in zip(dims, dtypes, strict=True))
    body = Evaluate(const(0)) if _OMITS_STATEMENTS.get() else fbuild(ins, outs)
    return _build_extern(name, tag, attrs, inputs, ins, outs, body, steps)


_OMITS_STATEMENTS: ContextVar[bool] = ContextVar("is_bare", default=False)


@contextmanager
def without_statements() -> Iterator[None]:
    """Create extern operations without their statements inside this context, for callers that need
    only names, shapes and attributes.
    """
    before = _OMITS_STATEMENTS.set(True)
    try:
        yield
    finally:
        _OMITS_STATEMENTS.reset(before)


def _build_extern(
    name: str,
    tag: str,
    attrs: Mapping[str, object] | None,
    inputs: Sequence[Tensor],
    ins: Sequence[Buffer],
    outs: Sequence[Buffer],
    body: Stmt | PrimExpr,
    steps: Sequence[tuple[ComputeOp, str]] = (),
) -> tuple[Tensor, ...]:
    statement = Evaluate(body) if isinstance(body, PrimExpr) else body
    if not isinstance(statement, Stmt):
        raise TypeError(
            f"extern {name!r}: the function must give a statement, got {type(body).__name__}"
        )
    _require_matching_ranks(name, statement)
    op = ExternOp(
        name, tag, dict(attrs or {}), tuple(inputs), tuple(ins), tuple(outs), statement,
        tuple(steps),
    )  # fmt: skip
    return tuple(Tensor(op, n, b.shape, b.dtype) for n, b in enumerate(outs))


def _require_matching_ranks(name: str, body: Stmt) -> None:
    """Raise ValueError for an access with neither an index per axis nor one flat index."""
    accesses: list[BufferLoad | BufferStore] = [
        *(s for s in pre_order_stmts(body) if isinstance(s, BufferStore)),
        *(e for e in all_exprs(body) if isinstance(e, BufferLoad)),
    ]
    for access in accesses:
        if len(access.indices) not in (1, len(access.buffer.shape)):
            raise ValueError(
                f"{name}: {access.buffer.name!r} has {len(access.buffer.shape)} dimensions, and is"
                f" accessed by {len(access.indices)} indices"
            )


def extern(
    shape: Sequence[ExprLike] | Sequence[Sequence[ExprLike]],
    inputs: Sequence[Tensor],
    fcompute: Callable[[Sequence[Buffer], Sequence[Buffer]], Stmt | PrimExpr],
    name: str = "extern",
    dtype: str | Sequence[str] | None = None,
    in_buffers: Sequence[Buffer] | Buffer | None = None,
    out_buffers: Sequence[Buffer] | Buffer | None = None,
    tag: str = "extern",
    attrs: Mapping[str, object] | None = None,
) -> Tensor | list[Tensor]:
    """Return tensors filled by statements: `fcompute(input_buffers, output_buffers)` returns a
    statement, or an expression to evaluate.

    `shape` is one shape (the result is a tensor) or a list of shapes (a list of tensors). The dtype
    is that of the inputs where they agree, else it must be given. Buffers given for inputs or
    outputs are those that `fcompute` gets. For scans, sorts, searches and library calls.
    """
    single = all(isinstance(d, (PrimExpr, int)) for d in shape) and (
        bool(shape) or isinstance(shape, tuple)
    )
    shapes = [shape] if single else list(shape)
    ins = _check_buffers(
        name, "in_buffers", in_buffers, [Buffer(t.name, t.shape, t.dtype) for t in inputs]
    )
    dtypes = _output_dtypes(name, dtype, inputs, out_buffers, len(shapes))
    new_buffers = [
        Buffer(name, as_dims(d, f"extern {name!r}"), t)  # type: ignore[arg-type]
        for d, t in zip(shapes, dtypes, strict=True)
    ]
    outs = _check_buffers(name, "out_buffers", out_buffers, new_buffers)
    tensors = _build_extern(name, tag, attrs, inputs, ins, outs, fcompute(ins, outs))
    return tensors[0] if single else list(tensors)


def _check_buffers(
    name: str, what: str, buffers: Sequence[Buffer] | Buffer | None, otherwise: list[Buffer]
) -> list[Buffer]:
    if buffers is None:
        return otherwise
    buffer_list = [buffers] if isinstance(buffers, Buffer) else list(buffers)
    if len(buffer_list) != len(otherwise):
        raise ValueError(
            f"extern {name!r}: expected {len(otherwise)} {what}, got {len(buffer_list)}"
        )
    return buffer_list


def _output_dtypes(
    name: str,
    dtype: str | Sequence[str] | None,
    inputs: Sequence[Tensor],
    out_buffers: Sequence[Buffer] | Buffer | None,
    count: int,
) -> list[str]:
    if dtype is None and out_buffers is not None:
        return [
            b.dtype for b in ([out_buffers] if isinstance(out_buffers, Buffer) else out_buffers)
        ]
    if dtype is None:
        kinds = {t.dtype for t in inputs}
        if len(kinds) != 1:
            raise ValueError(f"extern {name!r}: dtype must be given, inputs have {sorted(kinds)}")
        return [*kinds] * count
    dtype_list = [dtype] * count if isinstance(dtype, str) else list(dtype)
    if len(dtype_list) != count:
        raise ValueError(f"extern {name!r}: {count} outputs need as many dtypes, got {dtype!r}")
    return dtype_list


def extern_primfunc(
    input_tensors: Sequence[Tensor], primfunc: PrimFunc, name: str = ""
) -> Tensor | list[Tensor]:
    """Return the outputs of a loop program called on tensors: its parameters are the inputs, then
    the outputs; a scalar parameter takes a tensor of rank 0. Raises ValueError when the numbers,
    ranks or dtypes of the inputs differ.
    """
    primfunc = numbers_as_tensors(primfunc)
    called = name or primfunc.name
    ins, outs = primfunc.buffers[: len(input_tensors)], primfunc.buffers[len(input_tensors) :]
    if not outs:
        raise ValueError(
            f"extern_primfunc {called!r}: {len(primfunc.params)} parameters leave no output after"
            f" {len(input_tensors)} inputs"
        )
    for tensor, buffer in zip(input_tensors, ins, strict=True):
        if (tensor.ndim, tensor.dtype) != (len(buffer.shape), buffer.dtype):
            raise ValueError(
                f"extern_primfunc {called!r}: parameter {buffer.name!r} must have rank"
                f" {len(buffer.shape)} and dtype {buffer.dtype}, got {tensor.ndim} and"
                f" {tensor.dtype}"
            )
    sizes = {
        dim: extent
        for tensor, buffer in zip(input_tensors, ins, strict=True)
        for dim, extent in zip(buffer.shape, tensor.shape, strict=True)
        if isinstance(dim, Var)
    }
    fresh = {
        b: Buffer(b.name, tuple(substitute_expr(d, sizes) for d in b.shape), b.dtype)
        for b in primfunc.buffers
    }
    body = substitute(replace_buffers(primfunc.body, fresh), sizes)
    outputs = _build_extern(
        called,
        "extern",
        None,
        input_tensors,
        [fresh[b] for b in ins],
        [fresh[b] for b in outs],
        body,
    )
    return outputs[0] if len(outputs) == 1 else list(outputs)


__all__ = [
    "ComputeOp",
    "ExternOp",
    "InstructionCall",
    "Operation",
    "PlaceholderOp",
    "ProducerLoad",
    "Tensor",
    "TensorRegion",
    "TensorSlice",
    "compute",
    "compute_op",
    "extern",
    "extern_op",
    "extern_primfunc",
    "placeholder",
    "size_var",
    "tag_scope",
    "var",
    "without_statements",
]  # fmt: skip
