"""Control flow of TensorFlow: functions, branches and loops of versions 1 and 2.

Version 2 has nodes that call functions. Version 1 has Switch, Merge and the nodes of a loop (see
ekiden.frontend.tensorflow.graph_analysis); its Merge, or Exit, stands for the whole construct.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common.conditional import emit_if, emit_switch
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.rank_polymorphic_loop import build_loop
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.tensorflow.graph_analysis import SWITCH_OPS, LoopFrame, data_inputs
from ekiden.frontend.tensorflow.node import TensorflowNode, TensorflowRow
from ekiden.relay import op
from ekiden.relay.expr import const

SubgraphImport = Callable[[Sequence[Value]], list[Value]]


def _emit_condition(node: TensorflowNode, index: int = 0) -> Value:
    """Return a value as bool: whether it differs from zero."""
    value = node.value(index)
    if value.type.dtype == "bool":
        return value
    if value.array is not None:
        return constant_value(np.asarray(value.array != 0))
    expr = node.scope.expr(value)
    nonzero = op.not_equal(expr, const(0, value.type.dtype))
    return node.as_value(node.scope.attach_span(nonzero))


# Version 2.


def _call(node: TensorflowNode) -> list[Value]:
    return node.graph.import_function(
        node.function_attribute("f"), [node.value(i) for i in range(len(node.inputs))]
    )


def _if(node: TensorflowNode) -> list[Value]:
    inputs = [node.value(i) for i in range(1, len(node.inputs))]
    # Control flow of version 2 keeps its branches as functions of the library.
    names = [node.function_attribute("then_branch"), node.function_attribute("else_branch")]
    runs = [partial(node.graph.import_function, n, inputs) for n in names]
    return emit_if(node, _emit_condition(node), runs, ("the true branch", "the false branch"))


def _case(node: TensorflowNode) -> list[Value]:
    """Convert Case; an index out of range selects the last branch."""
    inputs = [node.value(i) for i in range(1, len(node.inputs))]
    names = node.function_list_attribute("branches")
    runs = [partial(node.graph.import_function, n, inputs) for n in names]
    return emit_switch(node, node.value(0), runs)


def _while(node: TensorflowNode) -> list[Value]:
    start = [node.value(i) for i in range(len(node.inputs))]
    test, body = node.function_attribute("cond"), node.function_attribute("body")
    plan = node.graph.shared.analyse_graph(body)
    parameters = [i.tensor for i in plan.graph.inputs]
    results = [plan.skip_identities(t) for _, t in plan.graph.outputs]
    # A variable that the body returns unchanged is loop invariant and need not be carried.
    moving = [i for i, (a, b) in enumerate(zip(parameters, results, strict=True)) if a != b]
    names = [plan.graph.inputs[i].name for i in moving]
    return _emit_loop(
        node, start, moving, names,
        lambda values: node.graph.import_function(test, values),
        lambda values: node.graph.import_function(body, values),
    )  # fmt: skip


def _emit_loop(
    node: TensorflowNode,
    start: Sequence[Value],
    moving: Sequence[int],
    names: Sequence[str],
    test: SubgraphImport,
    body: SubgraphImport,
) -> list[Value]:
    """Emit a loop that carries the values numbered `moving`; the others are loop invariant."""

    def with_invariants(values: Sequence[Value]) -> list[Value]:
        held = dict(zip(moving, values, strict=True))
        return [held.get(i, v) for i, v in enumerate(start)]

    def loop_body(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Import one iteration: the body, then the loop condition on its results."""
        outputs = body(with_invariants(values))
        after = [outputs[i] for i in moving]
        (again,) = test(with_invariants(after))
        return Iteration(again, after)

    (go,) = test(start)
    # A loop whose test is false for constants never runs: no loop is emitted.
    if go.array is not None and not go.array.item():
        return list(start)
    last, _, _ = build_loop(Loop(node, names, [start[i] for i in moving], None, go, loop_body))
    return with_invariants(last)


# Version 1.


def _identity(node: TensorflowNode) -> Value:
    return node.value(0)


def _switch(node: TensorflowNode) -> list[Value]:
    """Convert Switch: bind the data to the output that the condition selects; the other output
    stays unbound.
    """
    condition = node.graph.plan.skip_identities(data_inputs(node.proto)[1])
    side = node.graph.decided_switch_output(condition)
    if side is None:
        constant_condition = node.value(1).array
        # A dead branch without a Merge can be dropped only where the condition is known.
        if constant_condition is None:
            node.reject("no Merge ends what it begins")
        side = int(constant_condition.item())
    node.graph.env.bind({f"{node.proto.name}:{side}": node.value(0)})
    return []


