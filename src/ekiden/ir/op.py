"""The operator registry.

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
from ekiden.ir.attrs import Attrs, NamedDimsAttrs, own_attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.extensions import note_extension
from ekiden.ir.node import NODE_TYPES, ignored, node
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.span import Span
from ekiden.ir.table import Table
from ekiden.ir.text import type_text
from ekiden.ir.type import TensorType, TupleType, Type, tensor_type, with_dims
from ekiden.runtime import register_func
from ekiden.runtime.errors import CompileError, EkidenError, RunError, TypeInferenceError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import difflib
else:  # for messages
    difflib = LazyModule("difflib")

_V = TypeVar("_V")

Array = npt.NDArray[Any]
"""A NumPy array; its dtype is known at run time alone."""


class Precision(Enum):
    """What mixed precision does with an operator."""

    ALWAYS = "takes the smaller type, and is worth casts for it"
    FOLLOW = "takes it where its inputs have it"
    NEVER = "stays in the larger one whatever flows in"
    UNKNOWN = "nobody has said"


class Memory(Enum):
    """What an operator of explicit memory does with the memory of what it gets."""

    KEEPS = "its result may hold it"
    READS = "its result lies elsewhere"
    VIEWS = "its result lies there"


class Linear(Enum):
    """What an operator with a second argument makes of its first."""

    NO = "nothing linear"
    SCALES = "data * value"
    SHIFTS = "data + value"
    SHIFTS_BACK = "data - value"


class Transposes(Enum):
    """How a transposition of its first argument moves to the result of an operator, if it can."""

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


class Borders(Enum):
    """Which constant borders of its first argument an operator with a padding makes itself. Zeros
    of a quantised argument are its zero point.
    """

    NO = "none"
    ZEROS = "zeros"
    LOWEST = "the least value"
    COUNTED = "zeros, where it counts them"


class OpPattern(IntEnum):
    """How an operator may fuse (TVM's TOpPattern)."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8


Relation = Callable[[Sequence[Type], "Attrs | None"], Type]
"""(argument types, attributes) -> result type, computing on symbolic dimensions.

Raises TypeInferenceError that says what was expected and what came. Arguments are complete types.
"""
Reference = Callable[..., "Array | tuple[Array, ...]"]
"""(attrs, *arrays) -> array or tuple of arrays: what the operator means, in NumPy."""
Solve = Callable[["Sequence[Type | None]", "Attrs | None"], "Sequence[Type | None]"]
"""(argument types, None where unknown, attributes) -> argument types, as far as they follow."""
Lowering = Callable[..., "Sequence[object]"]
"""(attrs, te inputs, result type) -> te output tensors.

Typed loosely here: te stands on a higher floor.
"""


@node("ir.Op")
class Op(RelayExpr):
    """An operator, as an expression that a Call can call. Get one with `get`."""

    name: str
    span: Span | None = ignored(default=None)

    @property
    def definition(self) -> OpDef:
        """Return the declaration of this operator.

        Raises KeyError for one of loop programs, which `ekiden.ir.intrinsic.INTRINSICS` declares.
        """
        return OPS[self.name]

    @staticmethod
    def get(op_name: str) -> Op:
        """Return the operator of a name, of Relay or ("tir.exp") of loop programs. Raises
        KeyError.
        """
        return get(op_name)

    @staticmethod
    def list_op_names() -> list[str]:
        """Return the names of all operators."""
        return sorted(OP_NODES)

    @property
    def num_inputs(self) -> int:
        """Return how many arguments a call has; of a tuple, one."""
        return len(self.definition.arguments)

    @property
    def description(self) -> str:
        """Return what the operator does, in a sentence.

        Where its declaration does not say so, all are loaded, which describes them by the functions
        that call them.
        """
        if not self.definition.description:
            load_deferred()
        return self.definition.description

    def set_num_inputs(self, n: int) -> None:
        """Set how many arguments calls have, for those that `add_argument` does not name."""
        named = self.definition.arguments[:n]
        _change(self.name, arguments=(*named, *(f"argument_{i}" for i in range(len(named), n))))

    def add_argument(self, name: str, type: str, description: str) -> None:
        """Name an argument: the first that has none. (The type's name and the description are of
        TVM's face; what an argument may be is said by the relation.)"""
        named = list(self.definition.arguments)
        unnamed = [i for i, argument in enumerate(named) if argument == f"argument_{i}"]
        at = unnamed[0] if unnamed else len(named)
        named[at : at + 1] = [name]
        _change(self.name, arguments=tuple(named))

    def add_type_rel(self, rel_name: str, type_rel_func: Relation | None = None) -> None:
        """Give the operator its type relation: a function (argument types, attributes) -> type of
        the result, or one of RELATIONS by its name. Raises KeyError for a name that is not there.
        """
        if type_rel_func is None and rel_name not in RELATIONS:
            raise KeyError(f"no type relation {rel_name!r}; there are {', '.join(RELATIONS)}")
        _change(self.name, relation=_own_relation(type_rel_func or RELATIONS[rel_name]))

    def set_attrs_type_key(self, key: str) -> None:
        """Set the class of the attributes of calls, by its type key; "DictAttrs": they have none.

        Raises KeyError for a key that no class has.
        """
        if key != "DictAttrs" and key not in NODE_TYPES:
            raise KeyError(f"no attribute class {key!r}")
        _change(self.name, attrs=None if key == "DictAttrs" else NODE_TYPES[key])

    def set_support_level(self, level: int) -> None:
        """Note who uses the operator, from 1, everybody, to 10 (TVM's)."""
        set_op_attr(self.name, "TSupportLevel", level)

    @property
    def support_level(self) -> int:
        """Return what `set_support_level` was told, else 10."""
        level = OP_ATTRS.get("TSupportLevel", {}).get(self.name, 10)
        assert isinstance(level, int)
        return level

    def get_attr(self, attr_name: str) -> object:
        """Return an attribute given by `register_op_attr`, or TOpPattern; None if there is none."""
        # Columns of the operator table, under TVM's names.
        if attr_name == "TOpPattern" and self.name in OPS:
            return self.definition.pattern
        if attr_name == "TOpIsStateful" and self.name in OPS:
            return self.definition.stateful
        return OP_ATTRS.get(attr_name, {}).get(self.name)

    def set_attr(self, attr_name: str, value: object) -> None:
        """Give the operator an attribute, in place of one of that name."""
        register_op_attr(self.name, attr_name, value)

    def has_attr(self, attr_name: str) -> bool:
        """Return whether `get_attr` finds something."""
        return self.get_attr(attr_name) is not None

    def reset_attr(self, attr_name: str) -> None:
        """Take away what `set_attr` or `register_op_attr` gave, if anything."""
        OP_ATTRS.get(attr_name, {}).pop(self.name, None)


class ShapeCheck(NamedTuple):
    """A condition that must hold at run time, what is wrong otherwise, and the integers that are
    then shown, by name."""

    condition: PrimExpr
    text: str
    shown: Mapping[str, PrimExpr] = MappingProxyType({})


Shapes = Sequence[Sequence[PrimExpr]]
Macs = Callable[[Any, Shapes, Sequence[PrimExpr]], PrimExpr]
"""(attributes, shapes of the arguments, shape of the result) -> how often a call multiplies and
adds. Tuples give the shapes of their fields; of a result that is one, the first."""
BoxesOf = Callable[[Any, Sequence[PrimExpr]], Sequence[Sequence[tuple[PrimExpr, int, PrimExpr]]]]
"""(attributes, shape of the argument) -> for each result, what it takes of each axis: first index,
stride, extent."""
LowestOf = Callable[[Any], float]
"""(attributes) -> the number that no element of a result of floats is below."""
DimsOf = Callable[..., "tuple[Sequence[PrimExpr], Sequence[ShapeCheck]]"]
"""(attributes, argument buffers) -> the unknown dimensions of the result, in order, as int64
expressions on the shapes and the elements of the arguments; then what must hold of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """One row of the operator table.

    name: as in Relay text ("nn.conv2d").
    arguments: names of the inputs. `variadic`: the one input is a tuple (concatenate). `optional`:
        how many of the last ones may be left out.
    attrs: the attribute class, or None.
    solve: what a program may leave out of the argument types, if anything.
    relation / reference / lower: see the types above; lower is None for operators without a kernel
    (vm.*, memory.*). pattern: how it fuses. reshape_only: the result is the first input's bytes
    under another shape (no kernel runs). fence: it is its input, with which nothing behind it is
    fused; FuseOps leaves it out. precision, memory: see the classes above. layout: the
    attribute with the layout of the first input, of an operator that takes it with channels first
    or last, all else as it is. macs: of products and convolutions. dims / padded: where the shape
    of the result depends on data, how the unknown dimensions follow from the arguments (the
    attributes then have a field `symbols` for them), or the operator that gives the largest
    result there can be, with a vector of the true dimensions as its last field: one for all
    unknown dimensions, or one for each. host: the registered function that computes it at run time
    where it is no kernel. hands_on: which arguments of that function may be on any device, as it
    does not look into their tensors; they and the result, unless that is elsewhere (`memory`), are
    in one place. fields: how many fields the result has where it is a tuple. refuses:
    whether numbers among its data (an index, a length) may be out of range, which is then an error
    that names them. kernels: the families of kernels that may compute it, by name
    (kernels/families.py); they say how its weights lie, what may follow, where results may lie.
    linear, turns, borders: see the classes above. commutes: whether two arguments may change
    places. channels: where output channels lie, (axis of the result, axis of the weight) in the
    default layouts. fast: the operator that is faster and less exact. costly: whether an element
    takes longer to compute than to read. shape_only: of the arguments the shapes are read, not the
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
    relation: Relation
    reference: Reference | None = None
    lower: Lowering | None = None
    solve: Solve | None = None
    pattern: OpPattern = OpPattern.OPAQUE
    variadic: bool = False
    optional: int = 0
    stateful: bool = False
    reshape_only: bool = False
    fence: bool = False
    precision: Precision = Precision.UNKNOWN
    memory: Memory = Memory.KEEPS
    layout: str = ""
    macs: Macs | None = None
    dims: DimsOf | None = None
    padded: str | None = None
    host: str = ""
    hands_on: tuple[int, ...] = ()
    refuses: bool = False
    fields: Callable[[Attrs | None], int] | None = None
    kernels: tuple[str, ...] = ()
    linear: Linear = Linear.NO
    turns: Transposes = Transposes.NO
    borders: Borders = Borders.NO
    commutes: bool = False
    channels: tuple[int, int] | None = None
    fast: str = ""
    costly: bool = False
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
"""What users attach to operators: attribute name -> operator name -> value."""
OPS: Table[str, OpDef] = Table()
OP_NODES: Table[str, Op] = Table()
"""Every operator by its name: those of Relay, and "tir.exp" and the like of loop programs."""


def same_type(types: Sequence[Type], attrs: Attrs | None) -> Type:
    """Return the type of the one argument: the relation of operators whose result is like it.

    Inference goes both ways through them.
    """
    return types[0]


def register_op(definition: OpDef) -> OpDef:
    """Add a row to the operator table. Raises ValueError when the name is taken."""
    if OPS.has(definition.name):
        raise ValueError(f"operator {definition.name!r} is declared twice")
    note_extension(definition.relation)
    register_name(definition.name)
    OPS[definition.name] = definition
    return definition


RELATIONS: dict[str, Relation] = {}
"""The type relations that a program may give its operators by name."""
_OWN: set[str] = set()
"""Operators that a program has declared, and may go on to describe."""


def declare_own(op_name: str, describe: str = "") -> Op:
    """Declare an operator of a program, and return it.

    The methods of what this returns and `register_op_attr` describe it. Raises CompileError when
    the name is taken.
    """
    if op_name in OP_NODES:
        raise CompileError(f"Operator {op_name} is registered before")

    def undefined(types: Sequence[Type], attrs: Attrs | None) -> Type:
        raise TypeInferenceError(f"{op_name}: no type relation; give it one by add_type_rel")

    def uncomputed(attrs: Attrs | None, inputs: Sequence[object], out: Type) -> Sequence[object]:
        raise CompileError(f"{op_name}: no computation; give it one by register_compute")

    _OWN.add(op_name)
    note_extension(op_name)
    row = OpDef(
        name=op_name,
        arguments=(),
        relation=undefined,
        lower=uncomputed,
        description=describe,
    )
    register_op(row)
    return OP_NODES[op_name]


def _change(op_name: str, **fields: Any) -> None:  # noqa: ANN401 - the fields of OpDef
    """Put another row in the place of a program's own. Raises ValueError for Ekiden's."""
    if op_name not in _OWN:
        raise ValueError(f"operator {op_name!r} is Ekiden's: its declaration stands")
    OPS[op_name] = replace(OPS[op_name], **fields)


def _own_relation(own: Relation) -> Relation:
    """Return the relation of a program's own operator, which knows nothing of named dimensions."""

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the result's type, with the dimensions that a call names in the places of unknown
        ones.
        """
        result = own(types, own_attrs(attrs))
        named = isinstance(attrs, NamedDimsAttrs) and result is not None
        return with_dims(result, iter(attrs.symbols)) if named else result  # type: ignore[union-attr]

    return relation


def set_dims(op_name: str, dims: DimsOf) -> None:
    """Set how the unknown dimensions of a program's own operator follow from its arguments.

    Raises ValueError for one of Ekiden's.
    """
    _change(op_name, dims=dims)


def set_pattern(op_name: str, pattern: OpPattern) -> None:
    """Set how a program's own operator fuses. Raises ValueError for one of Ekiden's."""
    _change(op_name, pattern=OpPattern(pattern))


def register_reference(
    op_name: str, reference: Reference | None = None, level: int = 10
) -> Callable[[Reference], Reference] | Reference:
    """Say what a program's own operator means, in NumPy: what the interpreter runs, constants are
    folded by, and compiled results are compared with. Without a function, a decorator.

    Args:
        op_name: one that `register` declared.
        reference: (attributes, *arrays) -> an array, or a tuple of arrays; a tuple argument is a
            tuple of arrays.
        level: TVM's; the latest function counts.

    Raises:
        ValueError: the operator is Ekiden's. RunError, where it is computed: the result is not of
            the dtype, shape and number that the type relation says.
    """

    def register(function: Reference) -> Reference:
        """Set the reference, and give it back."""
        if not callable(function):
            raise CompileError(f"{op_name}: expected a function as its reference, got {function!r}")
        note_extension(function)
        _change(op_name, reference=_own_reference(op_name, function))
        return function

    return register if reference is None else register(reference)


def _own_reference(op_name: str, function: Reference) -> Reference:
    """Return a program's reference with its results held against the operator's relation."""

    def reference(attrs: Attrs | None, *arrays: object) -> Array | tuple[Array, ...]:
        """Return what the program's function gives. Raises RunError where it is of another type."""
        try:
            result = function(own_attrs(attrs), *arrays)
        # Errors that name their cause already, as those of nested operators do.
        except EkidenError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise RunError(f"{op_name}: its reference raised {reason}") from error
        kind = OPS[op_name].relation([_type_of(a) for a in arrays], attrs)
        expected = kind.fields if isinstance(kind, TupleType) else (kind,)
        results = result if isinstance(result, (tuple, list)) else (result,)
        result_types = [_type_of(p) for p in results]
        if isinstance(result, (tuple, list)) != isinstance(kind, TupleType) or not (
            len(expected) == len(result_types) and all(map(_may_be, expected, result_types))
        ):
            promised, actual = type_text(kind), ", ".join(map(type_text, result_types))
            raise RunError(
                f"{op_name}: its reference gave {actual}, its type relation says {promised}"
            )
        return result

    return reference


def _type_of(value: object) -> Type:
    """Return the type of an array, or of a tuple of arrays."""
    if isinstance(value, (tuple, list)):
        return TupleType(tuple(map(_type_of, value)))
    shape, dtype = getattr(value, "shape", ()), getattr(value, "dtype", type(value).__name__)
    return tensor_type(shape, str(dtype))


def _may_be(expected: Type, actual: Type) -> bool:
    """Return whether a tensor may be of a type whose sizes may be unknown."""
    if not isinstance(expected, TensorType) or not isinstance(actual, TensorType):
        return False
    pairs = zip(expected.shape, actual.shape, strict=False)
    # Sizes that are no numbers on either side are decided elsewhere, and pass here.
    same = all(w.value == g.value for w, g in pairs
               if isinstance(w, IntImm) and isinstance(g, IntImm))  # fmt: skip
    return expected.dtype == actual.dtype and len(expected.shape) == len(actual.shape) and same


def set_stateful(op_name: str, stateful: bool) -> None:
    """Set whether calls of a program's own operator must all be made.

    Raises ValueError for one of Ekiden's.
    """
    _change(op_name, stateful=stateful)


def register_name(name: str) -> Op:
    """Let an operator that is declared elsewhere be got by its name, and have attributes. Raises
    ValueError when the name is taken.
    """
    if OP_NODES.has(name):
        raise ValueError(f"operator {name!r} is declared twice")
    return OP_NODES.setdefault(name, Op(name))


def get(name: str) -> Op:
    """Return the operator of that name. Raises KeyError with the nearest names."""
    if name not in OP_NODES:
        raise KeyError(f"no operator {name!r}{nearest(name)}")
    return OP_NODES[name]


register_func("ir.GetOp", get, override=True)


def nearest(name: str) -> str:
    """Return `; did you mean ...?` for a name that no operator has; empty if none is like it."""
    last = name.rpartition(".")[2]
    # The same name under another prefix first ("conv2d" for "nn.conv2d"), then a misspelling.
    near = sorted(n for n in OP_NODES if n.rpartition(".")[2] == last)
    near = near or difflib.get_close_matches(name, OP_NODES, n=2, cutoff=0.85)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def register_op_attr(
    op_name: str, attr_key: str, value: object = None, level: int = 10
) -> Callable[[_V], _V] | object:
    """Attach a value to an operator; without one, a decorator (TVM's ir.register_op_attr).

    `level` is TVM's: the latest value counts. An unknown name that begins with "tir." is that of a
    new intrinsic. Raises KeyError for another one that no operator has.
    """

    def register(attached: _V) -> _V:
        note_extension(attached)
        return set_op_attr(op_name, attr_key, attached)

    return register if value is None else register(value)


def registrar(
    attr_key: str, what: str, changed: Callable[[str], None] | None = None
) -> Callable[..., Callable[..., object]]:
    """Return a function `(op_name, function=None, level=10)` that gives operators one attribute.

    Without a function, it is a decorator. `changed` is told the name of each operator that has a
    new one.
    """

    def register(
        op_name: str, function: Callable[..., object] | None = None, level: int = 10
    ) -> Callable[..., object]:
        """Register a function for an operator. Its documentation is `what`, set below."""

        def one(attached: Callable[..., object]) -> Callable[..., object]:
            """Attaches a function, and gives it back."""
            register_op_attr(op_name, attr_key, attached, level)
            if changed is not None:
                changed(op_name)
            return attached

        return one if function is None else one(function)

    register.__doc__ = f"{what} Without a function, a decorator. Raises KeyError for no operator."
    return register


def set_op_attr(op_name: str, attr_key: str, value: _V) -> _V:
    """Attach what says nothing of whose it is, such as a number, beside a function that does: only
    that tells whether a program has extended the compiler. Raises KeyError as `register_op_attr`.
    """
    if op_name.startswith("tir."):  # anybody's intrinsics, of which no table has all
        OP_NODES.setdefault(op_name, Op(op_name))
    get(op_name)
    OP_ATTRS.setdefault(attr_key, {})[op_name] = value
    return value
