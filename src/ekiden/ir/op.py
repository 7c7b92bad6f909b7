"""Operator registry.

Each operator is declared once, and everything else reads the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from numpy import typing as npt  # the package first: another thread may be importing it

from ekiden._lazy import LazyModule, load_deferred
from ekiden.ir.attrs import Attrs, NamedDimsAttrs, unwrap_user_attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.expr_text import format_type
from ekiden.ir.lazy_registry import LazyRegistry
from ekiden.ir.node import NODE_TYPES, ignored_field, node
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.span import Span
from ekiden.ir.type import TensorType, TupleType, Type, substitute_unknown_dims, tensor_type
from ekiden.ir.user_extensions import record_extension
from ekiden.runtime import register_func
from ekiden.runtime.errors import CompileError, EkidenError, RunError, TypeInferenceError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import difflib
else:  # for messages
    difflib = LazyModule("difflib")

_V = TypeVar("_V")

Array = npt.NDArray[Any]
"""NumPy array whose dtype is known only at run time."""


class PrecisionPolicy(Enum):
    """Mixed-precision policy of an operator."""

    ALWAYS = "takes the smaller type, and is worth casts for it"
    FOLLOW = "takes it where its inputs have it"
    NEVER = "stays in the larger one whatever flows in"
    UNKNOWN = "nobody has said"


class MemoryAliasing(Enum):
    """Aliasing between the arguments and the result of an explicit memory operator."""

    MAY_ALIAS = "its result may hold it"
    NO_ALIAS = "its result lies elsewhere"
    MUST_ALIAS = "its result lies there"


class LinearForm(Enum):
    """Linear form of a binary operator in its first operand: scaling or shifting."""

    NO = "nothing linear"
    SCALES = "data * value"
    SHIFTS = "data + value"
    SHIFTS_BACK = "data - value"


class TransposeRule(Enum):
    """Rule that moves a transpose from an operator's first argument to its result."""

    NO = "not, unless it broadcasts"
    AXIS = "its one axis is another"
    AXES = "the axes it reduces are others"
    SHAPE = "the elements go on in another shape"
    WIDTHS = "its widths stand in another order"
    FIELDS = "those of all fields move"
    PARTS = "it moves to each part, which is cut along another axis"
    BOX = "the axes it cuts are others"
    EXTENTS = "its shape is written in another order"
    ORDER = "both are one"


class PaddingAbsorption(Enum):
    """Constant padding of the first argument that the operator's own padding attribute can absorb.
    Zeros of a quantised argument are its zero point.
    """

    NO = "none"
    ZEROS = "zeros"
    LOWEST = "the least value"
    COUNTED = "zeros, where it counts them"


class OpPattern(IntEnum):
    """Fusion pattern of an operator (TVM's TOpPattern)."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8


TypeRelationFunc = Callable[[Sequence[Type], "Attrs | None"], Type]
"""(argument types, attributes) -> result type, computing on symbolic dimensions.

Raises TypeInferenceError that says what was expected and what came. Arguments are complete types.
"""
ReferenceFunc = Callable[..., "Array | tuple[Array, ...]"]
"""Function (attrs, *arrays) -> array or tuple of arrays: the operator's NumPy reference."""
ArgTypeSolver = Callable[["Sequence[Type | None]", "Attrs | None"], "Sequence[Type | None]"]
"""Function (argument types, None where unknown; attrs) -> argument types, as far as they can be
inferred.
"""
Lowering = Callable[..., "Sequence[object]"]
"""(attrs, te inputs, result type) -> te output tensors.

Typed loosely here: te stands on a higher floor.
"""


