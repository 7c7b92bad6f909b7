"""Kind checking of types; a tensor of tensors or a tuple of shapes has no kind."""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.type import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RelayRefType,
    StorageType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeKind,
    TypeRelation,
    TypeVar,
)
from ekiden.relay.adjoint_type import type_definition
from ekiden.relay.expr import Expr, TypeData
from ekiden.relay.visitor import annotated_types, type_post_order
from ekiden.runtime.errors import TypeInferenceError

_KIND_NAMES = {
    TypeKind.TYPE: "a type",
    TypeKind.SHAPE_VAR: "a shape",
    TypeKind.BASE_TYPE: "a dtype",
    TypeKind.CONSTRAINT: "a constraint",
    TypeKind.ADT_HANDLE: "the name of a data type",
    TypeKind.TYPE_DATA: "the definition of a data type",
}


def check_kind(t: Type, mod: IRModule | None = None) -> TypeKind:
    """Return the kind of a type after checking its components.

    With a module, data types are looked up in it.

    Raises:
        TypeInferenceError: A component, which is named, has another kind than it must have.
    """
    kinds: dict[Type, TypeKind] = {}
    for node in type_post_order(t):
        kinds[node] = _infer_kind(node, kinds, mod)
    return kinds[t]


def kind_errors(exprs: Iterable[Expr], module: IRModule) -> list[str]:
    """Return the kind errors of the types in expressions."""
    errors: list[str] = []
    for written in (t for e in exprs for t in annotated_types(e)):
        # By far the most frequent annotation, which cannot be wrong.
        if type(written) is TensorType:
            continue
        try:
            _require_kind(written, check_kind(written, module), TypeKind.TYPE, "an annotation")
        except TypeInferenceError as error:
            errors.append(str(error))
    return errors


def _infer_kind(at: Type, kinds: dict[Type, TypeKind], module: IRModule | None) -> TypeKind:
    match at:
        case TypeVar(kind=kind) | GlobalTypeVar(kind=kind) | IncompleteType(kind=kind):
            return kind
        case TensorType() | StorageType():
            return TypeKind.TYPE
        case TupleType(fields=fields):
            return _require_all_types(fields, kinds, "a field of a tuple")
        case RelayRefType(value=value):
            return _require_all_types((value,), kinds, "the value of a reference")
        case TypeRelation(args=args):
            _require_all_types(args, kinds, "what a relation relates")
            return TypeKind.CONSTRAINT
        case FuncType(arg_types=args, ret_type=ret, type_constraints=held):
            _require_all_types(args, kinds, "a parameter of a function")
            for constraint in held:
                _require_kind(
                    constraint, kinds[constraint], TypeKind.CONSTRAINT, "a relation of a function"
                )
            return _require_all_types((ret,), kinds, "the result of a function")
        case TypeCall():
            return _infer_type_call_kind(at, kinds, module)
        case TypeData(header=header, constructors=constructors):
            _require_kind(header, header.kind, TypeKind.ADT_HANDLE, "the header of a data type")
            for constructor in constructors:
                for field in constructor.inputs:
                    what = f"a field of {constructor.name_hint}"
                    _require_kind(field, check_kind(field, module), TypeKind.TYPE, what)
            return TypeKind.TYPE_DATA
        case _:
            raise TypeInferenceError(f"kind check: expected a type, got {at!r}")


def _infer_type_call_kind(
    at: TypeCall, kinds: dict[Type, TypeKind], module: IRModule | None
) -> TypeKind:
    what = f"what is applied in {format_type(at)}"
    _require_kind(at.func, kinds[at.func], TypeKind.ADT_HANDLE, what)
    _require_all_types(at.args, kinds, f"an argument in {format_type(at)}")
    if module is None:
        return TypeKind.TYPE
    data = type_definition(module, at.func)
    if data is None:
        raise TypeInferenceError(
            f"kind check: {format_type(at)}: the module has no type {format_type(at.func)}"
        )
    if len(data.type_vars) != len(at.args):
        params = ", ".join(v.name_hint for v in data.type_vars)
        raise TypeInferenceError(
            f"kind check: {format_type(at)}: expected arguments for [{params}], got {len(at.args)}"
        )
    return TypeKind.TYPE


def _require_all_types(
    components: tuple[Type, ...], kinds: dict[Type, TypeKind], what: str
) -> TypeKind:
    for component in components:
        _require_kind(component, kinds[component], TypeKind.TYPE, what)
    return TypeKind.TYPE


def _require_kind(component: Type, actual: TypeKind, expected: TypeKind, what: str) -> None:
    if actual != expected:
        raise TypeInferenceError(
            f"kind check: {what} must be {_KIND_NAMES[expected]}, got {_KIND_NAMES[actual]}: "
            f"{_format_component(component)}"
        )


def _format_component(component: Type) -> str:
    return (
        f"the definition of {component.header.name_hint}"
        if isinstance(component, TypeData)
        else format_type(component)
    )
