"""Runs artifacts in a process of its own, without the compiler: `python run_file.py FD`.

It answers tasks of (path of the artifact, whether it is a graph, number of states, calls, first
state) with the results of each call, as lists of tensors in order, or with the error as
(name of its class, message).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from helper_process import connection_of  # noqa: E402


class Blocker:
    """Refuses to import what only the compiler needs."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ImportError for modules of the compiler."""
        if name.split(".")[0] in ("llvmlite", "onnx"):
            raise ImportError(f"{name} must not be imported")


def main(descriptor: str) -> None:
    """Run the calls of tasks until there are none."""
    sys.meta_path.insert(0, Blocker())  # type: ignore[arg-type]
    connection = connection_of(descriptor)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: object = run(*task)
        except Exception as error:  # the process that asked decides which errors are right
            answer = type(error).__name__, str(error)
        connection.send(answer)


def run(path: str, is_graph: bool, count: int, calls: Any, first: Any) -> list[list[Any]]:  # noqa: ANN401
    """Return the results of each call of an artifact with `count` states."""
    import numpy as np

    import ekiden
    from ekiden.contrib.graph_executor import GraphModule

    if not is_graph:
        exe = ekiden.load(path)
        return [leaves(exe(*(value(arg, ekiden) for arg in args)), ekiden, np) for args in calls]
    module = ekiden.runtime.load_module(path)
    graph = GraphModule(module["default"](*module["get_executable"]().devices))
    states, results = [first] * count, []
    for args in calls:
        for index, arg in enumerate([*args, *states]):
            graph.set_input(index, arg)
        graph.run()
        many = range(graph.get_num_outputs())
        outputs = [np.array(graph.get_output(i).numpy()) for i in many]
        results.append(outputs[: len(outputs) - count])
        states = outputs[len(outputs) - count :]
    return results


def value(plain: Any, ekiden: Any) -> Any:  # noqa: ANN401
    """Return an argument; a list is made of nested (tag, fields)."""
    if not isinstance(plain, tuple):
        return plain
    rows = [plain]
    while rows[-1][1]:
        rows.append(rows[-1][1][1])
    constructed = ekiden.runtime.ADT(rows[-1][0], ())
    for tag, (item, _) in reversed(rows[:-1]):
        constructed = ekiden.runtime.ADT(tag, (ekiden.runtime.tensor(item), constructed))
    return constructed


def leaves(result: Any, ekiden: Any, np: Any) -> list[Any]:  # noqa: ANN401
    """Return the tensors of a result in order, each tag but 0 before its fields."""
    tensors, work = [], [result]
    while work:
        item = work.pop()
        if isinstance(item, tuple):
            if isinstance(item, ekiden.runtime.ADT) and item.tag:
                tensors.append(np.asarray(item.tag))
            work.extend(reversed(item))
        else:
            tensors.append(np.array(item.numpy()))
    return tensors


if __name__ == "__main__":
    main(sys.argv[1])
