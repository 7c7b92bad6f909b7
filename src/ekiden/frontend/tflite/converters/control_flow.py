"""Control flow, calls, and variables that persist between runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ekiden.frontend.common.conditional import emit_if
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.rank_polymorphic_loop import build_loop
from ekiden.frontend.common.value import Value
from ekiden.frontend.tflite.node import QuantizedPolicy, Resource, TfliteNode, TfliteRow

CONVERTER_HANDLED = QuantizedPolicy.CONVERTER_HANDLED
_RESOURCE_DTYPES = ("resource",)


def _run_subgraph(
    node: TfliteNode, index: int, inputs: Sequence[Value], variable_names: Sequence[str]
) -> list[Value]:
    """Import a subgraph without its side effects; return its outputs, then the new values of these
    variables.
    """
    current = node.graph.shared.variables.now
    # Both branches of a conditional start from the same variables: a branch's assignments are
    # undone and returned.
    # Branches assign variables in place: their state is restored, and passed as results instead.
    before = dict(current)
    outputs = node.graph.subgraph_importer(index).import_body(inputs)
    after = [current[name] for name in variable_names]
    current.clear()
    current.update(before)
    return [*outputs, *after]


def _assign_variable_outputs(
    node: TfliteNode, variable_names: Sequence[str], values: Sequence[Value]
) -> list[Value]:
    """Assign the variables that follow a branch's outputs; return the outputs."""
    count = len(values) - len(variable_names)
    node.graph.shared.variables.now.update(zip(variable_names, values[count:], strict=True))
    return list(values[:count])


def _if(node: TfliteNode) -> list[Value]:
    inputs, variable_names = (
        [node.value(i) for i in range(1, len(node.inputs))],
        _variable_names(node),
    )
    indices = node.read_option("ThenSubgraphIndex"), node.read_option("ElseSubgraphIndex")
    runs = [partial(_run_subgraph, node, i, inputs, variable_names) for i in indices]
    return _assign_variable_outputs(
        node, variable_names, emit_if(node, node.value(0), runs, ("then", "else"))
    )


def _while(node: TfliteNode) -> list[Value]:
    """Convert WHILE; variables are carried like other values, resource handles are loop
    invariant.
    """
    test, body = node.read_option("CondSubgraphIndex"), node.read_option("BodySubgraphIndex")
    operands, variable_names = (
        [node.value(i) for i in range(len(node.inputs))],
        _variable_names(node),
    )
    current = node.graph.shared.variables.now
    carried_indices = [i for i, v in enumerate(operands) if not isinstance(v, Resource)]
    start = [*(operands[i] for i in carried_indices), *(current[name] for name in variable_names)]

    def bind_operands(values: Sequence[Value]) -> list[Value]:
        """Return a subgraph's inputs with the carried values in place; variables are assigned."""
        current.update(zip(variable_names, values[len(carried_indices) :], strict=True))
        carried = dict(zip(carried_indices, values, strict=False))
        return [carried.get(i, v) for i, v in enumerate(operands)]

    def loop_body(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration: carried values and variables, and the loop condition."""
        body_outputs = _run_subgraph(node, body, bind_operands(values), variable_names)
        after = [*(body_outputs[i] for i in carried_indices), *body_outputs[len(operands) :]]
        (again,) = _run_subgraph(node, test, bind_operands(after), ())
        return Iteration(again, after)

    before = dict(current)
    (go,) = _run_subgraph(node, test, operands, ())
    # A condition that is false at once runs no iteration, so no loop is emitted.
    if go.array is not None and not go.array.item():
        return operands
    inner = node.graph.subgraph_importer(body).input_names
    names = [*(inner[i] for i in carried_indices), *variable_names]
    last, _, _ = build_loop(Loop(node, names, start, None, go, loop_body))
    current.update(before)
    last_values = dict(zip(carried_indices, last, strict=False))
    tail = last[len(carried_indices) :]
    return _assign_variable_outputs(
        node, variable_names, [*(last_values.get(i, v) for i, v in enumerate(operands)), *tail]
    )


def _variable_names(node: TfliteNode) -> list[str]:
    """Return the names of the initialized variables, any of which a subgraph may assign."""
    return list(node.graph.shared.variables.now)


def _call_once(node: TfliteNode) -> list[Value]:
    """Convert CALL_ONCE: the assignments of its subgraph are the variables' initial values."""
    shared = node.graph.shared
    # Initial values are set once per program, not per run of a branch or body.
    if shared.is_nested:
        node.reject("it stands inside another graph")
    shared.variables.is_initial = True
    try:
        node.graph.subgraph_importer(node.read_option("InitSubgraphIndex")).import_body(())
    finally:
        shared.variables.is_initial = False
    return []


def _var_handle(node: TfliteNode) -> Value:
    names = [node.operation.options.Container(), node.operation.options.SharedName()]
    return Resource("/".join(n.decode() for n in names if n))


def _resource_name(node: TfliteNode) -> str:
    operand = node.value(0)
    if not isinstance(operand, Resource):
        node.reject(f"{node.ins[0]} is no variable")
    return operand.name


def _read_variable(node: TfliteNode) -> Value:
    return node.graph.shared.variables.read(_resource_name(node))


def _assign_variable(node: TfliteNode) -> list[Value]:
    node.graph.shared.variables.assign(_resource_name(node), node.value(1))
    return []


# fmt: off
ROWS = (
    TfliteRow("IF",              _if,        CONVERTER_HANDLED,
        extra_tensor_kinds=_RESOURCE_DTYPES),
    TfliteRow("WHILE",           _while,     CONVERTER_HANDLED,
        extra_tensor_kinds=_RESOURCE_DTYPES),
    TfliteRow("STABLEHLO_WHILE", _while,     CONVERTER_HANDLED,
        extra_tensor_kinds=_RESOURCE_DTYPES),
    TfliteRow("CALL_ONCE",       _call_once, CONVERTER_HANDLED),
    TfliteRow("VAR_HANDLE",      _var_handle,    CONVERTER_HANDLED,
        extra_tensor_kinds=_RESOURCE_DTYPES),
    TfliteRow("READ_VARIABLE",   _read_variable,      CONVERTER_HANDLED,
        extra_tensor_kinds=_RESOURCE_DTYPES),
    TfliteRow("ASSIGN_VARIABLE", _assign_variable,    CONVERTER_HANDLED,
        extra_tensor_kinds=_RESOURCE_DTYPES),
)
# fmt: on
