"""Eta expansion: wrap constructors and global functions used as values in functions.

    @map(Cons, ..)   ->   @map(fn (%a: A, %b: List[A]) { Cons(%a, %b) }, ..)
    @f               ->   fn (%a) { @f(%a) }

What is called is left alone.
"""

from __future__ import annotations

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import FuncType, TupleType, TypeVar
from ekiden.relay.expr import Call, Constructor, Function, Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import map_functions, on_body
from ekiden.relay.visitor import CHILDREN, post_order, rebuild, substitute_type


def _wrapper(callee: RelayExpr, kind: FuncType) -> Function:
    """Return the function that forwards its arguments to a constructor or global function.

    Its type parameters are its own: those of a constructor are its data type's.
    """
    own = {v: TypeVar(v.name_hint, v.kind) for v in kind.type_params}
    arg_tuple, result = (
        substitute_type(t, own) for t in (TupleType(kind.arg_types), kind.ret_type)
    )
    assert isinstance(arg_tuple, TupleType)
    params = tuple(Var(f"eta{i}", t) for i, t in enumerate(arg_tuple.fields))
    return Function(params, Call(callee, params), result, tuple(own.values()))


def _expand(root: RelayExpr, module: IRModule, constructors: bool, functions: bool) -> RelayExpr:
    new: dict[RelayExpr, RelayExpr] = {}

    def value_of(child: RelayExpr) -> RelayExpr:
        """Eta-expand a constructor or global function in value position: fn(x, ...) { f(x,
        ...) }.
        """
        is_wrapped = (constructors and isinstance(child, Constructor)) or (
            functions and isinstance(child, GlobalVar)
        )
        if not is_wrapped:
            return new.get(child, child)
        kind = child.checked_type_or_none()
        if kind is None and isinstance(child, GlobalVar):
            kind = module[child].checked_type
        assert isinstance(kind, FuncType), f"the type of {child} is not known"
        return _wrapper(child, kind)

    for expr in post_order(root, into_functions=True):
        below = CHILDREN[type(expr)](expr)
        if isinstance(expr, Call):
            inside = [new.get(expr.op, expr.op), *map(value_of, expr.args)]
        else:
            inside = [value_of(c) for c in below]
        new[expr] = rebuild(expr, inside)
    return value_of(root)


def EtaExpand(expand_constructor: bool = True, expand_global_var: bool = False) -> Pass:  # noqa: N802
    """Return a pass that eta-expands constructors and/or global functions (TVM's EtaExpand)."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Eta-expand the functions of a module, by the function types from before the pass."""

        def one(body: RelayExpr) -> RelayExpr:
            return _expand(body, module, expand_constructor, expand_global_var)

        return map_functions(module, on_body(one))

    return Pass("EtaExpand", transform, 1, (InferType(),))
