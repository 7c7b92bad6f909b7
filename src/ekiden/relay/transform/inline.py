"""Put the bodies of global functions where they are called.

    def @twice(%y, Inline=1) { add(%y, %y) }    def @main(%x) { @twice(nn.relu(%x)) }
->  def @main(%x) { %0 = nn.relu(%x); add(%0, %0) }

Functions with the attribute Inline are inlined, unless they are recursive or polymorphic; one that
was inlined everywhere goes away. An argument that is more than a name stays evaluated once: as
a shared value where it is pure, bound by a let where it is not. A function for an external compiler
stays whole and is called in place.

Callees first, so that each body is copied with what was inlined into it; the program may grow to
the product of calls along a path, as with any inlining. No variable is bound twice afterwards: each
copy has variables of its own. Recursion is not unrolled (PartialEvaluate does, where it ends).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.expr import Call, Function, Var
from ekiden.relay.transform.chains import let_chain
from ekiden.relay.transform.dead_code_elimination import is_pure
from ekiden.relay.transform.scopes import rewrite_graph
from ekiden.relay.visitor import fresh_copy


def inline(module: IRModule, wanted: Callable[[GlobalVar, Function], bool]) -> IRModule:
    """The module with calls of the wanted functions replaced by their bodies."""
    graph = CallGraph(module)
    recursive = {name for group in graph.cycles() for name in group}
    inlined: dict[GlobalVar, Function] = {}
    done: dict[GlobalVar, BaseFunc] = dict(module.functions)
    for name in (name for group in graph.components() for name in group):  # callees first
        function = done[name]
        if not isinstance(function, Function):
            continue
        done[name] = function = function.with_fields(body=_with_bodies(function.body, inlined))
        if name not in recursive and not function.type_params and wanted(name, function):
            inlined[name] = function
    used = {name for name in inlined if graph.ref_count(name)}
    return _without_unused(module.with_functions(done), used)


def _with_bodies(body: RelayExpr, functions: Mapping[GlobalVar, Function]) -> RelayExpr:
    """`body` with calls of these functions replaced; used as values they become function values."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """A call becomes the body over its arguments; a name used as a value a copy with variables
        of its own, as no variable may be bound twice. For an external compiler the function stays
        whole.
        """
        if isinstance(old, GlobalVar) and old in functions:
            return fresh_copy(functions[old])
        if isinstance(old, Call) and isinstance(old.op, GlobalVar) and old.op in functions:
            assert isinstance(new, Call)
            callee = functions[old.op]
            if callee.attr("Compiler") is None:
                return apply(callee, new)
            made = new.with_fields(op=callee)
            known = old.checked_type_or_none()
            if known is not None:
                made.set_checked_type(known)
            return made
        return new

    return rewrite_graph(body, rewrite)


def apply(function: Function, call: Call) -> RelayExpr:
    """The body of a function over the arguments of a call, with variables of its own.

    Raises ValueError when their numbers differ.
    """
    within: dict[Var, RelayExpr] = {}
    bindings: list[tuple[Var, RelayExpr]] = []
    for param, arg in zip(function.params, call.args, strict=True):
        if is_pure(arg) and not isinstance(arg, Function):
            within[param] = arg
            continue
        fresh = Var(param.name_hint, param.type_annotation)
        within[param] = fresh
        bindings.append((fresh, arg))
    return let_chain(bindings, fresh_copy(function.body, within))


def _without_unused(module: IRModule, names: set[GlobalVar]) -> IRModule:
    """The module without those of these functions that nothing refers to."""
    graph = CallGraph(module)
    return module.with_functions(
        {g: f for g, f in module.functions.items() if g not in names or graph.ref_count(g)}
    )


@module_pass(name="Inline", opt_level=1)
def _inline(module: IRModule, context: PassContext) -> IRModule:
    if not any(isinstance(f, Function) and f.attr("Inline") for f in module.functions.values()):
        return module
    return inline(module, lambda name, function: bool(function.attr("Inline")))


def Inline() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _inline
