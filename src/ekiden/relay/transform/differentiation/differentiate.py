"""`gradient`: reverse-mode automatic differentiation of a Relay function.

    fn (%x: T, %y: U) -> R   ->   fn (%x: T, %y: U) -> (R, (T, U))

A function that becomes a graph of operators, tuples and If once what it calls is inlined is
differentiated as a graph (first_order_gradient.py): fewest operators, memory planned at compile
time. One with recursion, closures, references or data types is lifted to one that records a tape
(higher_order_gradient.py), which then runs back. Both results are ordinary functions, and can be
differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext, Sequential, module_pass
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Function, RefCreate, RefRead, RefWrite, Tuple, TupleGetItem, Var
from ekiden.relay.gradient import GRADIENTS_BY_OPERATOR, Gradient
from ekiden.relay.op.prim_func_call import CallLoweredAttrs
from ekiden.relay.transform.differentiation.adjoint_values import (
    AdjointConversion,
    AdjointConverter,
)
from ekiden.relay.transform.differentiation.first_order_gradient import (
    differentiate_graph,
    inline_to_graph,
    is_graph,
)
from ekiden.relay.transform.differentiation.higher_order_gradient import FunctionLifter
from ekiden.relay.transform.differentiation.lifted_types import (
    BACK_PROPAGATOR_TYPE,
    LIFTED_NAME_SUFFIX,
    TAPE_TYPE,
    UNIT_TYPE,
    LiftedTypes,
    is_float_tensor,
)
from ekiden.relay.transform.differentiation.segment_gradient import accumulate_gradient
from ekiden.relay.transform.fusion.defuse_ops import DefuseOps
from ekiden.relay.transform.language.eta_expand import EtaExpand
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.let_chains import LetBinding, build_lets
from ekiden.relay.transform.language.scope_tree import map_functions
from ekiden.relay.transform.language.unique_names import unique_name
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import DifferentiationError
from ekiden.tir.stmt import PrimFunc

GRADIENT_MODES = ("higher_order", "first_order")
PRIM_FUNC_GRADIENT_ATTR = "gradient"
"""Attribute of a PrimFunc that names its gradient function."""


def gradient(
    expr: Function | GlobalVar, mod: IRModule | None = None, mode: str = "higher_order"
) -> Function:
    """Return the function (params) -> (result, (gradient of each parameter,)).

    The gradient is that of the sum of the result's elements, or of the first result's where it is
    a tuple. The gradient of a parameter has the parameter's type: of data, data of the same shape
    that holds gradients; tensors of integers get zeros.

    Args:
        expr: The function, or its name in `mod`.
        mod: The module with what the function calls. Where these functions or data types need
            lifted forms, they are added to it, under names that end in "_grad".
        mode: "higher_order" differentiates all of the language; "first_order" only what is a graph
            of operators, tuples and If once the functions that it calls are inlined.

    Raises:
        DifferentiationError: For an operator or loop program without a gradient, naming it; for a
            parameter or result that is or holds a function or a reference; for what is no graph
            where mode is "first_order".
    """
    if mode not in GRADIENT_MODES:
        raise DifferentiationError(
            f"gradient: mode must be one of {', '.join(GRADIENT_MODES)}, got {mode!r}"
        )
    module = IRModule() if mod is None else mod
    function = module[expr] if isinstance(expr, GlobalVar) else expr
    assert isinstance(function, Function)
    result, beside = _differentiate(function, module, mode)
    if mod is not None:
        mod.type_definitions.update(beside.type_definitions)
        for name, added in beside.functions.items():
            mod[name] = added
    return result


def _differentiate(function: Function, module: IRModule, mode: str) -> tuple[Function, IRModule]:
    """Return (gradient function, helper functions and types that are not in the module yet)."""
    rules = _GradientRules(module)
    # Without recursion, closures and references the program is a plain graph.
    flat = inline_to_graph(function, module)
    # A graph needs no tape: its gradient is again a graph that fuses and plans its memory.
    if flat is not None and is_graph(flat.body, rules.is_kernel):
        return _infer_gradient_types(differentiate_graph(flat, rules), module, IRModule())
    if mode == "first_order":
        raise DifferentiationError(
            "gradient: the function is no graph of operators, tuples and If when what it calls is "
            'inlined; expected mode "higher_order"'
        )
    return _differentiate_with_tape(function, module, rules)


def _infer_gradient_types(
    function: Function, module: IRModule, beside: IRModule
) -> tuple[Function, IRModule]:
    """Infer the types of a gradient function and of its helper functions, which are not in the
    module yet.
    """
    used_names = {g.name_hint for g in (*module.functions, *beside.functions)}
    name = GlobalVar(unique_name("gradient of this", used_names))
    functions: dict[GlobalVar | str, BaseFunc] = {name: function}
    functions.update(module.functions.items())
    functions.update(beside.functions.items())
    combined = IRModule(functions, {**module.type_definitions, **beside.type_definitions})
    typed = InferType()(combined)
    result = typed[name]
    assert isinstance(result, Function)
    added: dict[GlobalVar | str, BaseFunc] = {g: typed[g] for g in beside.functions}
    return result, IRModule(added, beside.type_definitions)


class _GradientRules:
    """Gradient rules of operators and of a module's loop programs."""

    def __init__(self, module: IRModule) -> None:
        self.module = module

    def is_kernel(self, callee: RelayExpr) -> bool:
        """Return whether an expression is the name of a loop program."""
        return isinstance(callee, GlobalVar) and isinstance(
            self.module.functions.get(callee), PrimFunc
        )

    def __call__(self, call: Call) -> Gradient | None:
        """Return the gradient rule of a call's operator or loop program, or None where it
        has none.
        """
        if isinstance(call.attrs, CallLoweredAttrs):
            return self._prim_func_gradient(call.attrs.func, call.attrs.func.name)
        if isinstance(call.op, Op):
            return GRADIENTS_BY_OPERATOR.get(call.op.name)
        assert isinstance(call.op, GlobalVar)
        func = self.module[call.op]
        assert isinstance(func, PrimFunc)
        return self._prim_func_gradient(func, call.op.name_hint)

    def _prim_func_gradient(self, func: PrimFunc, name: str) -> Gradient | None:
        named = (func.attrs or {}).get(PRIM_FUNC_GRADIENT_ATTR)
        if named is None:
            return None
        # The attribute is text from the user's program, so it may name a missing function.
        if str(named) not in self.module:
            raise DifferentiationError(
                f"gradient: the gradient of the loop program @{name} is @{named}, which the "
                "module does not have"
            )
        callee = self.module.get_global_var(str(named))

        def call_gradient(call: Call, grad: RelayExpr) -> Sequence[RelayExpr | None]:
            """Call the named gradient function on the arguments and output gradients; it returns
            one gradient per float argument.
            """
            is_lowered = isinstance(call.attrs, CallLoweredAttrs)
            args = call.args[0].fields if is_lowered else call.args  # type: ignore[attr-defined]
            grads = grad.fields if isinstance(grad, Tuple) else (grad,)
            floats = [i for i, a in enumerate(args) if is_float_tensor(a.checked_type)]
            gradients = Call(callee, (*args, *grads))
            by_argument: list[RelayExpr | None] = [None] * len(args)
            for position, index in enumerate(floats):
                by_argument[index] = (
                    gradients if len(floats) == 1 else TupleGetItem(gradients, position)
                )
            if not is_lowered:
                return by_argument
            pairs = zip(by_argument, args, strict=True)
            return [Tuple(tuple(op.zeros_like(a) if p is None else p for p, a in pairs))]

        return call_gradient


