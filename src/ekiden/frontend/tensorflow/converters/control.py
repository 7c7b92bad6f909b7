"""Functions, choices and loops, of both kinds of control flow.

Version 2 has nodes that call functions. Version 1 has Switch, Merge and the nodes of a loop (see
ekiden.frontend.tensorflow.plan), of which the Merge, or the Exit, stands for the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common.choice import choose, choose_at
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.ranked_loop import built
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.tensorflow.node import Node, Row
from ekiden.frontend.tensorflow.plan import SWITCHES, Frame, data_inputs
from ekiden.relay import op
from ekiden.relay.expr import const

Run = Callable[[Sequence[Value]], list[Value]]


def _condition(node: Node, index: int = 0) -> Value:
    """Whether a value is not zero."""
    found = node.value(index)
    if found.type.dtype == "bool":
        return found
    if found.array is not None:
        return constant(np.asarray(found.array != 0))
    expr = node.scope.expr(found)
    made = op.not_equal(expr, const(0, found.type.dtype))
    return node.value_of(node.scope.spanned(made))


# Version 2.


def _call(node: Node) -> list[Value]:
    return node.graph.call(node.function("f"), [node.value(i) for i in range(len(node.inputs))])


def _if(node: Node) -> list[Value]:
    inputs = [node.value(i) for i in range(1, len(node.inputs))]
    names = [node.function("then_branch"), node.function("else_branch")]
    runs = [partial(node.graph.call, n, inputs) for n in names]
    return choose(node, _condition(node), runs, ("the true branch", "the false branch"))


def _case(node: Node) -> list[Value]:
    """The last branch for any other index."""
    inputs = [node.value(i) for i in range(1, len(node.inputs))]
    names = node.functions("branches")
    runs = [partial(node.graph.call, n, inputs) for n in names]
    return choose_at(node, node.value(0), runs)


def _while(node: Node) -> list[Value]:
    start = [node.value(i) for i in range(len(node.inputs))]
    test, body = node.function("cond"), node.function("body")
    plan = node.graph.shared.plan(body)
    given = [i.tensor for i in plan.graph.inputs]
    results = [plan.source(t) for _, t in plan.graph.outputs]
    moving = [i for i, (a, b) in enumerate(zip(given, results, strict=True)) if a != b]
    names = [plan.graph.inputs[i].name for i in moving]
    return _loop(
        node, start, moving, names,
        lambda values: node.graph.call(test, values),
        lambda values: node.graph.call(body, values),
    )  # fmt: skip


def _loop(
    node: Node, start: Sequence[Value], moving: Sequence[int], names: Sequence[str], test: Run,
    body: Run,
) -> list[Value]:  # fmt: skip
    """A loop over values, of which those at `moving` are carried and the others stay."""

    def whole(values: Sequence[Value]) -> list[Value]:
        held = dict(zip(moving, values, strict=True))
        return [held.get(i, v) for i, v in enumerate(start)]

    def step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """One turn: the body's values, and whether there is another, which the test says of
        those."""
        found = body(whole(values))
        after = [found[i] for i in moving]
        (again,) = test(whole(after))
        return Iteration(again, after)

    (go,) = test(start)
    if go.array is not None and not go.array.item():
        return list(start)
    last, _, _ = built(Loop(node, names, [start[i] for i in moving], None, go, step))
    return whole(last)


# Version 1.


def _identity(node: Node) -> Value:
    return node.value(0)


def _switch(node: Node) -> list[Value]:
    """The data on the side that is taken; nothing on the other."""
    condition = node.graph.plan.source(data_inputs(node.proto)[1])
    side = node.graph.decided(condition)
    if side is None:
        found = node.value(1).array
        if found is None:
            node.unsupported("no Merge ends what it begins")
        side = int(found.item())
    node.graph.env.put({f"{node.proto.name}:{side}": node.value(0)})
    return []


def _merge(node: Node) -> list[Value]:
    """All sides of a choice, each imported where the condition is decided."""
    plan = node.graph.plan
    if plan.is_loop(node.proto):
        node.unsupported("no Exit ends its loop")
    condition, sides = plan.choice(node.proto)

    def run(side: int) -> list[Value]:
        """The values of one side, imported in a graph of its own where the condition is decided."""
        inner = node.graph.inside()
        inner.taken[condition] = side
        return inner.values([sides[side]])

    runs = [partial(run, s) for s in range(len(sides))]
    if node.dtype(0) == "bool":
        names = ("the true branch", "the false branch")
        (made,) = choose(node, _condition(node), [runs[1], runs[0]], names)
    else:
        (made,) = choose_at(node, node.value(0), runs)
    node.graph.env.put({f"{node.proto.name}:0": made})
    return []


def _exit(node: Node) -> Value:
    """The whole loop; the other exits of it are made as well."""
    graph, frame = node.graph, node.graph.plan.frame(node.proto)
    variables = frame.variables
    start = [node.value(i) for i in range(len(variables))]
    moving = [i for i, v in enumerate(variables) if _is_moving(node, frame, i)]

    def test(values: Sequence[Value]) -> list[Value]:
        """Whether there is another turn, with the variables at their merges."""
        inner = graph.inside()
        inner.env.put({f"{v.merge}:0": x for v, x in zip(variables, values, strict=True)})
        return inner.values([frame.condition])

    def body(values: Sequence[Value]) -> list[Value]:
        """The variables after a turn: each is seen at its merge, and behind the switch's side 1."""
        inner = graph.inside()
        for variable, value in zip(variables, values, strict=True):
            inner.env.put({f"{variable.merge}:0": value, f"{variable.switch}:1": value})
        return inner.values([v.after for v in variables])

    names = [variables[i].merge for i in moving]
    last = _loop(node, start, moving, names, test, body)
    for variable, value in zip(variables, last, strict=True):
        if variable.exit:
            graph.env.put({f"{variable.exit}:0": value})
    return graph.env[f"{node.proto.name}:0"]


def _is_moving(node: Node, frame: Frame, index: int) -> bool:
    variable = frame.variables[index]
    return node.graph.plan.source(variable.after) != f"{variable.switch}:1"


def _skipped(node: Node) -> list[Value]:
    return []


def _not_frozen(node: Node) -> Value:
    node.unsupported("the graph holds a variable: freeze it first, or give the SavedModel")


# fmt: off
ROWS = (
    *(Row(name, _call) for name in ("PartitionedCall", "StatefulPartitionedCall")),
    *(Row(name, _if) for name in ("If", "StatelessIf")),
    *(Row(name, _case) for name in ("Case", "StatelessCase")),
    *(Row(name, _while) for name in ("While", "StatelessWhile")),
    *(Row(name, _switch, places=True) for name in SWITCHES),
    *(Row(name, _merge, places=True) for name in ("Merge", "RefMerge")),
    *(Row(name, _exit) for name in ("Exit", "RefExit")),
    *(Row(name, _identity) for name in (
        "Enter", "RefEnter", "LoopCond", "NextIteration", "RefNextIteration", "Identity",
        "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "PlaceholderWithDefault",
        "EnsureShape")),
    *(Row(name, _not_frozen) for name in ("VarHandleOp", "VariableV2", "Variable",
                                          "ReadVariableOp")),
    Row("NoOp",   _skipped),
    Row("Assert", _skipped),
)
# fmt: on
