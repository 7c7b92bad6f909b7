"""Name the unknown dimensions of the parameters of `main`, so that shapes made from them are known.

def @main(%x: Tensor[(?, 2), float32]) { nn.relu(%x) }
-> def @main(%x: Tensor[(x_0, 2), float32]) { nn.relu(%x) }

Two unknown dimensions are two names. Where the program needs them to be one number, as in an
addition of two unknown shapes, nothing is named.
"""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, PrimExpr, SizeVar
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Expr, Function, Var
from ekiden.relay.type_infer import infer_type
from ekiden.relay.visitor import bind, map_type, type_post_order
from ekiden.runtime.errors import TypeInferenceError


def NameDimensions() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        if "main" not in module:
            return module
        main = module["main"]
        if not isinstance(main, Function) or not any(map(_is_unknown, _kinds(main))):
            return module
        try:
            return infer_type(module.with_function("main", _named(main)))
        except TypeInferenceError:
            return module

    return Pass("NameDimensions", transform)


def _kinds(function: Function) -> list[Type]:
    return [p.type_annotation for p in function.params if p.type_annotation is not None]


def _is_unknown(kind: Type) -> bool:
    tensors = [t for t in type_post_order(kind) if isinstance(t, TensorType)]
    return any(isinstance(d, AnyDim) for t in tensors for d in t.shape)


def _named(function: Function) -> Function:
    new: dict[Var, Expr] = {}
    params: list[Var] = []
    for old in function.params:
        kind = old.type_annotation
        is_kept = kind is None or not _is_unknown(kind)
        param = old if is_kept or kind is None else _param(old, kind)
        params.append(param)
        if param is not old:
            new[old] = param
    ret = function.ret_type
    known = ret if ret is None or not _is_unknown(ret) else None
    body = bind(function.body, new)
    return Function(tuple(params), body, known, function.type_params, function.attrs, function.span)


def _param(old: Var, kind: Type) -> Var:
    made: list[SizeVar] = []

    def name(dim: PrimExpr) -> PrimExpr:
        if not isinstance(dim, AnyDim):
            return dim
        made.append(SizeVar(f"{old.name_hint}_{len(made)}"))
        return made[-1]

    def replace(each: Type) -> Type:
        if not isinstance(each, TensorType) or not _is_unknown(each):
            return each
        return TensorType(tuple(map(name, each.shape)), each.dtype)

    return Var(old.name_hint, map_type(kind, replace), old.span)
