r"""Control flow analysis of a graph before its import: outputs read, and the loops and choices of
version 1.

    Enter -> Merge -> Switch --true--> body -> NextIteration -> Merge
               |         \\-false-> Exit
               \\-> condition -> LoopCond -> Switch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.tensorflow.load import Proto, TensorflowGraph, normalize_tensor_name
from ekiden.runtime.errors import ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LoopVariable:
    """Variable that a loop carries, by the names of its tensors and nodes.

    initial_tensor: the tensor before the loop; merge_node, switch_node: the nodes that hold it;
    next_iteration_tensor: the tensor that the next iteration begins with; exit_node: the node after
    the loop, if any.
    """

    initial_tensor: str
    merge_node: str
    switch_node: str
    next_iteration_tensor: str
    exit_node: str


@dataclass(frozen=True, slots=True)
class LoopFrame:
    """While loop of control flow version 1 (TensorFlow's frame): the tensor of its condition, and
    as invariants the tensors that the body reads from outside.
    """

    variables: Sequence[LoopVariable]
    condition: str
    invariants: Sequence[str]


def producer_name(tensor: str) -> str:
    """Return the name of the node that produces a tensor."""
    return tensor.rpartition(":")[0]


def data_inputs(node: Proto) -> list[str]:
    """Return the tensors that a node reads, without control dependencies."""
    return [normalize_tensor_name(i) for i in node.input if not i.startswith("^")]


class GraphAnalysis:
    """Control-flow analysis of one GraphDef graph."""

    def __init__(self, graph: TensorflowGraph) -> None:
        self.graph = graph
        read = [t for n in graph.nodes.values() for t in data_inputs(n)]
        self.used = {*read, *(t for _, t in graph.outputs)}
        self._outputs: dict[str, list[str]] = {}
        for tensor in self.used:
            name, _, index = tensor.rpartition(":")
            # Bounds the list below: an untrusted model could name output 10**9.
            if not index.isdecimal() or len(index) > 4:
                raise ImportModelError(f"a node takes {tensor!r}, which is no tensor's name")
            held = self._outputs.setdefault(name, [])
            held += [""] * (int(index) + 1 - len(held))
            held[int(index)] = tensor
        self._frames: dict[str, LoopFrame] = {}

    def read_outputs(self, name: str) -> list[str]:
        """Return the outputs of a node that are read, "" for the others."""
        return self._outputs.get(name, [])

    def find_node(self, name: str) -> Proto:
        """Return a node by name; raise Unsupported without one."""
        if name not in self.graph.nodes:
            raise Unsupported(f"the graph has no node {name!r}")
        return self.graph.nodes[name]

    def skip_identities(self, tensor: str) -> str:
        """Return the tensor at the head of a chain of Identity nodes."""
        nodes = self.graph.nodes
        while producer_name(tensor) in nodes and nodes[producer_name(tensor)].op == "Identity":
            tensor = data_inputs(nodes[producer_name(tensor)])[0]
        return tensor

    def upstream_tensors(self, node: Proto) -> list[str]:
        """Return all tensors that a node depends on, transitively."""
        waiting, visited = data_inputs(node), dict[str, None]()
        while waiting:
            tensor = waiting.pop()
            if tensor not in visited:
                visited[tensor] = None
                maker = self.graph.nodes.get(producer_name(tensor))
                waiting += [] if maker is None else data_inputs(maker)
        return list(visited)

    def is_loop_merge(self, merge: Proto) -> bool:
        """Return whether a Merge belongs to a loop: one input comes from a NextIteration."""
        makers = [self.find_node(producer_name(t)).op for t in data_inputs(merge)]
        return any(op in _NEXT_ITERATION_OPS for op in makers)

    # Loops.

    def loop_frame(self, exit_: Proto) -> LoopFrame:
        """Return the loop that an Exit ends. Raises Unsupported for an irregular one."""
        switch = self._producer(exit_, 0, ("Switch", "RefSwitch"))
        enter = self._enter_node(self._producer(switch, 0, ("Merge", "RefMerge")))
        name = enter.attr["frame_name"].s.decode()
        if name not in self._frames:
            self._frames[name] = self._read_frame(name, switch)
        return self._frames[name]

    def _producer(self, node: Proto, index: int, ops: Sequence[str]) -> Proto:
        producer = self.find_node(producer_name(data_inputs(node)[index]))
        if producer.op not in ops:
            raise Unsupported(f"expected {ops[0]} before {node.name!r}, got {producer.op}")
        return producer

    def _enter_node(self, merge: Proto) -> Proto:
        return self._producer(merge, 0, ("Enter", "RefEnter"))

    def _read_frame(self, name: str, switch: Proto) -> LoopFrame:
        condition = data_inputs(self._producer(switch, 1, ("LoopCond",)))[0]
        nodes = self.graph.nodes.values()
        enters = {n.name for n in nodes if n.op in _ENTER_OPS and _frame_name(n) == name}
        invariants = [
            data_inputs(self.graph.nodes[e])[0]
            for e in enters
            if self.graph.nodes[e].attr["is_constant"].b
        ]
        # The loops of version 1 have no structure but their nodes: Enter -> Merge -> Switch ->
        # Exit.
        merges = {
            n.name: n
            for n in nodes
            if n.op in ("Merge", "RefMerge") and producer_name(data_inputs(n)[0]) in enters
        }
        switches = {
            producer_name(data_inputs(n)[0]): n.name
            for n in nodes
            if n.op in ("Switch", "RefSwitch") and producer_name(data_inputs(n)[0]) in merges
        }
        exits = {producer_name(data_inputs(n)[0]): n.name for n in nodes if n.op in _EXIT_OPS}
        variables = []
        for merge_name, merge in merges.items():
            start = data_inputs(self._enter_node(merge))[0]
            after = data_inputs(self._producer(merge, 1, _NEXT_ITERATION_OPS))[0]
            held = switches.get(merge_name, "")
            variables.append(LoopVariable(start, merge_name, held, after, exits.get(held, "")))
        return LoopFrame(variables, condition, sorted(invariants))

    # Choices.

    def merge_sides(self, merge: Proto) -> tuple[str, Mapping[int, str]]:
        """Return the condition of a Merge (the index, for a _SwitchN), and its input for each side.

        Raises Unsupported where its inputs come from no Switch, or from several conditions.
        """
        sides = [(*self._deciding_switch(i), i) for i in data_inputs(merge)]
        conditions, by_side = {s[0] for s in sides}, {s[1]: s[2] for s in sides}
        if len(conditions) != 1 or sorted(by_side) != list(range(len(sides))):
            raise Unsupported("its inputs must come from the sides of one condition")
        return sides[0][0], by_side

    def _deciding_switch(self, tensor: str) -> tuple[str, int]:
        """Return the condition, and the output of its Switch, that decides whether a tensor is
        live.
        """
        waiting, visited = [(tensor, 0)], set()
        while waiting:
            position, depth = waiting.pop(0)
            if (position, depth) in visited:
                continue
            visited.add((position, depth))
            name, _, output = position.rpartition(":")
            node = self.find_node(name)
            if node.op in SWITCH_OPS:
                if depth == 0:
                    return self.skip_identities(data_inputs(node)[1]), int(output)
                # A Switch below a nested Merge belongs to that inner choice: leave its level.
                waiting.append((data_inputs(node)[0], depth - 1))
                continue
            # Each Merge on the way back closes a nested choice: its Switch does not decide this
            # tensor.
            inner = depth + (node.op in ("Merge", "RefMerge"))
            if node.op in _EXIT_OPS:
                waiting += [(v.initial_tensor, depth) for v in self.loop_frame(node).variables]
                continue
            inputs = [normalize_tensor_name(i.lstrip("^")) for i in node.input]
            waiting += [(i, inner) for i in inputs]
        raise Unsupported(f"{tensor!r} comes from no Switch")


def _frame_name(node: Proto) -> str:
    return str(node.attr["frame_name"].s.decode())


SWITCH_OPS = ("Switch", "RefSwitch", "_SwitchN")
_NEXT_ITERATION_OPS = ("NextIteration", "RefNextIteration")
_ENTER_OPS = ("Enter", "RefEnter")
_EXIT_OPS = ("Exit", "RefExit")
