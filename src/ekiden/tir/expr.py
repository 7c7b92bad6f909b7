"""Expressions that only loop programs have: buffer loads, buffer addresses and vectors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cache, reduce

from ekiden.ir import dtype as dt
from ekiden.ir.node import NODE_TYPES, Node, binding, node, set_frozen_fields
from ekiden.ir.op_name import OpName
from ekiden.ir.prim import (
    DeferredComparison,
    ExprLike,
    IntImm,
    Intrinsic,
    Mul,
    PrimExpr,
    Var,
    const,
    convert,
    convert_operands,
    is_const,
)
from ekiden.runtime.errors import ExpressionError
from ekiden.runtime.lazy_dataclass import dataclass

FRAGMENTS = ("wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator")
"""Scopes of matrix fragments, which the threads of a warp hold together and only intrinsics access.
"""
LATE_SCOPES = ("shared", "shared.dyn", *FRAGMENTS)
"""Scopes whose buffer layout later passes decide; calls query it by region_offset and
region_stride.
"""
SCOPES = ("global", "local", "register", "shared", "shared.dyn", "warp", *FRAGMENTS)
"""Memory scopes of buffers."""


@node("tir.Buffer")
class Buffer(Node):
    """A typed region of memory with a shape; identity tells two apart.

    scope: "global" (an argument, or a per-call workspace when allocated), "local" (small, on the
    stack), "register" (every index is constant after unrolling; becomes SSA values, never memory).
    strides: in elements, empty for row-major. elem_offset: where the first element is, in elements
    after the address. Names in sizes are defined here where nothing around does: functions that
    differ in them are equal.
    """

    name: str
    shape: tuple[PrimExpr, ...] = binding()
    dtype: str = "float32"
    scope: str = "global"
    strides: tuple[PrimExpr, ...] = binding(default=())
    elem_offset: PrimExpr | None = binding(default=None)

    def sizes(self) -> tuple[PrimExpr, ...]:
        """Return the expressions that define the memory layout: shape, strides, offset."""
        offset = () if self.elem_offset is None else (self.elem_offset,)
        return (*self.shape, *self.strides, *offset)

    @property
    def data(self) -> BufferAddress:
        """Return the buffer's address, over which `T.decl_buffer(shape, data=A.data)` places
        another buffer.
        """
        return BufferAddress(self)

    def access_ptr(
        self,
        access_mask: str | int = "rw",
        indices: Sequence[ExprLike] | str = (),
        extents: Sequence[ExprLike] | int = (),
        offset: ExprLike | None = None,
        extent: ExprLike | None = None,
        ptr_type: str = "handle",
        content_lanes: int = 1,
    ) -> BufferAddress:
        """Return the argument that passes this buffer to a call: all of it, the region at
        `indices`, or `extent` elements from the linear `offset` on (to the end without
        `extent`), as in TVM.

        `access_mask` is "r", "w" or "rw", or TVM's number: 1, 2 or 3. Raises ValueError for pointer
        types other than "handle" and for more than one lane.
        """
        if isinstance(indices, str):  # TVM's order: access_mask, ptr_type, content_lanes
            ptr_type, indices = indices, ()
        if isinstance(extents, int):
            content_lanes, extents = extents, ()
        if ptr_type != "handle" or content_lanes != 1:
            raise ValueError(f"access_ptr of {self.name!r}: a handle of single elements is given")
        numbers: dict[str | int, str] = {1: "r", 2: "w", 3: "rw"}
        access = numbers.get(access_mask, str(access_mask))
        if offset is not None or extent is not None:
            indices = (0 if offset is None else offset,)
            size = reduce(operator.mul, self.shape, convert(1, "int64"))
            extents = (size - convert(indices[0], "int64") if extent is None else extent,)
        point = tuple(convert(i, "int64") for i in indices)
        return BufferAddress(self, point, tuple(convert(e, "int64") for e in extents), access)

    def vload(self, begin: ExprLike | Sequence[ExprLike], dtype: str | None = None) -> BufferLoad:
        """Return a load of the element at `begin`, or with a dtype of several lanes of the vector
        that begins there.

        Raises TypeError for a dtype whose elements are not the buffer's.
        """
        kind = dtype or self.dtype
        if dt.element_dtype(kind) != dt.element_dtype(self.dtype):
            raise TypeError(f"vload of {self.name!r}: it holds {self.dtype}, not {kind}")
        return BufferLoad(self, self._vector_indices(begin, dt.lanes(kind)), kind)

    def vstore(self, begin: ExprLike | Sequence[ExprLike], value: ExprLike) -> Node:
        """Return the statement that stores a value at `begin`; lanes of a vector are stored
        contiguously.
        """
        stored = convert(value, self.dtype)
        indices = self._vector_indices(begin, dt.lanes(stored.dtype))
        return NODE_TYPES["tir.BufferStore"](self, stored, indices)  # type: ignore[call-arg]

    def _vector_indices(
        self, begin: ExprLike | Sequence[ExprLike], lanes: int
    ) -> tuple[PrimExpr, ...]:
        """Return the indices of the `lanes` elements from `begin` on: the last index becomes a
        Ramp.
        """
        begin_indices = begin if isinstance(begin, (tuple, list)) else (begin,)
        indices = tuple(convert(i, "int64") for i in begin_indices)
        return (*indices[:-1], ramp(indices[-1], 1, lanes))

    def offset_of(self, indices: Sequence[ExprLike]) -> PrimExpr:
        """Return an element's offset from the buffer's address, in elements. Raises ValueError
        unless there is one index per axis.
        """
        strides: list[PrimExpr] = list(self.strides)
        if not strides:
            size: PrimExpr = convert(1, "int64")
            for extent in reversed(self.shape):
                strides.insert(0, size)
                size = size * extent
        total = convert(0 if self.elem_offset is None else self.elem_offset, "int64")
        for index, stride in zip(indices, strides, strict=True):
            total = total + convert(index, "int64") * stride
        return total

    @property
    def bytes(self) -> ByteView:
        """Return the uint8 view of a small-type buffer, indexed by byte: lowered programs access it
        so.
        """
        return ByteView(self)

    __iter__ = None  # else Python would ask for elements 0, 1, ... without an end

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> BufferLoad:
        if isinstance(indices, PrimExpr):
            return BufferLoad(self, (indices,), self.dtype)
        index_tuple = indices if isinstance(indices, tuple) else (indices,)
        return BufferLoad(self, tuple([convert(i, "int64") for i in index_tuple]), self.dtype)


@dataclass(frozen=True, slots=True)
class ByteView:
    """A buffer of a small type, seen as uint8."""

    buffer: Buffer

    __iter__ = None  # else Python would ask for elements 0, 1, ... without an end

    def __getitem__(self, index: ExprLike) -> BufferLoad:
        position = convert(index, "int64")
        return BufferLoad(
            self.buffer, (position,), dt.with_lanes("uint8", dt.lanes(position.dtype))
        )


@node("tir.BufferLoad")
class BufferLoad(PrimExpr):
    """A load of an element, or of a vector if the last index is a Ramp (contiguous or strided) or
    another vector (gather).

    After flattening a buffer has one index. Each element of a buffer with a vector dtype (register
    scope) is a vector.
    """

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    dtype: str = ""

    def __post_init__(self) -> None:
        """Default the dtype to the buffer's, with as many lanes as the last index has."""
        if not self.dtype:
            indices = tuple(convert(i, "int64") for i in self.indices)
            lanes = dt.lanes_suffix(indices[-1].dtype) if indices else ""
            kind = self.buffer.dtype
            set_frozen_fields(
                self, indices=indices, dtype=dt.with_lanes(kind, lanes) if lanes else kind
            )


