"""Relay types.

Tensors, tuples, functions, type variables, ADT instances, references, holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import ClassVar

from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import TVM_DTYPE_ALIASES
from ekiden.ir.env_func import EnvFunc
from ekiden.ir.node import Node, binding, node, set_frozen_fields
from ekiden.ir.prim import AnyDim, ExprLike, IntImm, PrimExpr, Var, convert
from ekiden.ir.prim_visitor import children, has_unknown_dim, literal_fields
from ekiden.runtime.errors import ExpressionError


class Type(Node):
    """Base class of types.

    `==` compares structure (TVM's rule): type parameters up to their names, a data type by its
    name, dimensions as expressions that are known to be equal, `?` with `?`. A type variable or a
    hole equals itself alone.
    """

    __slots__ = ()
    printer: ClassVar[Callable[[Type], str] | None] = None
    """Printer of types as text, set by `ekiden.ir.expr_text`."""
    prover: ClassVar[Callable[[PrimExpr, PrimExpr], bool] | None] = None
    """Prover of equality of symbolic dimensions, set by Relay."""

    def astext(self) -> str:
        """Return the type in Relay's text format."""
        return f"{type(self).__name__}(...)" if Type.printer is None else Type.printer(self)

    def __str__(self) -> str:
        return self.astext()

    def __repr__(self) -> str:
        return self.astext()

    def __eq__(self, rhs: object) -> bool:
        return self is rhs or (isinstance(rhs, Type) and _is_equal_type(self, rhs, {}))

    def __hash__(self) -> int:
        return _hash_type(self)


class TypeKind(IntEnum):
    """Kind of a type variable (TVM's numbers)."""

    TYPE = 0
    SHAPE_VAR = 1
    BASE_TYPE = 2
    CONSTRAINT = 4
    ADT_HANDLE = 5
    TYPE_DATA = 6
    Type = 0
    ShapeVar = 1
    BaseType = 2
    Constraint = 4
    AdtHandle = 5
    TypeData = 6


_ATOMIC_DIMS = (IntImm, Var, AnyDim)


def _depends_on_unknown(dim: PrimExpr) -> bool:
    return not isinstance(dim, _ATOMIC_DIMS) and has_unknown_dim(dim)


MAX_RANK = 64
"""Maximum number of dimensions of a tensor: EK_MAX_NDIM of the runtime."""
MAX_ELEMENTS = 2**59
"""Maximum number of elements of a tensor, so that its size in bytes fits int64."""


def _is_addressable_shape(shape: Sequence[PrimExpr]) -> bool:
    """Return whether the product of the known nonzero extents is at most MAX_ELEMENTS. Extents of 0
    are skipped, since strides are products of the others too.
    """
    sizes = (d.value for d in shape if isinstance(d, IntImm) and d.value > 1)
    # Unknown extents count as 1: only what is certain is refused.
    return math.prod(sizes) <= MAX_ELEMENTS


@node("relay.TensorType")
class TensorType(Type):
    """Tensor type: shape and dtype.

    Each dimension is an int64 expression: IntImm, SizeVar, arithmetic on them, or AnyDim. What is
    made from an unknown dimension is unknown: `? * 2` is `?`.
    """

    shape: tuple[PrimExpr, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Normalize and validate the shape, any sequence of ints and expressions.

        Raises ExpressionError for a shape that no tensor can have.
        """
        shape = self.shape
        # Most shapes are in this form already, and are kept as they are.
        if type(shape) is not tuple or any(not isinstance(d, PrimExpr) for d in shape):
            set_frozen_fields(self, shape=tuple(convert(d, "int64") for d in shape))
        if len(self.shape) > MAX_RANK:
            raise ExpressionError(
                f"a tensor's type: at most {MAX_RANK} dimensions, got {len(self.shape)}"
            )
        if any(isinstance(d, IntImm) and d.value < 0 for d in self.shape):
            text = ", ".join(map(repr, self.shape))
            raise ExpressionError(f"a tensor's type: no dimension may be below 0, got ({text})")
        if not _is_addressable_shape(self.shape):
            text = ", ".join(str(d.value) if isinstance(d, IntImm) else "?" for d in self.shape)
            raise ExpressionError(
                f"a tensor's type: no more than {MAX_ELEMENTS} elements fit in memory, got ({text})"
            )
        # `? + 1` says no more than `?`, and two such dimensions must not look comparable.
        if any(map(_depends_on_unknown, self.shape)):
            dims = (AnyDim() if _depends_on_unknown(d) else d for d in self.shape)
            set_frozen_fields(self, shape=tuple(dims))
        if self.dtype in TVM_DTYPE_ALIASES:
            # TVM's "float" and "float32" are one dtype.
            set_frozen_fields(self, dtype=TVM_DTYPE_ALIASES[self.dtype])

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        """Return the static shape as a tuple of ints. Raises ValueError when a dimension is no
        constant.
        """
        extents = tuple(d.value for d in self.shape if isinstance(d, IntImm))
        if len(extents) < len(self.shape):
            raise ValueError(f"concrete_shape: not every dimension of {self!r} is a constant")
        return extents


@node("relay.TupleType")
class TupleType(Type):
    """Tuple type."""

    fields: tuple[Type, ...]

    def __post_init__(self) -> None:
        """Convert the fields to a tuple."""
        set_frozen_fields(self, fields=tuple(self.fields))


@node("relay.TypeVar")
class TypeVar(Type):
    """Type parameter, compared by identity."""

    name_hint: str
    kind: TypeKind = TypeKind.TYPE

    __hash__ = object.__hash__

    def __call__(self, *args: Type) -> TypeCall:
        """Apply the type to arguments: `self[args]`."""
        return TypeCall(self, args)


@node("relay.GlobalTypeVar")
class GlobalTypeVar(Type):
    """Name of an algebraic data type."""

    name_hint: str
    kind: TypeKind = TypeKind.ADT_HANDLE

    def __call__(self, *args: Type) -> TypeCall:
        """Apply the type to arguments: `self[args]`."""
        return TypeCall(self, args)


@node("relay.FuncType")
class FuncType(Type):
    """Function type, possibly polymorphic."""

    arg_types: tuple[Type, ...]
    ret_type: Type
    type_params: tuple[TypeVar, ...] = binding(default=())
    type_constraints: tuple[TypeRelation, ...] = ()
    """Relations between the types, which are compared, printed and saved. Type inference refuses
    functions of such types: relations belong to operators.
    """

    def __post_init__(self) -> None:
        """Convert the parameters to tuples."""
        params, held = self.type_params or (), self.type_constraints or ()
        set_frozen_fields(self, arg_types=tuple(self.arg_types), type_params=tuple(params))
        set_frozen_fields(self, type_constraints=tuple(held))


@node("relay.TypeRelation")
class TypeRelation(Type):
    """Type relation (TVM's name): a function that determines the output types from the first
    `num_inputs` ones. None stands for a relation that is not named.
    """

    func: EnvFunc | None
    args: tuple[Type, ...]
    num_inputs: int
    attrs: Attrs | None = None

    def __post_init__(self) -> None:
        """Convert the types to a tuple and validate `num_inputs`. Raises ValueError for more inputs
        than types.
        """
        set_frozen_fields(self, args=tuple(self.args))
        if not 0 <= self.num_inputs <= len(self.args):
            count = f"{self.num_inputs} inputs of {len(self.args)} types"
            raise ValueError(f"type relation: {count}")


@node("relay.TypeCall")
class TypeCall(Type):
    """Algebraic data type applied to type arguments: `List[Tensor[(), float32]]`."""

    func: Type
    args: tuple[Type, ...]

    def __post_init__(self) -> None:
        """Convert the arguments to a tuple."""
        set_frozen_fields(self, args=tuple(self.args))


@node("relay.RefType")
class RelayRefType(Type):
    """Type of a mutable reference."""

    value: Type


@node("relay.IncompleteType")
class IncompleteType(Type):
    """Type hole that inference fills; prints as `_`."""

    kind: TypeKind = TypeKind.TYPE

    __hash__ = object.__hash__


@node("relay.StorageType")
class StorageType(Type):
    """Type of a storage allocated by `memory.alloc_storage`."""


def tensor_type(shape: Sequence[ExprLike], dtype: str = "float32") -> TensorType:
    """Build a TensorType from ints and expressions."""
    return TensorType(tuple(convert(d, "int64") for d in shape), dtype)


def _is_equal_type(a: Type, b: Type, renamed: dict[Type, Type]) -> bool:
    """Return whether two types are equal under the renaming of `a`'s type parameters to `b`'s."""
    if type(a) is not type(b):
        return False
    match a, b:
        case TensorType(), TensorType():
            return a.dtype == b.dtype and _are_equal_shapes(a.shape, b.shape)
        case FuncType(), FuncType():
            if len(a.type_params) != len(b.type_params):
                return False
            params = list(zip(a.type_params, b.type_params, strict=True))
            if any(x.kind != y.kind for x, y in params):
                return False
            inner = renamed | {x: y for x, y in params}  # noqa: C416 - as types, not variables
            xs, ys = ((*t.arg_types, t.ret_type, *t.type_constraints) for t in (a, b))
            return _are_equal_types(xs, ys, inner)
        case TypeRelation(), TypeRelation():
            is_same = a.func is b.func or (a.func and b.func and a.func.name == b.func.name)
            return (
                bool(is_same)
                and a.num_inputs == b.num_inputs
                and (a.attrs is b.attrs or repr(a.attrs) == repr(b.attrs))
                and _are_equal_types(a.args, b.args, renamed)
            )
        case (TupleType(fields=xs), TupleType(fields=ys)):
            return _are_equal_types(xs, ys, renamed)
        case TypeCall(), TypeCall():
            return _are_equal_types((a.func, *a.args), (b.func, *b.args), renamed)
        case RelayRefType(), RelayRefType():
            return a.value is b.value or _is_equal_type(a.value, b.value, renamed)
        case GlobalTypeVar(), GlobalTypeVar():
            return (a.name_hint, a.kind) == (b.name_hint, b.kind)
        case _:
            # Type variables and holes equal themselves alone; of StorageType one is as good as
            # another.
            return renamed.get(a, a) is b or isinstance(a, StorageType)


def _are_equal_types(xs: tuple[Type, ...], ys: tuple[Type, ...], renamed: dict[Type, Type]) -> bool:
    return len(xs) == len(ys) and all(
        # One object is not equal to itself where its type parameters are renamed to others.
        _is_equal_type(x, y, renamed)
        for x, y in zip(xs, ys, strict=True)
        if x is not y or renamed
    )


def _are_equal_shapes(xs: tuple[PrimExpr, ...], ys: tuple[PrimExpr, ...]) -> bool:
    if len(xs) != len(ys):
        return False
    return all(
        x is y or _is_identical_expr(x, y) or _is_provably_equal(x, y)
        for x, y in zip(xs, ys, strict=True)
    )


def _is_identical_expr(x: PrimExpr, y: PrimExpr) -> bool:
    """Return whether two expressions are structurally identical."""
    if type(x) is not type(y) or isinstance(x, Var) or literal_fields(x) != literal_fields(y):
        return False
    inside = children(x), children(y)
    return len(inside[0]) == len(inside[1]) and all(
        a is b or _is_identical_expr(a, b) for a, b in zip(*inside, strict=True)
    )


def _is_provably_equal(x: PrimExpr, y: PrimExpr) -> bool:
    if Type.prover is None or (isinstance(x, _ATOMIC_DIMS) and isinstance(y, _ATOMIC_DIMS)):
        return False
    # Two unknown dimensions are equal only as `?` and `?`, which `_is_identical_expr` has compared.
    is_unknown = has_unknown_dim(x) or has_unknown_dim(y)
    return not is_unknown and Type.prover(x, y)


def _hash_type(kind: Type) -> int:
    """Return a hash consistent with type equality, independent of type parameter names."""
    match kind:
        case TensorType(shape=shape, dtype=dtype):
            # Dimensions that are no constants may be equal though written in different ways.
            return hash((dtype, *(d.value if isinstance(d, IntImm) else None for d in shape)))
        case TupleType(fields=fields):
            return hash(("tuple", *fields))
        case FuncType():
            # Only what no renaming of type parameters changes: counts, not the types.
            return hash(("fn", len(kind.arg_types), len(kind.type_params)))
        case TypeCall(func=func, args=args):
            return hash((func, *args))
        case RelayRefType(value=value):
            return hash(("ref", value))
        case TypeRelation():
            return hash(("relation", len(kind.args), kind.num_inputs))
        case GlobalTypeVar(name_hint=name):
            return hash(name)
        case StorageType():
            return hash("Storage")
        case _:
            return object.__hash__(kind)


def substitute_unknown_dims(kind: Type, symbols: Iterator[PrimExpr]) -> Type:
    """Replace the unknown dimensions of a type with symbols, from left to right."""
    if isinstance(kind, TupleType):
        return TupleType(tuple(substitute_unknown_dims(f, symbols) for f in kind.fields))
    assert isinstance(kind, TensorType)
    # The symbols are in the order of the `?` in the type, through its fields.
    dims = tuple(next(symbols) if isinstance(d, AnyDim) else d for d in kind.shape)
    return TensorType(dims, kind.dtype)
