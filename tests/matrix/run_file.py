"""Runs an artifact in a process of its own, without the compiler: `python run_file.py TASK`.

TASK is a pickle of (path, (whether it is a graph, number of states), calls, first state); the
results are written beside it, as lists of tensors in order.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


class Blocker:
    """Refuses to import what only the compiler needs."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ImportError for modules of the compiler."""
        if name.split(".")[0] in ("llvmlite", "onnx"):
            raise ImportError(f"{name} must not be imported")


def main(task: Path) -> None:
    """Run the calls of a task."""
    sys.meta_path.insert(0, Blocker())  # type: ignore[arg-type]
    import numpy as np

    import ekiden
    from ekiden.contrib.graph_executor import GraphModule

    def value(plain: Any) -> Any:  # noqa: ANN401
        if not isinstance(plain, tuple):
            return plain
        rows = [plain]
        while rows[-1][1]:
            rows.append(rows[-1][1][1])
        made = ekiden.runtime.ADT(rows[-1][0], ())
        for tag, (item, _) in reversed(rows[:-1]):
            made = ekiden.runtime.ADT(tag, (ekiden.runtime.tensor(item), made))
        return made

    path, (is_graph, count), calls, first = pickle.loads(task.read_bytes())
    states = [first] * count
    if is_graph:
        module = ekiden.runtime.load_module(path)
        graph = GraphModule(module["default"](*module["get_executable"]().devices))

    else:
        exe = ekiden.load(path)
    results = []
    for args in calls:
        if is_graph:
            for index, arg in enumerate([*args, *states]):
                graph.set_input(index, arg)
            graph.run()
            many = range(graph.get_num_outputs())
            outputs = [np.array(graph.get_output(i).numpy()) for i in many]
            outputs, states = outputs[: len(outputs) - count], outputs[len(outputs) - count :]
            results.append(outputs)
        else:
            results.append(leaves(exe(*map(value, args)), ekiden, np))
    task.with_suffix(".results").write_bytes(pickle.dumps(results))


def leaves(result: Any, ekiden: Any, np: Any) -> list[Any]:  # noqa: ANN401
    """Return the tensors of a result in order, each tag but 0 before its fields."""
    found, work = [], [result]
    while work:
        item = work.pop()
        if isinstance(item, tuple):
            if isinstance(item, ekiden.runtime.ADT) and item.tag:
                found.append(np.asarray(item.tag))
            work.extend(reversed(item))
        else:
            found.append(np.array(item.numpy()))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