@node("tir.BufferAddress")
class BufferAddress(PrimExpr):
    """An argument of a call: a buffer, or the region of `extents` elements that starts at
    `indices`.

    call_packed receives a tensor over it, call_extern the address of its first element. `access`
    declares what the callee does with it: "r", "w" or "rw".
    """

    buffer: Buffer
    indices: tuple[PrimExpr, ...] = ()
    extents: tuple[PrimExpr, ...] = ()
    access: str = "rw"
    dtype: str = "handle"

    @property
    def op(self) -> OpName:
        """Return TVM's operator for this argument: `address_of` for one element, else
        `tvm_access_ptr`.
        """
        one = bool(self.extents) and all(is_const(e, 1) for e in self.extents)
        return OpName("address_of" if one else "tvm_access_ptr")


@cache
def _scalable_lanes(factor: int) -> PrimExpr:
    """Return `vscale() * factor`, one object per factor because lanes are compared by identity."""
    return Mul(Intrinsic("vscale", (), "int64"), const(factor, "int64"))


def parse_lanes(lanes: ExprLike | str) -> int | PrimExpr:
    """Convert lanes to the form that vector nodes store, from a number, `vscale() * factor` or text
    of `dt.vector`. Raises TypeError for others.
    """
    if type(lanes) is int:
        return lanes
    match lanes:
        case int():
            return lanes
        case str():
            _, is_scalable, factor = lanes.rpartition(dt.VSCALE_PREFIX)
            return _scalable_lanes(int(factor)) if is_scalable else int(factor)
        case IntImm():
            return int(lanes.value)
        case (
            Mul(a=Intrinsic(op="vscale"), b=IntImm(value=factor))
            | Mul(a=IntImm(value=factor), b=Intrinsic(op="vscale"))
        ):
            return _scalable_lanes(factor)
    raise ExpressionError(
        f"lanes of a vector: expected a number or vscale() times one, got {lanes}"
    )


def format_lanes(lanes: int | PrimExpr) -> str:
    """Format lanes in the notation of `dt.vector`."""
    if isinstance(lanes, Mul):
        assert isinstance(lanes.b, IntImm)
        return dt.scalable_lanes(lanes.b.value)
    return dt.lanes_suffix(f"x{lanes}")