def _merge(node: TensorflowNode) -> list[Value]:
    """Convert Merge to a conditional whose branches import each side with the condition decided."""
    plan = node.graph.plan
    if plan.is_loop_merge(node.proto):
        node.reject("no Exit ends its loop")
    condition, sides = plan.merge_sides(node.proto)

    def import_branch(side: int) -> list[Value]:
        """Import one side in a subgraph where the condition is decided."""
        inner = node.graph.make_subgraph_importer()
        inner.taken[condition] = side
        return inner.import_tensors([sides[side]])

    runs = [partial(import_branch, s) for s in range(len(sides))]
    # Output 1 of a Switch is the true side, so the runs are in reverse order.
    if node.dtype(0) == "bool":
        names = ("the true branch", "the false branch")
        (chosen,) = emit_if(node, _emit_condition(node), [runs[1], runs[0]], names)
    else:
        (chosen,) = emit_switch(node, node.value(0), runs)
    node.graph.env.bind({f"{node.proto.name}:0": chosen})
    return []


def _exit(node: TensorflowNode) -> Value:
    """Convert the whole loop that ends at this Exit; its other exits are bound as well."""
    graph, frame = node.graph, node.graph.plan.loop_frame(node.proto)
    variables = frame.variables
    start = [node.value(i) for i in range(len(variables))]
    moving = [i for i, v in enumerate(variables) if _is_loop_variant(node, frame, i)]

    def test(values: Sequence[Value]) -> list[Value]:
        """Import the loop condition with the variables bound to their Merges."""
        inner = graph.make_subgraph_importer()
        inner.env.bind({f"{v.merge_node}:0": x for v, x in zip(variables, values, strict=True)})
        return inner.import_tensors([frame.condition])

    def body(values: Sequence[Value]) -> list[Value]:
        """Import one iteration; each variable is bound to its Merge and to output 1 of its
        Switch.
        """
        inner = graph.make_subgraph_importer()
        for variable, value in zip(variables, values, strict=True):
            # Output 1 of a loop's Switch feeds the body, output 0 its Exit.
            inner.env.bind({f"{variable.merge_node}:0": value, f"{variable.switch_node}:1": value})
        return inner.import_tensors([v.next_iteration_tensor for v in variables])

    names = [variables[i].merge_node for i in moving]
    last = _emit_loop(node, start, moving, names, test, body)
    for variable, value in zip(variables, last, strict=True):
        if variable.exit_node:
            graph.env.bind({f"{variable.exit_node}:0": value})
    return graph.env[f"{node.proto.name}:0"]


def _is_loop_variant(node: TensorflowNode, frame: LoopFrame, index: int) -> bool:
    variable = frame.variables[index]
    return (
        node.graph.plan.skip_identities(variable.next_iteration_tensor)
        != f"{variable.switch_node}:1"
    )


def _ignore_node(node: TensorflowNode) -> list[Value]:
    return []


def _reject_variable(node: TensorflowNode) -> Value:
    node.reject("the graph holds a variable: freeze it first, or give the SavedModel")


# fmt: off
ROWS = (
    *(TensorflowRow(name, _call) for name in ("PartitionedCall", "StatefulPartitionedCall")),
    *(TensorflowRow(name, _if) for name in ("If", "StatelessIf")),
    *(TensorflowRow(name, _case) for name in ("Case", "StatelessCase")),
    *(TensorflowRow(name, _while) for name in ("While", "StatelessWhile")),
    *(TensorflowRow(name, _switch, binds_outputs=True) for name in SWITCH_OPS),
    *(TensorflowRow(name, _merge, binds_outputs=True) for name in ("Merge", "RefMerge")),
    *(TensorflowRow(name, _exit) for name in ("Exit", "RefExit")),
    *(TensorflowRow(name, _identity) for name in (
        "Enter", "RefEnter", "LoopCond", "NextIteration", "RefNextIteration", "Identity",
        "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "PlaceholderWithDefault",
        "EnsureShape")),
    *(TensorflowRow(name, _reject_variable) for name in ("VarHandleOp", "VariableV2", "Variable",
                                                         "ReadVariableOp")),
    TensorflowRow("NoOp",   _ignore_node),
    TensorflowRow("Assert", _ignore_node),
)
# fmt: on