@node("ir.Op")
class Op(RelayExpr):
    """Operator as a callable expression. Get one with `get`."""

    name: str
    span: Span | None = ignored_field(default=None)

    @property
    def definition(self) -> OpDef:
        """Return the operator's definition.

        Raises KeyError for one of loop programs, which `ekiden.ir.intrinsic.INTRINSICS` declares.
        """
        return OPS[self.name]

    @staticmethod
    def get(op_name: str) -> Op:
        """Look up an operator by name, Relay's or TIR's ("tir.exp"). Raises KeyError."""
        return get(op_name)

    @staticmethod
    def list_op_names() -> list[str]:
        """Return the names of all operators."""
        return sorted(OP_NODES)

    @property
    def num_inputs(self) -> int:
        """Return the number of arguments of a call; a tuple counts as one."""
        return len(self.definition.arguments)

    @property
    def description(self) -> str:
        """Return a one-sentence description of the operator.

        Where its declaration does not say so, all are loaded, which describes them by the functions
        that call them.
        """
        if not self.definition.description:
            # Descriptions are docstrings, which are attached when all operators are loaded.
            load_deferred()
        return self.definition.description

    def set_num_inputs(self, n: int) -> None:
        """Set the number of arguments, including those that `add_argument` does not name."""
        named = self.definition.arguments[:n]
        _replace_definition(
            self.name, arguments=(*named, *(f"argument_{i}" for i in range(len(named), n)))
        )

    def add_argument(self, name: str, type: str, description: str) -> None:
        """Name the first unnamed argument. (TVM's type name and description are ignored; the
        relation checks arguments.)
        """
        named = list(self.definition.arguments)
        unnamed = [i for i, argument in enumerate(named) if argument == f"argument_{i}"]
        # `set_num_inputs` may have made arguments before they are named.
        position = unnamed[0] if unnamed else len(named)
        named[position : position + 1] = [name]
        _replace_definition(self.name, arguments=tuple(named))

    def add_type_rel(self, rel_name: str, type_rel_func: TypeRelationFunc | None = None) -> None:
        """Set the type relation, a function (argument types, attributes) -> result type or the name
        of a predefined one. Raises KeyError for an unknown name.
        """
        if type_rel_func is None and rel_name not in NAMED_TYPE_RELATIONS:
            raise KeyError(
                f"no type relation {rel_name!r}; there are {', '.join(NAMED_TYPE_RELATIONS)}"
            )
        _replace_definition(
            self.name, relation=_wrap_user_relation(type_rel_func or NAMED_TYPE_RELATIONS[rel_name])
        )

    def set_attrs_type_key(self, key: str) -> None:
        """Set the attribute class of calls by its type key; "DictAttrs" means none.

        Raises KeyError for a key that no class has.
        """
        if key != "DictAttrs" and key not in NODE_TYPES:
            raise KeyError(f"no attribute class {key!r}")
        _replace_definition(self.name, attrs=None if key == "DictAttrs" else NODE_TYPES[key])

    def set_support_level(self, level: int) -> None:
        """Set TVM's support level, from 1 (common) to 10 (rare)."""
        set_op_attr(self.name, "TSupportLevel", level)

    @property
    def support_level(self) -> int:
        """Return the support level, 10 by default."""
        level = OP_ATTRS.get("TSupportLevel", {}).get(self.name, 10)
        assert isinstance(level, int)
        return level

    def get_attr(self, attr_name: str) -> object:
        """Return an operator attribute, or None if it is not registered."""
        # Columns of the operator table, under TVM's names.
        # These two are fields of the definition, which passes read; a second copy could disagree
        # with it.
        if attr_name == "TOpPattern" and self.name in OPS:
            return self.definition.pattern
        if attr_name == "TOpIsStateful" and self.name in OPS:
            return self.definition.stateful
        return OP_ATTRS.get(attr_name, {}).get(self.name)

    def set_attr(self, attr_name: str, value: object) -> None:
        """Set an operator attribute, replacing an earlier value."""
        register_op_attr(self.name, attr_name, value)

    def has_attr(self, attr_name: str) -> bool:
        """Return whether the operator attribute is registered."""
        return self.get_attr(attr_name) is not None

    def reset_attr(self, attr_name: str) -> None:
        """Remove an operator attribute if it is registered."""
        OP_ATTRS.get(attr_name, {}).pop(self.name, None)


