"""TypeFunctor, TypeVisitor and TypeMutator (TVM's names)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ekiden.ir import type as ty
from ekiden.ir.type import Type
from ekiden.relay.expr import TypeData

_ResultT = TypeVar("_ResultT")

TYPE_VISIT_METHODS: dict[type[Type], str] = {
    ty.TypeVar: "visit_type_var",
    ty.IncompleteType: "visit_incomplete_type",
    ty.TensorType: "visit_tensor_type",
    ty.FuncType: "visit_func_type",
    ty.TupleType: "visit_tuple_type",
    ty.RelayRefType: "visit_ref_type",
    ty.GlobalTypeVar: "visit_global_type_var",
    ty.TypeCall: "visit_type_call",
    ty.TypeRelation: "visit_type_relation",
    TypeData: "visit_type_data",
}
"""Name of the visit method by type class."""


class TypeFunctor(Generic[_ResultT]):
    """Dispatcher to one visit method per type class."""

    def visit(self, typ: Type) -> _ResultT:
        """Dispatch to the visit method of a type.

        Raises:
            NotImplementedError: There is no such method.
        """
        name = TYPE_VISIT_METHODS.get(type(typ), "visit_unknown")
        method: Callable[[Type], _ResultT] | None = getattr(self, name, None)
        if method is None:
            raise NotImplementedError(f"{type(self).__name__} has no method {name}")
        return method(typ)


class TypeVisitor(TypeFunctor[None]):
    """Visitor of all component types."""

    def visit_type_var(self, tv: ty.TypeVar) -> None:
        """Do nothing: a type variable has no children."""

    def visit_incomplete_type(self, it: ty.IncompleteType) -> None:
        """Do nothing: an incomplete type has no children."""

    def visit_tensor_type(self, tt: ty.TensorType) -> None:
        """Do nothing: a tensor type has no children."""

    def visit_func_type(self, ft: ty.FuncType) -> None:
        """Visit parameters, result, type parameters and relations."""
        for child in (*ft.arg_types, ft.ret_type, *ft.type_params, *ft.type_constraints):
            self.visit(child)

    def visit_type_relation(self, tr: ty.TypeRelation) -> None:
        """Visit the arguments of the relation."""
        for arg in tr.args:
            self.visit(arg)

    def visit_tuple_type(self, tt: ty.TupleType) -> None:
        """Visit the fields."""
        for field in tt.fields:
            self.visit(field)

    def visit_ref_type(self, rt: ty.RelayRefType) -> None:
        """Visit the type that is referred to."""
        self.visit(rt.value)

    def visit_global_type_var(self, gtv: ty.GlobalTypeVar) -> None:
        """Do nothing: a global type variable has no children."""

    def visit_type_call(self, tc: ty.TypeCall) -> None:
        """Visit the name and the arguments."""
        for child in (tc.func, *tc.args):
            self.visit(child)

    def visit_type_data(self, td: TypeData) -> None:
        """Visit the name and the type parameters."""
        for child in (td.header, *td.type_vars):
            self.visit(child)


class TypeMutator(TypeFunctor[Type]):
    """Mutator that rebuilds types from rewritten components."""

    def visit_type_var(self, tv: ty.TypeVar) -> Type:
        """Return the type variable itself."""
        return tv

    def visit_incomplete_type(self, it: ty.IncompleteType) -> Type:
        """Return the incomplete type itself."""
        return it

    def visit_tensor_type(self, tt: ty.TensorType) -> Type:
        """Return the tensor type itself."""
        return tt

    def visit_func_type(self, ft: ty.FuncType) -> Type:
        """Return the function type rebuilt from its visited children."""
        # A parameter that was replaced by a type is no parameter any more.
        params = [p for p in map(self.visit, ft.type_params) if isinstance(p, ty.TypeVar)]
        args = tuple(map(self.visit, ft.arg_types))
        held = [r for r in map(self.visit, ft.type_constraints) if isinstance(r, ty.TypeRelation)]
        return ty.FuncType(args, self.visit(ft.ret_type), tuple(params), tuple(held))

    def visit_type_relation(self, tr: ty.TypeRelation) -> Type:
        """Return the relation rebuilt from its visited arguments."""
        return tr.with_fields(args=tuple(map(self.visit, tr.args)))

    def visit_tuple_type(self, tt: ty.TupleType) -> Type:
        """Return the tuple type rebuilt from its visited fields."""
        return ty.TupleType(tuple(map(self.visit, tt.fields)))

    def visit_ref_type(self, rt: ty.RelayRefType) -> Type:
        """Return the reference type rebuilt from its visited type."""
        return ty.RelayRefType(self.visit(rt.value))

    def visit_global_type_var(self, gtv: ty.GlobalTypeVar) -> Type:
        """Return the global type variable itself."""
        return gtv

    def visit_type_call(self, tc: ty.TypeCall) -> Type:
        """Return the type call rebuilt from its visited children."""
        return ty.TypeCall(self.visit(tc.func), tuple(map(self.visit, tc.args)))

    def visit_type_data(self, td: TypeData) -> Type:
        """Return the type definition itself."""
        return td


__all__ = ["TypeFunctor", "TypeMutator", "TypeVisitor"]
