"""Lambda lifting: turn closures into global functions that take the captured values, so that the VM
can call every function by number.

    let %f = fn (%y) { add(%y, %x) }; %f(%z)
    ->  def @lifted_f(%x) { fn (%y, Closure=1) { add(%y, %x) } }  and  let %f = @lifted_f(%x);
    %f(%z)

A value whose shape determines a named dimension that the function uses is captured too. In a
program of several devices the attributes of the global say where what it captures is, so that
functions are one only if that is equal too.

A function that captures nothing becomes a plain global; one that captures becomes a global over
what it captures, marked Closure, that returns the function. A function that calls itself through
its let variable calls the global again. Inner functions are lifted before outer ones. Equal
functions become one.

After: the only function values are those that global functions marked Closure return, whose body is
that function alone: passes over bodies look into it (`on_body`). A closure at run time is a
function's number and the values captured, in the order of parameters. Symbols of dimensions are
captured by tensors that determine them, as a kernel inside has only tensors to read sizes from: n
follows from a tensor of n * 2 rows, not from one of (n + 1) // 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.prim_visitor import free_vars as dim_vars
from ekiden.ir.structural import structural_digest
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Function, Let, Var
from ekiden.relay.transform.devices.device_domains import DeviceDomains
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.let_chains import parse_let_chain
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    is_atom,
    map_functions,
    replace_children,
)
from ekiden.relay.visitor import bind, free_vars, post_order, type_post_order
from ekiden.target.virtual_device import PARAM_DEVICES_ATTR, is_host_only

if TYPE_CHECKING:
    from ekiden.arith import pattern as arith_pattern
else:
    arith_pattern = LazyModule("ekiden.arith.pattern")


def flatten_closure(function: Function) -> Function:
    """Flatten a Closure function: fn (captured) { fn (params) { body } } -> fn (captured, params) {
    body }.
    """
    inner = function.body
    if not function.attr("Closure"):
        return function
    assert isinstance(inner, Function)
    return inner.with_fields(params=(*function.params, *inner.params))


class _LambdaLifter:
    """Lambda lifter of one global function.

    `domains` are those of a module planned for several devices.
    """

    def __init__(self, used_names: set[str], domains: DeviceDomains | None) -> None:
        self.used_names, self.domains = used_names, domains
        self.lifted: dict[GlobalVar, BaseFunc] = {}
        self.names: dict[str, GlobalVar] = {}
        """Names of lifted functions by structural hash."""

    def lift(self, root: Function) -> Function:
        """Lift every function value inside `root`, except the one that a lifted global returns.

        A pass may have bound something around that: then it is a value as others, and the global a
        function as others.
        """
        of_closure = root.body if root.attr("Closure") else None
        if of_closure is not None and not isinstance(of_closure, Function):
            root = root.without_attr("Closure")
        new: dict[RelayExpr, RelayExpr] = {}
        own_names = self._recursive_names(root.body)
        around = _enclosing_params(root)
        for inner, lets in _enclosing_lets(root).items():
            around[inner] = [*around[inner], *lets]
        for expr in evaluation_order(root.body):
            rebuilt = replace_children(expr, new)
            if isinstance(rebuilt, Function) and not is_atom(rebuilt) and expr is not of_closure:
                rebuilt = self._lift_function(rebuilt, own_names.get(expr), around[expr])
            new[expr] = rebuilt
        return root.with_fields(body=new[root.body])

    @staticmethod
    def _recursive_names(body: RelayExpr) -> dict[RelayExpr, Var]:
        return {
            e.value: e.var
            for e in evaluation_order(body)
            if isinstance(e, Let) and isinstance(e.value, Function)
        }

    def _fresh_global(self, hint: str) -> GlobalVar:
        name, count = f"lifted_{hint}", 0
        while name in self.used_names:
            count += 1
            name = f"lifted_{hint}_{count}"
        self.used_names.add(name)
        return GlobalVar(name)

    def _lift_function(
        self, function: Function, own_name: Var | None, around: Sequence[Var]
    ) -> RelayExpr:
        captured = [v for v in free_vars(function) if v is not own_name]
        captured += _dim_witnesses(function, captured, around)
        name = self._fresh_global(own_name.name_hint if own_name else "fn")
        fresh = {v: Var(v.name_hint, v.checked_type) for v in captured}
        within: dict[Var, RelayExpr] = dict(fresh)
        if own_name is not None:
            # A recursive call builds the closure again from what the global was called with.
            within[own_name] = _closure_value(name, tuple(fresh.values()))
        inner = bind(function, within)
        assert isinstance(inner, Function)
        if captured:
            marked = inner.with_fields(attrs={**(inner.attrs or {}), "Closure": 1})
            kind = function.checked_type_or_none()  # said, so that it may call itself in any size
            attrs = {"Closure": 1, **self._captured_locations(captured)}
            inner = Function(tuple(fresh.values()), marked, kind, (), attrs)
        return _closure_value(self._deduplicate(name, inner), tuple(captured))

    def _captured_locations(self, captured: Sequence[Var]) -> dict[str, object]:
        """Return the device locations of captured values as attributes; empty if all are on the
        host.
        """
        if self.domains is None:
            return {}
        devices = tuple(
            self.domains.location_attribute(self.domains.domain_for(v), v.checked_type)
            for v in captured
        )
        return {} if is_host_only(devices) else {PARAM_DEVICES_ATTR: devices}

    def _deduplicate(self, name: GlobalVar, function: Function) -> GlobalVar:
        """Return the name of a lifted function, shared with an equal one lifted before."""
        first_name = self.names.setdefault(structural_digest(function), name)
        if first_name is name:
            self.lifted[name] = function
        return first_name


def _enclosing_params(root: Function) -> dict[RelayExpr, list[Var]]:
    """Map each nested function to the parameters of its enclosing functions."""
    around: dict[RelayExpr, list[Var]] = {}
    for outer in (root, *_nested_functions(root.body)):
        for inner in _nested_functions(outer.body):
            around.setdefault(inner, []).extend(outer.params)
    return around


def _enclosing_lets(root: Function) -> dict[RelayExpr, list[Var]]:
    """Map each let-bound function to the enclosing let variables that first determine a symbolic
    dimension.
    """
    around: dict[RelayExpr, list[Var]] = {}
    stack: list[tuple[RelayExpr, list[Var], set[PrimVar]]] = [(root.body, [], set())]
    while stack:
        body, lets, shown = stack.pop()
        chain = parse_let_chain(body)
        for variable, value in chain.bindings:
            if isinstance(value, Function) and not is_atom(value):
                around[value] = list(lets)
            stack.extend((body_inside, list(lets), set(shown)) for body_inside in bodies(value))
            # Only the first variable that determines a dimension is captured for it.
            new = _determined_dims((variable.checked_type_or_none(),)) - shown
            if new:
                lets.append(variable)
                shown |= new
        if chain.result is not None:
            stack.extend(
                (result_body, list(lets), set(shown)) for result_body in bodies(chain.result)
            )
    return around


def _nested_functions(body: RelayExpr) -> list[Function]:
    return [e for e in evaluation_order(body) if isinstance(e, Function) and not is_atom(e)]


def _dim_witnesses(function: Function, captured: Sequence[Var], around: Sequence[Var]) -> list[Var]:
    """Return enclosing variables whose shapes determine the symbolic dimensions that a function
    uses but does not receive.
    """
    determined = _determined_dims(v.checked_type for v in (*function.params, *captured))
    inside = post_order(function.body, into_functions=True)
    missing = _symbolic_dims(e.checked_type_or_none() for e in inside) - determined
    witnesses: list[Var] = []
    for param in around:
        shown = _determined_dims((param.checked_type,))
        # The VM binds symbols from argument shapes, so an argument with the dimension must be
        # passed along.
        if missing & shown and param not in captured:
            witnesses.append(param)
            missing -= shown
    return witnesses


def _symbolic_dims(kinds: Iterable[Type | None]) -> set[PrimVar]:
    """Return the symbolic dimensions in types."""
    tensors = (t for k in kinds if k is not None for t in type_post_order(k))
    shapes = (t.shape for t in tensors if isinstance(t, TensorType))
    return {v for s in shapes for d in s if not isinstance(d, IntImm) for v in dim_vars(d)}


def _determined_dims(kinds: Iterable[Type | None]) -> set[PrimVar]:
    """Return the symbolic dimensions that tensor shapes determine.

    n follows from `n * 2`, not from `(n + 1) // 2`, neither from `n + m`. Tensors in data
    structures determine none, as there may be no element.
    """
    dims = (d for k in kinds if k is not None for t in iter_tensor_types(k) for d in t.shape)
    dim_symbols = ((d, dim_vars(d)) for d in dims if not isinstance(d, IntImm))
    alone = ((d, symbols[0]) for d, symbols in dim_symbols if len(symbols) == 1)
    return {n for d, n in alone if d is n or arith_pattern.detect_linear_equation(d, [n])}


def iter_tensor_types(kind: Type) -> Iterator[TensorType]:
    """Yield the tensor types of a type: itself, or the fields of nested tuples."""
    stack = [kind]
    while stack:
        current = stack.pop()
        if isinstance(current, TupleType):
            stack.extend(current.fields)
        elif isinstance(current, TensorType):
            yield current


def _closure_value(name: GlobalVar, captured: tuple[Var, ...]) -> RelayExpr:
    """Return the function value for a lifted function: a partial application to its captured
    values.
    """
    return Call(name, captured) if captured else name


@module_pass(name="LambdaLift", opt_level=1, required=(InferType(),))
def _lambda_lift(module: IRModule, context: PassContext) -> IRModule:
    domains = DeviceDomains(module) if len(device_table(module)) > 1 else None
    lifter = _LambdaLifter({g.name_hint for g in module}, domains)
    lifted = map_functions(module, lifter.lift)
    return lifted.with_functions({**lifted.functions, **lifter.lifted})


def LambdaLift() -> Pass:  # noqa: N802
    """Return a pass that lifts closures to global functions (TVM's LambdaLift)."""
    return _lambda_lift
