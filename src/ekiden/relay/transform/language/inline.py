"""Function inlining.

    def @twice(%y, Inline=1) { add(%y, %y) }    def @main(%x) { @twice(nn.relu(%x)) }
    ->  def @main(%x) { %0 = nn.relu(%x); add(%0, %0) }

Functions with the attribute Inline are inlined, unless they are recursive or polymorphic; one that
was inlined everywhere is removed. An argument that is more than a name is still evaluated once: as
a shared value where it is pure; bound by a let where it is not, or where a function inside of the
callee reads it, as a loop would evaluate it in each iteration. What is one kernel stays whole and
is called in place: a function for an external compiler, and one that is marked Primitive.

Callees first, so that each body is copied with what was inlined into it; the program may grow to
the product of calls along a path, as with any inlining. No variable is bound twice afterwards: each
copy has variables of its own, and the names of dimensions that its arguments have. Declared sizes
stay checked (MatchDeclaredShapes). Recursion is not unrolled (PartialEvaluate does, where it ends).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.expr import Call, Constant, Function, Var
from ekiden.relay.transform.language.dead_code_elimination import is_pure
from ekiden.relay.transform.language.instantiate_dimensions import (
    annotate_reference_types,
    call_dim_substitution,
    instantiate,
)
from ekiden.relay.transform.language.let_chains import build_lets
from ekiden.relay.transform.language.match_declared_shapes import MatchDeclaredShapes
from ekiden.relay.transform.language.scope_tree import (
    captured_vars,
    is_atom,
    map_functions,
    rewrite_graph,
)
from ekiden.relay.unify import substitute_dims
from ekiden.relay.visitor import fresh_copy


def inline(module: IRModule, wanted: Callable[[GlobalVar, Function], bool]) -> IRModule:
    """Inline the calls of selected functions."""
    graph = CallGraph(module)
    recursive = {name for group in graph.cycles() for name in group}
    inlined: dict[GlobalVar, Function] = {}
    done: dict[GlobalVar, BaseFunc] = dict(module.functions)
    for name in (name for group in graph.components() for name in group):  # callees first
        function = done[name]
        if not isinstance(function, Function):
            continue
        is_part = is_kernel_function(function)  # of which those that it calls are parts
        body = _inline_calls(function.body, inlined, is_part)
        done[name] = function = function.with_fields(body=body)
        # Recursive functions have no finite expansion; polymorphic ones would lose their type
        # parameters.
        if name not in recursive and not function.type_params and wanted(name, function):
            inlined[name] = function
    used = {name for name in inlined if graph.ref_count(name)}
    return _remove_unused(module.with_functions(done), used)


def _inline_calls(
    body: RelayExpr, functions: Mapping[GlobalVar, Function], is_part: bool
) -> RelayExpr:
    """Inline functions into a body; those used as values become function values.

    Args:
        body: The body.
        functions: The functions to inline.
        is_part: Whether the body is inside of a kernel, where no kernel stays whole.
    """

    def inline_call(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Inline a call, or replace a function used as a value by a copy.

        A copy has variables of its own, as no variable may be bound twice. A kernel stays whole; as
        a value it is a function that calls it.
        """
        if isinstance(old, GlobalVar) and old in functions:
            return _function_value(functions[old])
        if isinstance(old, Call) and isinstance(old.op, GlobalVar) and old.op in functions:
            assert isinstance(new, Call)
            callee = functions[old.op]
            if is_part or not is_kernel_function(callee):
                return inline_application(callee, new, call_dim_substitution(callee, old.args))
            kernel_call = new.with_fields(op=_mark_primitive(callee))
            old_type = old.checked_type_or_none()
            if old_type is not None:
                kernel_call.set_checked_type(old_type)
            return kernel_call
        return new

    return rewrite_graph(body, inline_call)


def _mark_primitive(kernel: Function) -> Function:
    return kernel if kernel.attr("Primitive") else kernel.with_attr("Primitive", 1)


def _function_value(function: Function) -> Function:
    copy = fresh_copy(function)
    assert isinstance(copy, Function)
    if not is_kernel_function(copy):
        return copy
    kernel = _mark_primitive(copy)
    params = tuple(Var(p.name_hint, p.type_annotation) for p in kernel.params)
    return Function(params, Call(kernel, params))


def inline_application(
    function: Function, call: Call, dims: Mapping[Symbol, PrimExpr] | None = None
) -> RelayExpr:
    """Beta-reduce a call: return the function's body over the call's arguments, with fresh
    variables.

    Args:
        function: The function.
        call: The call.
        dims: Names of dimensions that have other values there.

    Raises:
        ValueError: When the numbers of arguments differ.
    """
    captured = captured_vars(function.body)
    within: dict[Var, RelayExpr] = {}
    bindings: list[tuple[Var, RelayExpr]] = []
    for param, arg in zip(function.params, call.args, strict=True):
        # A function inside may run many times, so what it reads must be computed before it.
        is_shared = param not in captured or isinstance(arg, Constant) or is_atom(arg)
        if is_shared and is_pure(arg) and not isinstance(arg, Function):
            within[param] = arg
            continue
        kind = param.type_annotation
        fresh = Var(param.name_hint, None if kind is None else substitute_dims(kind, dims or {}))
        within[param] = fresh
        bindings.append((fresh, arg))
    return build_lets(bindings, instantiate(function.body, dims or {}, within))


def _remove_unused(module: IRModule, names: set[GlobalVar]) -> IRModule:
    """Remove the named functions that nothing refers to any more."""
    graph = CallGraph(module)
    return module.with_functions(
        {g: f for g, f in module.functions.items() if g not in names or graph.ref_count(g)}
    )


def is_kernel_function(function: Function) -> bool:
    """Return whether a function is one kernel (primitive, or for an external compiler), which stays
    whole.
    """
    return bool(function.attr("Compiler") or function.attr("Primitive"))


def _is_inlined(function: BaseFunc) -> bool:
    return isinstance(function, Function) and (
        bool(function.attr("Inline")) or is_kernel_function(function)
    )


@module_pass(name="Inline", opt_level=1)
def _inline(module: IRModule, context: PassContext) -> IRModule:
    selected = [f for f in module.functions.values() if _is_inlined(f)]
    if not selected:
        return module
    if not all(
        isinstance(f, Function) and is_kernel_function(f) for f in selected
    ):  # whose checks go with them, and whose sizes are others
        module = map_functions(MatchDeclaredShapes()(module), annotate_reference_types)
    return inline(module, lambda name, function: _is_inlined(function))


def Inline() -> Pass:  # noqa: N802
    """Return a pass that inlines functions marked Inline (TVM's Inline)."""
    return _inline
