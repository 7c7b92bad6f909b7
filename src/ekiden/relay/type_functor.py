"""Visitors and mutators with one method per type (TVM's faces)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ekiden.ir import type as ty
from ekiden.ir.type import Type
from ekiden.relay.expr import TypeData

_R = TypeVar("_R")

METHODS: dict[type[Type], str] = {
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
"""Type -> the method that is called with it."""


class TypeFunctor(Generic[_R]):
    """Calls the method of a type."""

    def visit(self, typ: Type) -> _R:
        """What the method of the type gives. Raises NotImplementedError where there is none."""
        name = METHODS.get(type(typ), "visit_unknown")
        method: Callable[[Type], _R] | None = getattr(self, name, None)
        if method is None:
            raise NotImplementedError(f"{type(self).__name__} has no method {name}")
        return method(typ)


class TypeVisitor(TypeFunctor[None]):
    """Visits the types below a type."""

    def visit_type_var(self, tv: ty.TypeVar) -> None:
        """Nothing below it."""

    def visit_incomplete_type(self, it: ty.IncompleteType) -> None:
        """Nothing below it."""

    def visit_tensor_type(self, tt: ty.TensorType) -> None:
        """Nothing below it."""

    def visit_func_type(self, ft: ty.FuncType) -> None:
        """Parameters, result, type parameters, relations."""
        for each in (*ft.arg_types, ft.ret_type, *ft.type_params, *ft.type_constraints):
            self.visit(each)

    def visit_type_relation(self, tr: ty.TypeRelation) -> None:
        """What it relates."""
        for each in tr.args:
            self.visit(each)

    def visit_tuple_type(self, tt: ty.TupleType) -> None:
        """Fields."""
        for each in tt.fields:
            self.visit(each)

    def visit_ref_type(self, rt: ty.RelayRefType) -> None:
        """What it refers to."""
        self.visit(rt.value)

    def visit_global_type_var(self, gtv: ty.GlobalTypeVar) -> None:
        """Nothing below it."""

    def visit_type_call(self, tc: ty.TypeCall) -> None:
        """Name and arguments."""
        for each in (tc.func, *tc.args):
            self.visit(each)

    def visit_type_data(self, td: TypeData) -> None:
        """Name and type parameters."""
        for each in (td.header, *td.type_vars):
            self.visit(each)


class TypeMutator(TypeFunctor[Type]):
    """Rebuilds a type from its rebuilt parts; a type variable stays itself."""

    def visit_type_var(self, tv: ty.TypeVar) -> Type:
        """Itself."""
        return tv

    def visit_incomplete_type(self, it: ty.IncompleteType) -> Type:
        """Itself."""
        return it

    def visit_tensor_type(self, tt: ty.TensorType) -> Type:
        """Itself."""
        return tt

    def visit_func_type(self, ft: ty.FuncType) -> Type:
        """From its parts."""
        params = [p for p in map(self.visit, ft.type_params) if isinstance(p, ty.TypeVar)]
        args = tuple(map(self.visit, ft.arg_types))
        held = [r for r in map(self.visit, ft.type_constraints) if isinstance(r, ty.TypeRelation)]
        return ty.FuncType(args, self.visit(ft.ret_type), tuple(params), tuple(held))

    def visit_type_relation(self, tr: ty.TypeRelation) -> Type:
        """From what it relates."""
        return tr.with_fields(args=tuple(map(self.visit, tr.args)))

    def visit_tuple_type(self, tt: ty.TupleType) -> Type:
        """From its fields."""
        return ty.TupleType(tuple(map(self.visit, tt.fields)))

    def visit_ref_type(self, rt: ty.RelayRefType) -> Type:
        """From what it refers to."""
        return ty.RelayRefType(self.visit(rt.value))

    def visit_global_type_var(self, gtv: ty.GlobalTypeVar) -> Type:
        """Itself."""
        return gtv

    def visit_type_call(self, tc: ty.TypeCall) -> Type:
        """From its parts."""
        return ty.TypeCall(self.visit(tc.func), tuple(map(self.visit, tc.args)))

    def visit_type_data(self, td: TypeData) -> Type:
        """Itself."""
        return td


__all__ = ["TypeFunctor", "TypeMutator", "TypeVisitor"]
