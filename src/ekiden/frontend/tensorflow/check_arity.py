"""Validation of the argument counts that nodes declare, before TensorFlow reads them.

TensorFlow makes a name or a shape for each tensor that a node declares, also for the 2^31 inputs of
a node that has one: it takes minutes and all memory, and nothing can interrupt it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tensorflow.python.framework import op_def_registry

from ekiden.runtime.errors import ImportModelError

MAX_RESULTS = 1 << 16
"""Results of a node, at most: as many as a split of Relay's may have parts."""


def check_arity(nodes: Iterable[Any], label: str) -> None:
    """Raise ImportModelError for a node that declares more list inputs than it has, or more than
    MAX_RESULTS results.
    """
    for node in nodes:
        declared = op_def_registry.get(node.op)
        if declared is None:  # a function of the library
            continue
        # Control inputs ("^name") carry no data.
        data_inputs = sum(not name.startswith("^") for name in node.input)
        lists = ((declared.input_arg, data_inputs, "inputs"),
                 (declared.output_arg, MAX_RESULTS, "results"))  # fmt: skip
        for arguments, limit, what in lists:
            for argument in arguments:
                count = node.attr[argument.number_attr].i if argument.number_attr else 0
                if count > limit:
                    text = f"{node.op} {node.name!r}: {count} {what} declared, {limit} expected"
                    raise ImportModelError(f"import {label}: {text} at most")


def iter_all_nodes(graph: Any) -> Iterator[Any]:  # noqa: ANN401  # messages have no types
    """Yield the nodes of a GraphDef and of the functions of its library."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def