class ShapeCheck(NamedTuple):
    """Runtime shape check: the condition, the error text, and the integers shown in it by name."""

    condition: PrimExpr
    text: str
    shown: Mapping[str, PrimExpr] = MappingProxyType({})


Shapes = Sequence[Sequence[PrimExpr]]
Macs = Callable[[Any, Shapes, Sequence[PrimExpr]], PrimExpr]
"""Function (attrs, argument shapes, result shape) -> number of multiply-accumulates. Tuples give
the shapes of their fields; of a result that is one, the first.
"""
BoxesOf = Callable[[Any, Sequence[PrimExpr]], Sequence[Sequence[tuple[PrimExpr, int, PrimExpr]]]]
"""Function (attrs, argument shape) -> for each result, the (begin, stride, extent) that it takes
along each axis.
"""
LowestOf = Callable[[Any], float]
"""Function (attrs) -> lower bound of the elements of a floating-point result."""
DimsOf = Callable[..., "tuple[Sequence[PrimExpr], Sequence[ShapeCheck]]"]
"""Function (attrs, argument buffers) -> the result's unknown dimensions as int64 expressions over
the arguments, and the conditions on them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """Operator definition, an entry of the operator registry.

    name: as in Relay text ("nn.conv2d").
    arguments: names of the inputs. `variadic`: the one input is a tuple (concatenate). `optional`:
        how many of the last ones may be left out.
    attrs: the attribute class, or None.
    solve: what a program may leave out of the argument types, if anything.
    relation / reference / lower: see the types above; lower is None for operators without a kernel
    (vm.*, memory.*). pattern: how it fuses. reshape_only: the result is the first input's bytes
    under another shape (no kernel runs). is_fusion_barrier: it is its input, with which nothing
    behind it is fused; FuseOps leaves it out. precision, memory: see the classes above. layout: the
    attribute with the layout of the first input, of an operator that takes it with channels first
    or last, all else as it is. macs: of products and convolutions. dims / padded: where the shape
    of the result depends on data, how the unknown dimensions follow from the arguments (the
    attributes then have a field `symbols` for them), or the operator that gives the largest
    result there can be, with a vector of the true dimensions as its last field: one for all
    unknown dimensions, or one for each. host: the registered function that computes it at run time
    where it is no kernel. forwarded_args: which arguments of that function may be on any device, as
    it does not look into their tensors; they and the result, unless that is elsewhere (`memory`),
    are in one place. fields: how many fields the result has where it is a tuple. refuses: whether
    numbers among its data (an index, a length) may be out of range, which is then an error that
    names them. kernels: the families of kernels that may compute it, by name (kernels/families.py);
    they say how its weights lie, what may follow, where results may lie.
    linear, transpose_rule, padding_absorption: see the classes above. commutes: whether two
    arguments may change places. channels: where output channels lie, (axis of the result, axis of
    the weight) in the default layouts. fast: the operator that is faster and less exact.
    is_expensive: whether an element takes longer to compute than to read. is_extremum: whether
    the result of a reduction is one of the elements, the largest or the smallest. shape_only: of
    the arguments the shapes are read, not the
    elements: the types of the arguments alone say the result. fills: the number that all elements
    of the result are. gradient_of: the operator whose gradient it is, for which argument of that;
    it has no kernel (ExpandOps). quantizes: the operator on real numbers that it is on integers
    with scales and zero points. weight_layouts: layout of the data -> of the weight, where that is
    left to the operator. sizes: which arguments say a shape that is data; where these are
    constants, the function of relay.op of its name without "dyn." takes them for attributes
    (DynamicToStatic). homogeneous: of one tensor, f(x * s) = f(x) * s for s > 0. lowest: the
    number that no element of a result of floats is below (NaN is below none). boxes: which
    box of the one argument each result is, where results are nothing else (SliceInPlace). hint: its
    result is its argument, of any type, and there is no kernel (ExpandOps). expanded: it stands for
    other operators on quantised tensors and has no kernel (qnn.transform.CanonicalizeOps).
    """

    name: str
    arguments: tuple[str, ...]
    attrs: type[Attrs] | None = None
    relation: TypeRelationFunc
    reference: ReferenceFunc | None = None
    lower: Lowering | None = None
    solve: ArgTypeSolver | None = None
    pattern: OpPattern = OpPattern.OPAQUE
    variadic: bool = False
    optional: int = 0
    stateful: bool = False
    reshape_only: bool = False
    is_fusion_barrier: bool = False
    precision: PrecisionPolicy = PrecisionPolicy.UNKNOWN
    memory: MemoryAliasing = MemoryAliasing.MAY_ALIAS
    layout: str = ""
    macs: Macs | None = None
    dims: DimsOf | None = None
    padded: str | None = None
    host: str = ""
    forwarded_args: tuple[int, ...] = ()
    may_fail: bool = False
    fields: Callable[[Attrs | None], int] | None = None
    kernels: tuple[str, ...] = ()
    linear: LinearForm = LinearForm.NO
    transpose_rule: TransposeRule = TransposeRule.NO
    padding_absorption: PaddingAbsorption = PaddingAbsorption.NO
    commutes: bool = False
    channels: tuple[int, int] | None = None
    fast: str = ""
    is_expensive: bool = False
    is_extremum: bool = False
    shape_only: bool = False
    fills: int | None = None
    gradient_of: tuple[str, int] | None = None
    quantizes: str = ""
    weight_layouts: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    homogeneous: bool = False
    lowest: LowestOf | None = None
    boxes: BoxesOf | None = None
    hint: bool = False
    expanded: bool = False
    description: str = ""
    result: str = ""


OP_ATTRS: dict[str, dict[str, object]] = {}
"""User-registered operator attributes: attribute name -> operator name -> value."""
OPS: LazyRegistry[str, OpDef] = LazyRegistry()
OP_NODES: LazyRegistry[str, Op] = LazyRegistry()
"""All operators by name, those of loop programs ("tir.exp") included."""


def identity_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    """Return the argument's type: the Identity relation of elementwise operators.

    Inference goes both ways through them.
    """
    return types[0]


def register_op(definition: OpDef) -> OpDef:
    """Register an operator definition. Raises ValueError when the name is taken."""
    if OPS.has(definition.name):
        raise ValueError(f"operator {definition.name!r} is declared twice")
    # Any function of the row would do: it tells by its module whose operator this is.
    record_extension(definition.relation)
    register_op_name(definition.name)
    OPS[definition.name] = definition
    return definition


NAMED_TYPE_RELATIONS: dict[str, TypeRelationFunc] = {}
"""Predefined type relations that a program may select by name."""
_USER_OPS: set[str] = set()
"""Operators that the program has declared, whose definitions it may still extend."""


def declare_own(op_name: str, describe: str = "") -> Op:
    """Register a user-defined operator and return it.

    The methods of what this returns and `register_op_attr` describe it. Raises CompileError when
    the name is taken.
    """
    if op_name in OP_NODES:
        raise CompileError(f"Operator {op_name} is registered before")

    def missing_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Raise TypeInferenceError: nobody has added a type relation yet."""
        raise TypeInferenceError(f"{op_name}: no type relation; give it one by add_type_rel")

    def missing_compute(
        attrs: Attrs | None, inputs: Sequence[object], out: Type
    ) -> Sequence[object]:
        """Raise CompileError: nobody has registered a computation yet."""
        raise CompileError(f"{op_name}: no computation; give it one by register_compute")

    _USER_OPS.add(op_name)
    record_extension(op_name)
    row = OpDef(
        name=op_name,
        arguments=(),
        relation=missing_relation,
        lower=missing_compute,
        description=describe,
    )
    register_op(row)
    return OP_NODES[op_name]


