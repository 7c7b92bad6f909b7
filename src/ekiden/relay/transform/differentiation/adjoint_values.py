"""Conversion between plain values and lifted ones (tensors paired with adjoint cells) for
reverse-mode differentiation.

    LIFT       Tree[A]  -> Tree_grad[A']      every float tensor gets an empty cell
    PLAIN      Tree'    -> Tree               cells are left out
    GRADIENTS  Tree'    -> Tree               what the cells hold in place of their tensors

Tensors and tuples are converted in place; for each data type there is one recursive function, which
takes a function for each of its type parameters:

    def @lift_List[A, B](%f: fn (A) -> B, %x: List[A]) -> List[B] {
      match (%x) { Cons(%h, %t) => Cons(%f(%h), @lift_List(%f, %t)), Nil => Nil } }
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.expr_text import format_type
from ekiden.ir.type import FuncType, GlobalTypeVar, TensorType, TupleType, Type, TypeCall, TypeVar
from ekiden.relay import op
from ekiden.relay.expr import (
    Call,
    Clause,
    Constructor,
    Function,
    Match,
    PatternConstructor,
    PatternVar,
    RefRead,
    Tuple,
    TupleGetItem,
    TypeData,
    Var,
)
from ekiden.relay.transform.differentiation.higher_order_gradient import new_adjoint_cell
from ekiden.relay.transform.differentiation.lifted_types import LiftedTypes, is_float_tensor
from ekiden.relay.transform.differentiation.segment_gradient import gradient_or_zeros
from ekiden.relay.transform.language.unique_names import unique_name
from ekiden.relay.visitor import substitute_type, type_post_order
from ekiden.runtime.errors import DifferentiationError


class AdjointConversion(Enum):
    """Kind of conversion; its value is the prefix of the generated functions' names."""

    LIFT = "lift"
    PLAIN = "plain"
    GRADIENTS = "gradients"


TypeVarConverters = Mapping[TypeVar, Var]
"""Conversion functions by type parameter."""


