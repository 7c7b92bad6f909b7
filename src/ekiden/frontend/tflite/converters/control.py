"""Choices, loops, calls, and variables that are kept between runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ekiden.frontend.common.choice import choose
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.ranked_loop import built
from ekiden.frontend.common.value import Value
from ekiden.frontend.tflite.node import Node, Quantized, Resource, Row

OWN = Quantized.OWN
_ANY = ("resource",)


def _run(node: Node, index: int, inputs: Sequence[Value], kept: Sequence[str]) -> list[Value]:
    """What a graph gives, and behind it these variables; they are as before for what follows."""
    now = node.graph.shared.variables.now
    before = dict(now)
    found = node.graph.inside(index).run(inputs)
    after = [now[name] for name in kept]
    now.clear()
    now.update(before)
    return [*found, *after]


def _keep(node: Node, kept: Sequence[str], found: Sequence[Value]) -> list[Value]:
    """The outputs, of these and of variables behind them, which have their values from here on."""
    count = len(found) - len(kept)
    node.graph.shared.variables.now.update(zip(kept, found[count:], strict=True))
    return list(found[:count])


def _if(node: Node) -> list[Value]:
    inputs, kept = [node.value(i) for i in range(1, len(node.inputs))], _changed(node)
    indices = node.option("ThenSubgraphIndex"), node.option("ElseSubgraphIndex")
    runs = [partial(_run, node, i, inputs, kept) for i in indices]
    return _keep(node, kept, choose(node, node.value(0), runs, ("then", "else")))


def _while(node: Node) -> list[Value]:
    """Variables are carried like other values; which variable an input is cannot change."""
    test, body = node.option("CondSubgraphIndex"), node.option("BodySubgraphIndex")
    given, kept = [node.value(i) for i in range(len(node.inputs))], _changed(node)
    now = node.graph.shared.variables.now
    places = [i for i, v in enumerate(given) if not isinstance(v, Resource)]
    start = [*(given[i] for i in places), *(now[name] for name in kept)]

    def inputs(values: Sequence[Value]) -> list[Value]:
        """A subgraph's inputs: carried values in their places, the given ones in the others;
        variables that are kept become the names' new values.
        """
        now.update(zip(kept, values[len(places) :], strict=True))
        carried = dict(zip(places, values, strict=False))
        return [carried.get(i, v) for i, v in enumerate(given)]

    def step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """One turn: carried values and variables, and whether there is another."""
        found = _run(node, body, inputs(values), kept)
        after = [*(found[i] for i in places), *found[len(given) :]]
        (again,) = _run(node, test, inputs(after), ())
        return Iteration(again, after)

    before = dict(now)
    (go,) = _run(node, test, given, ())
    if go.array is not None and not go.array.item():
        return given
    inner = node.graph.inside(body).names
    names = [*(inner[i] for i in places), *kept]
    last, _, _ = built(Loop(node, names, start, None, go, step))
    now.update(before)
    found = dict(zip(places, last, strict=False))
    tail = last[len(places) :]
    return _keep(node, kept, [*(found.get(i, v) for i, v in enumerate(given)), *tail])


def _changed(node: Node) -> list[str]:
    """The variables that have values here, which a graph may change."""
    return list(node.graph.shared.variables.now)


def _call_once(node: Node) -> list[Value]:
    """What a graph assigns is what variables begin with."""
    shared = node.graph.shared
    if shared.is_nested:
        node.unsupported("it stands inside another graph")
    shared.variables.is_initial = True
    try:
        node.graph.inside(node.option("InitSubgraphIndex")).run(())
    finally:
        shared.variables.is_initial = False
    return []


def _handle(node: Node) -> Value:
    names = [node.operation.options.Container(), node.operation.options.SharedName()]
    return Resource("/".join(n.decode() for n in names if n))


def _resource(node: Node) -> str:
    found = node.value(0)
    if not isinstance(found, Resource):
        node.unsupported(f"{node.ins[0]} is no variable")
    return found.name


def _read(node: Node) -> Value:
    return node.graph.shared.variables.read(_resource(node))


def _assign(node: Node) -> list[Value]:
    node.graph.shared.variables.assign(_resource(node), node.value(1))
    return []


# fmt: off
ROWS = (
    Row("IF",              _if,        OWN, dtypes=_ANY),
    Row("WHILE",           _while,     OWN, dtypes=_ANY),
    Row("STABLEHLO_WHILE", _while,     OWN, dtypes=_ANY),
    Row("CALL_ONCE",       _call_once, OWN),
    Row("VAR_HANDLE",      _handle,    OWN, dtypes=_ANY),
    Row("READ_VARIABLE",   _read,      OWN, dtypes=_ANY),
    Row("ASSIGN_VARIABLE", _assign,    OWN, dtypes=_ANY),
)
# fmt: on