def _replace_definition(op_name: str, **fields: Any) -> None:  # noqa: ANN401 - the fields of OpDef
    """Replace fields of a user-defined operator's definition. Raises ValueError for Ekiden's."""
    if op_name not in _USER_OPS:
        raise ValueError(f"operator {op_name!r} is Ekiden's: its declaration stands")
    OPS[op_name] = replace(OPS[op_name], **fields)


def _wrap_user_relation(user_relation: TypeRelationFunc) -> TypeRelationFunc:
    """Wrap a user's type relation so that it does not see named dimensions."""

    def relation_with_named_dims(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the result type with the call's named dimensions in place of the unknown ones."""
        result = user_relation(types, unwrap_user_attrs(attrs))
        named = isinstance(attrs, NamedDimsAttrs) and result is not None
        return substitute_unknown_dims(result, iter(attrs.symbols)) if named else result  # type: ignore[union-attr]

    return relation_with_named_dims


def set_dynamic_dims(op_name: str, dims: DimsOf) -> None:
    """Set the function that computes a user-defined operator's unknown result dimensions at run
    time.

    Raises ValueError for one of Ekiden's.
    """
    _replace_definition(op_name, dims=dims)


def set_pattern(op_name: str, pattern: OpPattern) -> None:
    """Set the fusion pattern of a user-defined operator. Raises ValueError for one of Ekiden's."""
    _replace_definition(op_name, pattern=OpPattern(pattern))


def register_reference(
    op_name: str, reference: ReferenceFunc | None = None, level: int = 10
) -> Callable[[ReferenceFunc], ReferenceFunc] | ReferenceFunc:
    """Register the NumPy reference of a user-defined operator, used by the interpreter, constant
    folding and result checks. Without a function, a decorator.

    Args:
        op_name: one that `register` declared.
        reference: (attributes, *arrays) -> an array, or a tuple of arrays; a tuple argument is a
            tuple of arrays.
        level: TVM's; the latest function counts.

    Raises:
        ValueError: the operator is Ekiden's. RunError, where it is computed: the result is not of
            the dtype, shape and number that the type relation says.
    """

    def register(function: ReferenceFunc) -> ReferenceFunc:
        """Register the reference and return it."""
        if not callable(function):
            raise CompileError(f"{op_name}: expected a function as its reference, got {function!r}")
        record_extension(function)
        _replace_definition(op_name, reference=_check_user_reference(op_name, function))
        return function

    return register if reference is None else register(reference)


def _check_user_reference(op_name: str, function: ReferenceFunc) -> ReferenceFunc:
    """Wrap a user's reference so that its results are checked against the type relation."""

    def checked_reference(attrs: Attrs | None, *arrays: object) -> Array | tuple[Array, ...]:
        """Call the user's function and check the types of its results. Raises RunError where it is
        of another type.
        """
        try:
            result = function(unwrap_user_attrs(attrs), *arrays)
        # Errors that name their cause already, as those of nested operators do.
        except EkidenError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise RunError(f"{op_name}: its reference raised {reason}") from error
        # Looked up at the call: the relation may be set after the reference.
        kind = OPS[op_name].relation([_infer_value_type(a) for a in arrays], attrs)
        expected = kind.fields if isinstance(kind, TupleType) else (kind,)
        results = result if isinstance(result, (tuple, list)) else (result,)
        result_types = [_infer_value_type(p) for p in results]
        if isinstance(result, (tuple, list)) != isinstance(kind, TupleType) or not (
            len(expected) == len(result_types)
            and all(map(_is_compatible_type, expected, result_types))
        ):
            promised, actual = format_type(kind), ", ".join(map(format_type, result_types))
            raise RunError(
                f"{op_name}: its reference gave {actual}, its type relation says {promised}"
            )
        return result

    return checked_reference


def _infer_value_type(value: object) -> Type:
    """Return the type of an array or a tuple of arrays."""
    if isinstance(value, (tuple, list)):
        return TupleType(tuple(map(_infer_value_type, value)))
    shape, dtype = getattr(value, "shape", ()), getattr(value, "dtype", type(value).__name__)
    return tensor_type(shape, str(dtype))


def _is_compatible_type(expected: Type, actual: Type) -> bool:
    """Return whether an actual tensor type is compatible with an expected one that may have unknown
    sizes.
    """
    if not isinstance(expected, TensorType) or not isinstance(actual, TensorType):
        return False
    pairs = zip(expected.shape, actual.shape, strict=False)
    # Sizes that are no numbers on either side are decided elsewhere, and pass here.
    same = all(w.value == g.value for w, g in pairs
               if isinstance(w, IntImm) and isinstance(g, IntImm))  # fmt: skip
    return expected.dtype == actual.dtype and len(expected.shape) == len(actual.shape) and same


def set_stateful(op_name: str, stateful: bool) -> None:
    """Set whether calls of a user-defined operator must not be removed or merged.

    Raises ValueError for one of Ekiden's.
    """
    _replace_definition(op_name, stateful=stateful)


def register_op_name(name: str) -> Op:
    """Register an operator's name, so that it can be looked up and have attributes. Raises
    ValueError when the name is taken.
    """
    if OP_NODES.has(name):
        raise ValueError(f"operator {name!r} is declared twice")
    return OP_NODES.setdefault(name, Op(name))


def get(name: str) -> Op:
    """Look up an operator by name. Raises KeyError with the nearest names."""
    if name not in OP_NODES:
        raise KeyError(f"no operator {name!r}{suggest_op_names(name)}")
    return OP_NODES[name]


register_func("ir.GetOp", get, override=True)


def suggest_op_names(name: str) -> str:
    """Return `; did you mean ...?` with similar operator names, or "" if there are none."""
    last = name.rpartition(".")[2]
    # The same name under another prefix first ("conv2d" for "nn.conv2d"), then a misspelling.
    near = sorted(n for n in OP_NODES if n.rpartition(".")[2] == last)
    # 0.85 keeps the suggestion to misspellings.
    near = near or difflib.get_close_matches(name, OP_NODES, n=2, cutoff=0.85)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def register_op_attr(
    op_name: str, attr_key: str, value: object = None, level: int = 10
) -> Callable[[_V], _V] | object:
    """Register an operator attribute, or return a decorator if no value is given (TVM's
    ir.register_op_attr).

    `level` is TVM's: the latest value counts. An unknown name that begins with "tir." is that of a
    new intrinsic. Raises KeyError for another one that no operator has.
    """

    def register(attached: _V) -> _V:
        """Set the attribute and record it as an extension."""
        record_extension(attached)
        return set_op_attr(op_name, attr_key, attached)

    return register if value is None else register(value)


def make_attr_registrar(
    attr_key: str, what: str, changed: Callable[[str], None] | None = None
) -> Callable[..., Callable[..., object]]:
    """Return a registration function `(op_name, function=None, level=10)` for one operator
    attribute.

    Without a function, it is a decorator. `changed` is told the name of each operator that has a
    new one.
    """

    def register(
        op_name: str, function: Callable[..., object] | None = None, level: int = 10
    ) -> Callable[..., object]:
        """Register a function as the operator's attribute. Its documentation is `what`,
        set below.
        """

        def attach_function(attached: Callable[..., object]) -> Callable[..., object]:
            """Attach the function to the operator and return it."""
            register_op_attr(op_name, attr_key, attached, level)
            if changed is not None:
                changed(op_name)
            return attached

        return attach_function if function is None else attach_function(function)

    register.__doc__ = f"{what} Without a function, a decorator. Raises KeyError for no operator."
    return register


def set_op_attr(op_name: str, attr_key: str, value: _V) -> _V:
    """Set an operator attribute without recording a user extension, for plain values such as
    numbers.
    """
    if op_name.startswith("tir."):  # anybody's intrinsics, of which no table has all
        OP_NODES.setdefault(op_name, Op(op_name))
    # Raises for a name that is no operator.
    get(op_name)
    OP_ATTRS.setdefault(attr_key, {})[op_name] = value
    return value
