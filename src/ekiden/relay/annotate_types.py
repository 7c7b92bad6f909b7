"""Annotation of a program with its inferred types.

def @f(%x: _) { %x + 1f }   ->   def @f(%x: float32) -> float32 { %x + 1f }
@id(1)                      ->   @id[int32](1)

A variable of a Let has a type where one is written with a hole, and none where none is written:
passes may give it another value.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.type import FuncType, TensorType, Type
from ekiden.relay.expr import Call, Expr, Function, Var
from ekiden.relay.visitor import ExprMutator, has_holes, post_order

TypeArgs = Mapping[Call, tuple[Type, ...]]


def annotate_types(module: IRModule, type_args: TypeArgs, annotate: bool) -> IRModule:
    """Annotate a module with type arguments and, with `annotate`, parameter and result types.

    It is the module itself if nothing was missing. Needs checked types.
    """
    changed: dict[GlobalVar, BaseFunc] = {}
    for name, function in module.functions.items():
        if isinstance(function, Function):
            filled = _annotate_function(function, type_args, annotate)
            # Unchanged functions stay the same objects, so that caches by identity still hit.
            if filled is not function:
                changed[name] = filled
    return module.with_functions({**module.functions, **changed}) if changed else module


def _annotate_function(function: Function, type_args: TypeArgs, annotate: bool) -> Function:
    missing = _find_unannotated(function, type_args) if annotate or type_args else []
    if not annotate:
        missing = [e for e in missing if isinstance(e, Call)]
    if not missing:
        return function
    # The common case: only the result type is missing, and nothing below changes.
    if missing == [function] and not any(map(_lacks_annotation, function.params)):
        return _with_result_type(function, function)
    filled = _TypeAnnotator(function, type_args, annotate).visit(function)
    assert isinstance(filled, Function)
    return filled


def _find_unannotated(function: Function, type_args: TypeArgs) -> list[Expr]:
    """Return the functions, variables and calls without type annotations."""
    incomplete: list[Expr] = []
    for expr in post_order(function, into_functions=True):
        if isinstance(expr, Function):
            if _is_incomplete(expr.ret_type) or any(map(_lacks_annotation, expr.params)):
                incomplete.append(expr)
        elif isinstance(expr, Call):
            if expr in type_args:
                incomplete.append(expr)
        elif isinstance(expr, Var) and expr.type_annotation is not None and _lacks_annotation(expr):
            incomplete.append(expr)
    return incomplete


def _is_incomplete(kind: Type | None) -> bool:
    return kind is None or (type(kind) is not TensorType and has_holes(kind))


def _lacks_annotation(var: Var) -> bool:
    return _is_incomplete(var.type_annotation)


def _with_result_type(old: Function, new: Function) -> Function:
    """Return `new` with the inferred result type of `old`."""
    kind = old.checked_type
    assert isinstance(kind, FuncType)
    filled = new.with_fields(ret_type=kind.ret_type) if _is_incomplete(old.ret_type) else new
    filled.set_checked_type(kind)
    return filled


class _TypeAnnotator(ExprMutator):
    """Mutator that annotates nodes lacking types, preserving checked types."""

    def __init__(self, root: Function, type_args: TypeArgs, annotate: bool) -> None:
        super().__init__()
        self.type_args = type_args
        self.annotate = annotate
        self.params = {
            p for e in post_order(root, into_functions=True) if isinstance(e, Function)
            for p in e.params
        }  # fmt: skip

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        """Annotate one node."""
        if isinstance(old, Call):
            if old in self.type_args:
                new = new.with_fields(type_args=self.type_args[old])
        elif not self.annotate:
            pass
        elif isinstance(old, Var):
            if _lacks_annotation(old) and (old in self.params or old.type_annotation is not None):
                new = old.with_fields(type_annotation=old.checked_type)
        elif isinstance(old, Function):
            assert isinstance(new, Function)
            return _with_result_type(old, new)
        if new is not old:
            # A rebuilt node has the type that its original was inferred to have.
            new.set_checked_type(old.checked_type)
        return new