_NORMALIZE_PASSES = Sequential(
    (InferType(), EtaExpand(), InferType(), DefuseOps(), InferType()), "Prepared"
)
"""Passes that eta-expand constructors and defuse functions before differentiation."""


# Programs with a tape


def _differentiate_with_tape(
    function: Function, module: IRModule, rules: _GradientRules
) -> tuple[Function, IRModule]:
    used_names = {g.name_hint for g in module.functions}
    placeholder = GlobalVar(unique_name("gradient of this", used_names))
    # Eta expansion removes constructors used as values; defusion exposes the operators that have
    # rules.
    typed = _NORMALIZE_PASSES(module.with_function(placeholder, function))
    root = typed[placeholder]
    assert isinstance(root, Function)
    types = LiftedTypes(typed)
    reached = _reachable_functions(typed, root)
    # Names come first, because the functions may be mutually recursive.
    names = {
        g: GlobalVar(unique_name(g.name_hint + LIFTED_NAME_SUFFIX, used_names)) for g in reached
    }
    added: dict[GlobalVar | str, BaseFunc] = {}
    for name, beside in names.items():
        callee = typed[name]
        assert isinstance(callee, Function)
        added[beside] = FunctionLifter(types, names, rules, rules.is_kernel).lift(callee)
    lifted = FunctionLifter(types, names, rules, rules.is_kernel).lift(root)
    converter = AdjointConverter(types, used_names)
    plain_function = _wrap_lifted_function(root, lifted, converter)
    added.update(converter.functions.items())
    return _infer_gradient_types(plain_function, module, IRModule(added, dict(types.data)))