class AdjointConverter:
    """Converter between plain and lifted values of one module, with the conversion functions it
    generates.
    """

    def __init__(self, types: LiftedTypes, used_names: set[str]) -> None:
        self.types = types
        self.used_names = used_names
        self.names: dict[tuple[AdjointConversion, GlobalTypeVar], GlobalVar] = {}
        self.functions: dict[GlobalVar, Function] = {}
        self._tensor_data_types = self._find_tensor_data_types()

    def _find_tensor_data_types(self) -> set[Type]:
        """Return the data types with tensor fields, apart from those of type parameters (a fixed
        point).
        """
        holders: set[Type] = set()
        before = -1
        # Data types may refer to one another: repeat until nothing is added.
        while len(holders) > before:
            before = len(holders)
            for header, data in self.types.definitions.items():
                inputs = (t for c in data.constructors for field in c.inputs
                          for t in type_post_order(field))  # fmt: skip
                if any(isinstance(t, TensorType) or t in holders for t in inputs):
                    holders.add(header)
        return holders

    def convert(
        self,
        how: AdjointConversion,
        value: RelayExpr,
        kind: Type,
        what: str,
        functions: TypeVarConverters,
    ) -> RelayExpr:
        """Convert a value between its plain and lifted form, by the kind of conversion.

        `what` names the value in errors. Raises DifferentiationError for functions and references.
        """
        if self._is_unchanged(how, kind):
            return value
        match kind:
            case TensorType():
                return self._convert_tensor(how, value, kind)
            case TupleType(fields=fields):
                fields_and_types = ((TupleGetItem(value, i), k) for i, k in enumerate(fields))
                return Tuple(
                    tuple(self.convert(how, p, k, what, functions) for p, k in fields_and_types)
                )
            case TypeVar() if kind in functions:
                return Call(functions[kind], (value,))
            case TypeCall(func=GlobalTypeVar() as header, args=args) if self._type_data(header):
                converters = tuple(self._argument_converter(how, a, what, functions) for a in args)
                return Call(self._data_converter(how, header, what), (*converters, value))
        raise DifferentiationError(
            f"gradient: {what} holds a value of type {format_type(kind)}; expected tensors, tuples "
            "and data of these"
        )

    def _is_unchanged(self, how: AdjointConversion, kind: Type) -> bool:
        components = type_post_order(kind)
        # The caller's converters decide about type variables, so nothing is known here.
        if any(isinstance(t, TypeVar) for t in components):
            return False
        if how is AdjointConversion.GRADIENTS:
            return not any(
                isinstance(t, (TensorType, FuncType)) or t in self._tensor_data_types
                for t in components
            )
        return not self.types.is_lifted(kind)

    def _convert_tensor(
        self, how: AdjointConversion, value: RelayExpr, kind: TensorType
    ) -> RelayExpr:
        if how is AdjointConversion.LIFT:
            return Tuple((value, new_adjoint_cell(self.types, kind)))
        if how is AdjointConversion.PLAIN:
            return TupleGetItem(value, 0)
        # Integer tensors carry no adjoint; their gradient is zero by convention.
        if not is_float_tensor(kind):
            return op.zeros_like(value)
        plain = TupleGetItem(value, 0)
        plain.set_checked_type(kind)
        return gradient_or_zeros(self.types, RefRead(TupleGetItem(value, 1)), plain)

    def _type_data(self, header: GlobalTypeVar) -> TypeData | None:
        return self.types.definitions.get(header)

    def _converter_types(self, how: AdjointConversion, kind: Type) -> tuple[Type, Type]:
        """Return (source type, result type) of a conversion."""
        lifted = self.types.lift(kind)
        return (kind, lifted) if how is AdjointConversion.LIFT else (lifted, kind)

    def _argument_converter(
        self, how: AdjointConversion, kind: Type, what: str, functions: TypeVarConverters
    ) -> RelayExpr:
        """Return the conversion function for values of a type argument."""
        if isinstance(kind, TypeVar):
            return functions[kind]
        sources = {v: f.type_annotation.arg_types[0] for v, f in functions.items()
                   if isinstance(f.type_annotation, FuncType)}  # fmt: skip
        results = {v: f.type_annotation.ret_type for v, f in functions.items()
                   if isinstance(f.type_annotation, FuncType)}  # fmt: skip
        source, result = self._converter_types(how, kind)
        param = Var("x", substitute_type(source, sources))
        body = self.convert(how, param, kind, what, functions)
        return Function((param,), body, substitute_type(result, results))

    def _data_converter(
        self, how: AdjointConversion, header: GlobalTypeVar, what: str
    ) -> GlobalVar:
        """Return the global function that converts values of an algebraic data type; generate it on
        first use.
        """
        key = how, header
        if key not in self.names:
            name = unique_name(f"{how.value}_{header.name_hint}", self.used_names)
            # The name comes before the body, which may call it for a recursive type.
            self.names[key] = GlobalVar(name)
            data = self._type_data(header)
            assert data is not None
            self.functions[self.names[key]] = self._build_data_converter(how, data, what)
        return self.names[key]

    def _build_data_converter(self, how: AdjointConversion, data: TypeData, what: str) -> Function:
        old = {v: TypeVar(v.name_hint) for v in data.type_vars}
        new = {v: TypeVar(f"{v.name_hint}_{how.value}") for v in data.type_vars}
        functions = {v: Var("f", FuncType((old[v],), new[v])) for v in data.type_vars}
        source, result = self._converter_types(how, TypeCall(data.header, data.type_vars))
        value = Var("value", substitute_type(source, old))
        clauses = tuple(self._convert_clause(how, c, what, functions) for c in data.constructors)
        return Function(
            (*functions.values(), value), Match(value, clauses), substitute_type(result, new),
            (*old.values(), *new.values()),
        )  # fmt: skip

    def _convert_clause(
        self,
        how: AdjointConversion,
        constructor: Constructor,
        what: str,
        functions: TypeVarConverters,
    ) -> Clause:
        lifted = self.types.lifted_constructor(constructor)
        source, target = (
            (constructor, lifted) if how is AdjointConversion.LIFT else (lifted, constructor)
        )
        fields = tuple(Var(f"a{i}") for i in range(len(constructor.inputs)))
        pairs = zip(fields, constructor.inputs, strict=True)
        what = f"{what}, in a {constructor.name_hint},"
        new = tuple(self.convert(how, v, k, what, functions) for v, k in pairs)
        pattern = PatternConstructor(source, tuple(map(PatternVar, fields)))
        return Clause(pattern, Call(target, new))