@node("tir.Ramp")
class Ramp(PrimExpr):
    """The vector base, base + stride, ... of `lanes` elements: a number, or of scalable vectors
    `vscale() * factor`.
    """

    base: PrimExpr
    stride: PrimExpr
    lanes: int | PrimExpr
    dtype: str = ""

    def __post_init__(self) -> None:
        """Default the dtype to that of base and stride, one of which may be a number.

        Raises TypeError where their dtypes differ and for lanes that are neither a number nor a
        multiple of vscale.
        """
        if type(self.lanes) is not int:
            set_frozen_fields(self, lanes=parse_lanes(self.lanes))
        if not self.dtype:
            base, stride = convert_operands(self.base, self.stride)
            if base.dtype != stride.dtype:
                kinds = f"{base.dtype} and {stride.dtype}"
                raise TypeError(f"Ramp: base and stride must have one dtype, got {kinds}")
            dtype = dt.with_lanes(base.dtype, format_lanes(self.lanes))
            set_frozen_fields(self, base=base, stride=stride, dtype=dtype)


@node("tir.Broadcast")
class Broadcast(PrimExpr):
    """`value` in every lane; `lanes` as of a Ramp."""

    value: PrimExpr
    lanes: int | PrimExpr
    dtype: str = ""

    def __post_init__(self) -> None:
        """Default the dtype to that of the value, which may be a number. Raises TypeError for lanes
        that are neither a number nor a multiple of vscale.
        """
        if type(self.lanes) is not int:
            set_frozen_fields(self, lanes=parse_lanes(self.lanes))
        if not self.dtype:
            value = convert(self.value)
            set_frozen_fields(
                self, value=value, dtype=dt.with_lanes(value.dtype, format_lanes(self.lanes))
            )


@node("tir.Reduce")
class VectorReduce(PrimExpr):
    """A horizontal reduction of a vector's lanes to a scalar; kind is "sum", "max", "min" or
    "prod".
    """

    value: PrimExpr
    kind: str
    dtype: str


def decl_buffer(
    shape: ExprLike | Sequence[ExprLike],
    dtype: str | None = None,
    name: str = "buffer",
    data: None = None,
    strides: Sequence[ExprLike] | None = None,
    elem_offset: ExprLike | None = None,
    scope: str = "",
    data_alignment: int = -1,
    offset_factor: int = 0,
    buffer_type: str = "",
) -> Buffer:
    """Return a buffer, by TVM's signature.

    TVM's code generators use the alignment and the offset factor; Ekiden's do not. With a factor
    and no offset, the offset is a variable. Raises TypeError for `data`, the address of another
    buffer (see Buffer.access_ptr), and ValueError for a broadcasting buffer type.
    """
    del data_alignment
    if data is not None:
        raise TypeError(f"decl_buffer {name!r}: a buffer cannot be put at the address of another")
    if buffer_type not in ("", "default"):
        raise ValueError(f"decl_buffer {name!r}: there are no buffers of type {buffer_type!r}")
    if elem_offset is None and offset_factor:
        elem_offset = Var(f"{name}_elem_offset")
    dims = shape if isinstance(shape, (tuple, list)) else (shape,)
    return Buffer(
        name,
        tuple(convert(d, "int64") for d in dims),
        dtype or "float32",
        scope or "global",
        tuple(convert(s, "int64") for s in strides or ()),
        None if elem_offset is None else convert(elem_offset, "int64"),
    )


def ramp(base: PrimExpr, stride: ExprLike, lanes: int | str) -> PrimExpr:
    """Return a Ramp with lanes as a number or in the notation of `dt.vector`; the base itself for
    one lane.
    """
    if lanes in (1, ""):
        return base
    dtype = dt.with_lanes(base.dtype, lanes)
    return Ramp(base, convert(stride, base.dtype), parse_lanes(lanes), dtype)


def broadcast(value: PrimExpr, lanes: int | str) -> PrimExpr:
    """Return a Broadcast; the value itself for one lane or if it already has the lanes.

    Raises CompileError where a scalable vector would be a part of another vector, ExpressionError
    where a fixed one would be a part of a scalable one.
    """
    value_lanes = dt.lanes_suffix(value.dtype)
    if lanes in (1, "") or value_lanes == str(lanes):
        return value
    if value_lanes and dt.lanes(value.dtype) and not str(lanes).isdecimal():
        raise ExpressionError(f"a vector of {value.dtype} cannot be a part of a scalable one")
    return Broadcast(value, parse_lanes(lanes), dt.with_lanes(value.dtype, lanes))


EqualOp = NotEqualOp = DeferredComparison
"""EqualOp: TVM's name of the result of `==`. NotEqualOp: TVM's name of the result of `!=`."""

__all__ = [
    "FRAGMENTS",
    "LATE_SCOPES",
    "SCOPES",
    "Broadcast",
    "Buffer",
    "BufferAddress",
    "BufferLoad",
    "EqualOp",
    "NotEqualOp",
    "Ramp",
    "Var",
    "VectorReduce",
    "broadcast",
    "decl_buffer",
    "ramp",
]