def _reachable_functions(module: IRModule, root: Function) -> list[GlobalVar]:
    """Return the Relay functions that a function calls, transitively. Raises DifferentiationError
    for a function that the module does not have.
    """
    reached: dict[GlobalVar, None] = {}
    work = [root]
    while work:
        for node in post_order(work.pop(), into_functions=True):
            if not isinstance(node, GlobalVar) or node in reached:
                continue
            callee = module.functions.get(node)
            if callee is None:
                raise DifferentiationError(
                    f"gradient: '{node.name_hint}', which the function calls, is no function of "
                    "the module; pass the module that the function is from"
                )
            if isinstance(callee, Function):
                reached[node] = None
                work.append(callee)
    return list(reached)


def _wrap_lifted_function(
    function: Function, lifted: Function, converter: AdjointConverter
) -> Function:
    """Wrap a lifted function: lift the arguments, run it forward, then run its tape backward."""
    types = converter.types
    params = tuple(Var(p.name_hint, p.checked_type, span=p.span) for p in function.params)
    whats = [f"parameter %{p.name_hint}" for p in params]
    result_kind = function.body.checked_type
    tape, result, callee = Var("tape", TAPE_TYPE), Var("result"), Var("lifted")
    wholes = [Var(f"lifted_{p.name_hint}", types.lift(p.checked_type)) for p in function.params]
    steps: list[LetBinding] = [(tape, RefCreate(Function((), Tuple(()), UNIT_TYPE)))]
    for lifted_param, param, old, what in zip(wholes, params, function.params, whats, strict=True):
        kind = old.checked_type
        steps.append(
            (lifted_param, converter.convert(AdjointConversion.LIFT, param, kind, what, {}))
        )
    steps.append((callee, lifted))
    steps.append((result, Call(callee, (*wholes, tape))))
    steps.extend(_seed_bindings(result, result_kind, types))
    # A closure of its own: as its tail call, the tape runs in constant stack.
    steps.append((Var("_"), Call(Function((), _run_tape(tape), UNIT_TYPE), ())))
    plain = converter.convert(AdjointConversion.PLAIN, result, result_kind, "the result", {})
    grads = tuple(
        converter.convert(AdjointConversion.GRADIENTS, lifted_value, old.checked_type, what, {})
        for lifted_value, old, what in zip(wholes, function.params, whats, strict=True)
    )
    body = build_lets(steps, Tuple((plain, Tuple(grads))))
    return Function(params, body, None, function.type_params, function.attrs, span=function.span)


def _run_tape(tape: Var) -> RelayExpr:
    """Run the tape, the composed back-propagator, and empty it. As a tail call, so that each
    back-propagator is freed once it has run.
    """
    run = Var("run", BACK_PROPAGATOR_TYPE)
    stop = Function((), Tuple(()), UNIT_TYPE)
    return build_lets([(run, RefRead(tape)), (Var("_"), RefWrite(tape, stop))], Call(run, ()))


def _seed_bindings(result: RelayExpr, kind: Type, types: LiftedTypes) -> list[LetBinding]:
    """Return the bindings that seed the adjoint of the (first) result with ones."""
    while isinstance(kind, TupleType) and kind.fields:
        result, kind = TupleGetItem(result, 0), kind.fields[0]
    if not isinstance(kind, TensorType):
        raise DifferentiationError(
            f"gradient: the result must be a tensor, got {format_type(kind)}"
        )
    if not is_float_tensor(kind):
        return []
    ones = Var("ones", kind)
    value = TupleGetItem(result, 0)
    return [(ones, op.ones_like(value)),
            (Var("_"), accumulate_gradient(types, TupleGetItem(result, 1), ones))]  # fmt: skip


@module_pass(name="FirstOrderGradient", required=(InferType(),))
def _first_order_gradient(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lambda f: _differentiate(f, module, "first_order")[0])


def FirstOrderGradient() -> Pass:  # noqa: N802
    """Return a pass that replaces every function by its first-order gradient (see `gradient`)."""
    return _first_order_gradient
