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
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions
from ekiden.relay.visitor import CHILD_GETTERS, post_order, rebuild, substitute_type


def _eta_wrapper(callee: RelayExpr, kind: FuncType) -> Function:
    """Return the function that forwards its arguments to a constructor or global function.

    Its type parameters are its own: those of a constructor are its data type's.
    """
    fresh_type_params = {v: TypeVar(v.name_hint, v.kind) for v in kind.type_params}
    arg_tuple, result = (
        substitute_type(t, fresh_type_params) for t in (TupleType(kind.arg_types), kind.ret_type)
    )
    assert isinstance(arg_tuple, TupleType)
    params = tuple(Var(f"eta{i}", t) for i, t in enumerate(arg_tuple.fields))
    return Function(params, Call(callee, params), result, tuple(fresh_type_params.values()))


def _eta_expand(
    root: RelayExpr, module: IRModule, constructors: bool, functions: bool
) -> RelayExpr:
    new: dict[RelayExpr, RelayExpr] = {}

    def expand_value(child: RelayExpr) -> RelayExpr:
        """Eta-expand a constructor or global function in value position: fn(x, ...) { f(x,
        ...) }.
        """
        is_wrapped = (constructors and isinstance(child, Constructor)) or (
            functions and isinstance(child, GlobalVar)
        )
        if not is_wrapped:
            return new.get(child, child)
        kind = child.checked_type_or_none()
        # A reference may lack a type of its own, but the function that it names has one.
        if kind is None and isinstance(child, GlobalVar):
            kind = module[child].checked_type
        assert isinstance(kind, FuncType), f"the type of {child} is not known"
        return _eta_wrapper(child, kind)

    for expr in post_order(root, into_functions=True):
        below = CHILD_GETTERS[type(expr)](expr)
        if isinstance(expr, Call):
            # The callee is already applied, so it needs no wrapper.
            inside = [new.get(expr.op, expr.op), *map(expand_value, expr.args)]
        else:
            inside = [expand_value(c) for c in below]
        new[expr] = rebuild(expr, inside)
    return expand_value(root)


def EtaExpand(expand_constructor: bool = True, expand_global_var: bool = False) -> Pass:  # noqa: N802
    """Return a pass that eta-expands constructors and/or global functions (TVM's EtaExpand)."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Eta-expand the functions of a module, by the function types from before the pass."""

        def expand_body(body: RelayExpr) -> RelayExpr:
            """Expand the constructors and global functions that a body passes as values."""
            return _eta_expand(body, module, expand_constructor, expand_global_var)

        return map_functions(module, lift_body_rewrite(expand_body))

    return Pass("EtaExpand", transform, 1, (InferType(),))
