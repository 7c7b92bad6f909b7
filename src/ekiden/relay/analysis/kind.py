"""Kinds: what a type stands for. A tensor of tensors or a tuple of shapes has none."""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.ir.module import IRModule
from ekiden.ir.text import type_text
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
from ekiden.relay.adjoint_type import definition
from ekiden.relay.expr import Expr, TypeData
from ekiden.relay.visitor import type_post_order, types_in
from ekiden.runtime.errors import TypeInferenceError

_NAMES = {
    TypeKind.TYPE: "a type",
    TypeKind.SHAPE_VAR: "a shape",
    TypeKind.BASE_TYPE: "a dtype",
    TypeKind.CONSTRAINT: "a constraint",
    TypeKind.ADT_HANDLE: "the name of a data type",
    TypeKind.TYPE_DATA: "the definition of a data type",
}


def check_kind(t: Type, mod: IRModule | None = None) -> TypeKind:
    """The kind of a type whose parts have the kinds they must have.

    With a module, data types are looked up in it. Raises TypeInferenceError that names the part.
    """
    kinds: dict[Type, TypeKind] = {}
    for at in type_post_order(t):
        kinds[at] = _kind(at, kinds, mod)
    return kinds[t]


def kind_errors(exprs: Iterable[Expr], module: IRModule) -> list[str]:
    """What `check_kind` says about the types written in expressions: each must be a type."""
    found: list[str] = []
    for written in (t for e in exprs for t in types_in(e)):
        if type(written) is TensorType:
            continue
        try:
            _require(written, check_kind(written, module), TypeKind.TYPE, "an annotation")
        except TypeInferenceError as error:
            found.append(str(error))
    return found


def _kind(at: Type, kinds: dict[Type, TypeKind], module: IRModule | None) -> TypeKind:
    match at:
        case TypeVar(kind=kind) | GlobalTypeVar(kind=kind) | IncompleteType(kind=kind):
            return kind
        case TensorType() | StorageType():
            return TypeKind.TYPE
        case TupleType(fields=fields):
            return _all_types(fields, kinds, "a field of a tuple")
        case RelayRefType(value=value):
            return _all_types((value,), kinds, "the value of a reference")
        case TypeRelation(args=args):
            _all_types(args, kinds, "what a relation relates")
            return TypeKind.CONSTRAINT
        case FuncType(arg_types=args, ret_type=ret, type_constraints=held):
            _all_types(args, kinds, "a parameter of a function")
            for each in held:
                _require(each, kinds[each], TypeKind.CONSTRAINT, "a relation of a function")
            return _all_types((ret,), kinds, "the result of a function")
        case TypeCall():
            return _type_call_kind(at, kinds, module)
        case TypeData(header=header, constructors=constructors):
            _require(header, header.kind, TypeKind.ADT_HANDLE, "the header of a data type")
            for made in constructors:
                for field in made.inputs:
                    what = f"a field of {made.name_hint}"
                    _require(field, check_kind(field, module), TypeKind.TYPE, what)
            return TypeKind.TYPE_DATA
        case _:
            raise TypeInferenceError(f"kind check: expected a type, got {at!r}")


def _type_call_kind(at: TypeCall, kinds: dict[Type, TypeKind], module: IRModule | None) -> TypeKind:
    what = f"what is applied in {type_text(at)}"
    _require(at.func, kinds[at.func], TypeKind.ADT_HANDLE, what)
    _all_types(at.args, kinds, f"an argument in {type_text(at)}")
    if module is None:
        return TypeKind.TYPE
    data = definition(module, at.func)
    if data is None:
        raise TypeInferenceError(
            f"kind check: {type_text(at)}: the module has no type {type_text(at.func)}"
        )
    if len(data.type_vars) != len(at.args):
        params = ", ".join(v.name_hint for v in data.type_vars)
        raise TypeInferenceError(
            f"kind check: {type_text(at)}: expected arguments for [{params}], got {len(at.args)}"
        )
    return TypeKind.TYPE


def _all_types(parts: tuple[Type, ...], kinds: dict[Type, TypeKind], what: str) -> TypeKind:
    for part in parts:
        _require(part, kinds[part], TypeKind.TYPE, what)
    return TypeKind.TYPE


def _require(part: Type, got: TypeKind, wanted: TypeKind, what: str) -> None:
    if got != wanted:
        raise TypeInferenceError(
            f"kind check: {what} must be {_NAMES[wanted]}, got {_NAMES[got]}: {_shown(part)}"
        )


def _shown(part: Type) -> str:
    return (
        f"the definition of {part.header.name_hint}"
        if isinstance(part, TypeData)
        else type_text(part)
    )
