"""One graph of a model, the main one or one that an operator runs: the walk over its operators."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common import arithmetic as rules
from ekiden.frontend.common.main import Main
from ekiden.frontend.common.misfits import fitting
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import NoTensor
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.common.walk import Walk
from ekiden.frontend.tflite.hybrid import is_hybrid
from ekiden.frontend.tflite.integer import is_quantized
from ekiden.frontend.tflite.load import BYTES, Model, Operation, Subgraph, Tensor
from ekiden.frontend.tflite.node import Node, Quantized, Row
from ekiden.frontend.tflite.registry import find
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.runtime.devices.memory import check_room
from ekiden.runtime.errors import ImportModelError

INTEGERS = ("int8", "uint8", "int16")
"""The dtypes of quantised tensors."""


class Variables:
    """What a model keeps between runs, by name: what it is now, and what it is at first.

    Those that CALL_ONCE fills, and tensors that operators change, are inputs of `main`; one that
    each run assigns before it reads is none.
    """

    def __init__(self, main: Main) -> None:
        self.main = main
        self.now: dict[str, Value] = {}
        self.initial: dict[str, Array] = {}
        self.is_initial = False
        """Whether CALL_ONCE is being imported."""

    def add(self, name: str, array: Array) -> Value:
        """A new one that begins as an array."""
        self.initial[name] = array
        self.now[name] = self.main.tensor(name, constant(array).type)
        return self.now[name]

    def read(self, name: str) -> Value:
        """Its value where the import stands. Raises Unsupported where none was assigned before."""
        if name not in self.now:
            raise Unsupported(f"the variable {name!r} is read before it has a value")
        return self.now[name]

    def assign(self, name: str, value: Value) -> None:
        """Give it another value. Raises Unsupported where its first is no constant."""
        if not self.is_initial:
            self.now[name] = value
        elif value.array is None:
            raise Unsupported(f"the first value of the variable {name!r} is not constant")
        else:
            self.add(name, value.array)


class Shared(Walk):
    """What all graphs of one import have in common."""

    def __init__(self, model: Model, scope: Scope, main: Main) -> None:
        super().__init__(model.label, scope)
        self.model, self.variables = model, Variables(main)
        self.is_nested = False
        """Whether a graph inside an operator is being imported."""


class Graph:
    """A graph being imported."""

    def __init__(self, graph: Subgraph, shared: Shared) -> None:
        self.graph, self.shared = graph, shared
        self.env: dict[int, Value] = {}
        self.failed: set[int] = set()
        """Tensors of operators that are not supported, and of what comes after them."""

    def inside(self, index: int) -> Graph:
        """Another graph of the model. Raises ImportModelError if there is no such graph."""
        if not 0 <= index < len(self.shared.model.graphs):
            raise ImportModelError(f"there is no subgraph {index}")
        return Graph(self.shared.model.graphs[index], self.shared)

    @property
    def names(self) -> list[str]:
        """The names of its inputs."""
        return [self.graph.tensors[i].name for i in self.graph.inputs]

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        """The outputs for these inputs. Raises Unsupported when an operator is."""
        if len(inputs) != len(self.graph.inputs):
            want, got = len(inputs), len(self.graph.inputs)
            raise Unsupported(f"expected a graph of {want} inputs, got one of {got}")
        self.env = dict(zip(self.graph.inputs, inputs, strict=True))
        around, self.shared.is_nested = self.shared.is_nested, True
        try:
            self.walk()
        finally:
            self.shared.is_nested = around
        if self.failed:
            raise Unsupported("")
        return self.outputs()

    def walk(self) -> None:
        """Import the operators."""
        for operation in self.graph.operations:
            self._convert(operation)

    def outputs(self) -> list[Value]:
        """What it gives, once its operators are imported."""
        return [self.value(i) for i in self.graph.outputs]

    def value(self, index: int) -> Value:
        """A tensor that is made or constant. Raises ImportModelError where nothing makes it."""
        if index in self.env:
            return self.env[index]
        tensor = self.graph.tensors[index]
        if tensor.is_variable:
            return self._kept(tensor)
        if not tensor.is_supported and tensor.data is None:
            raise Unsupported(tensor.why)
        if tensor.data is None and 0 not in tensor.shape:
            raise ImportModelError(f"import {self.shared.label}: nothing makes {tensor}")
        data = tensor.data
        if data is None:
            data = np.zeros(tensor.shape, to_numpy(tensor.dtype))
        self.env[index] = constant(data)
        return self.env[index]

    def _kept(self, tensor: Tensor) -> Value:
        """A tensor that an operator changes: zero at first."""
        variables = self.shared.variables
        if tensor.name in variables.now:
            return variables.now[tensor.name]
        if self.shared.is_nested or tensor.dtype not in BYTES or -1 in tensor.shape:
            raise Unsupported(tensor.why)
        steps = tensor.quantization
        point = steps.zero_point[0] if steps and tensor.dtype in INTEGERS else 0
        dtype = to_numpy(tensor.dtype)
        check_room(math.prod(tensor.shape) * dtype.itemsize, f"the variable {tensor.name!r}")
        return variables.add(tensor.name, np.full(tensor.shape, point, dtype))

    def _convert(self, operation: Operation) -> None:
        tensors = self.graph.tensors
        ins = [None if i < 0 else tensors[i] for i in operation.inputs]
        outs = [tensors[i] for i in operation.outputs]
        name = f"{operation.code} #{operation.index} {' '.join(repr(t.name) for t in outs)}".strip()
        if self.failed.intersection(operation.inputs):
            self.failed.update(operation.outputs)  # made of what has been reported
            return
        given = {t.name: self.env.get(t.index) for t in ins if t is not None}
        named = {n: v for n, v in given.items() if not isinstance(v, NoTensor)}
        self.failed.update(operation.outputs or [-2])  # until they are made
        with self.shared.at(name, named):
            row = find(operation.code)
            _check(row, ins, outs)
            values = [None if t is None else self.value(t.index) for t in ins]
            node = Node(operation, name, values, self, ins, outs)
            with fitting("its tensors or options do not fit the operator"):
                found = _apply(row, node)
            made = self.shared.outputs(found, node.output_names)
            for tensor in outs:
                if tensor.name in made:
                    self.env[tensor.index] = _checked(made[tensor.name], tensor)
            self._follow(row, node)
            self.failed.difference_update(operation.outputs or [-2])

    def _follow(self, row: Row, node: Node) -> None:
        """Note what is known of the elements of an output that is computed from data."""
        if row.rule is not None and len(node.outs) == 1 and node.outs[0].index in self.env:
            rule, index = row.rule, node.outs[0].index
            self.env[index] = rules.followed(
                node.scope, node.inputs, lambda each: rule(node, each), self.env[index]
            )


def _apply(row: Row, node: Node) -> Result:
    rule = row.rule
    if rule is not None:
        found = rules.evaluated(node.inputs, lambda each: rule(node, each), node.outs[0].dtype)
        if found is not None:
            return found
    convert = row.convert
    if row.hybrid is not None and is_hybrid(node):
        convert = row.hybrid
    elif row.integer is not None and is_quantized(node):
        convert = row.integer
    return rules.fold(node.scope, node.inputs, convert(node))


def _checked(value: Value, tensor: Tensor) -> Value:
    """Raises Unsupported for an output of another dtype than the model says."""
    if isinstance(value, NoTensor):
        return value
    if value.type.dtype != tensor.stored:
        raise Unsupported(f"{tensor} is {tensor.dtype}, computed as {value.type.dtype}")
    return value


def _check(row: Row, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
    """Raise Unsupported for tensors that a converter does not know how to take."""
    for each in (*(t for t in ins if t is not None), *outs):
        if not row.takes(each):
            raise Unsupported(each.why)
    _check_quantization(row, ins, outs)


def _check_quantization(row: Row, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
    """Raise Unsupported for quantised tensors that a converter does not know how to take."""
    if row.quantized is Quantized.OWN:
        return
    if row.integer is not None:
        for each in (t for t in (*ins, *outs) if t is not None and t.quantization is not None):
            if each.dtype == "int16" and not row.is_wide:
                raise Unsupported(f"{each} is int16: kernels of quantised int8 and uint8 are here")
        return
    moved = [t for i, t in enumerate(ins) if t is not None and (not row.data or i in row.data)]
    for each in (*(t for t in ins if t is not None), *outs):
        if each.quantization is None or each.dtype not in INTEGERS:
            continue
        if row.quantized is Quantized.REFUSED:
            raise Unsupported(f"{each} is quantised: {each.dtype}")
    if row.quantized is Quantized.MOVED:
        kinds = {t.quantization and (t.quantization.scale, t.quantization.zero_point)
                 for t in (*moved, *outs) if t.dtype in INTEGERS}  # fmt: skip
        if len(kinds) > 1:
            names = ", ".join(map(str, (*moved, *outs)))
            raise Unsupported(f"{names} have different scales or zero points")
