"""Importer of the operators of one subgraph of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekiden.frontend.common import constant_folding as rules
from ekiden.frontend.common.case_values import CaseValues
from ekiden.frontend.common.graph_walk import GraphWalk
from ekiden.frontend.common.main_builder import MainBuilder
from ekiden.frontend.common.malformed_models import reject_malformed
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import NonTensorValue
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.tflite.hybrid_quantization import is_hybrid
from ekiden.frontend.tflite.integer_arithmetic import is_quantized
from ekiden.frontend.tflite.load import (
    NUMERIC_DTYPES,
    TfliteModel,
    TfliteOperator,
    TfliteSubgraph,
    TfliteTensor,
)
from ekiden.frontend.tflite.node import QuantizedPolicy, TfliteNode, TfliteRow
from ekiden.frontend.tflite.registry import lookup_converter
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.runtime.devices.memory import check_memory_limit
from ekiden.runtime.errors import ImportModelError, UnsupportedError

QUANTIZED_DTYPES = ("int8", "uint8", "int16")
"""The dtypes of quantised tensors."""


class VariableTable:
    """Table of variables that persist between runs, with their current and initial values.

    Those that CALL_ONCE initialises, and tensors that operators change, are inputs of `main`; one
    that each run assigns before it reads is not.
    """

    def __init__(self, main: MainBuilder) -> None:
        self.main = main
        self.now: dict[str, Value] = {}
        self.initial: dict[str, Array] = {}
        self.is_initial = False
        """Whether CALL_ONCE is being imported."""

    def add(self, name: str, array: Array) -> Value:
        """Add a variable with an initial array."""
        self.initial[name] = array
        self.now[name] = self.main.add_tensor_input(name, constant_value(array).type)
        return self.now[name]

    def read(self, name: str) -> Value:
        """Return the current value of a variable. Raises UnsupportedError where none was assigned
        before.
        """
        if name not in self.now:
            raise Unsupported(f"the variable {name!r} is read before it has a value")
        return self.now[name]

    def assign(self, name: str, value: Value) -> None:
        """Assign a variable; within CALL_ONCE this sets its initial value."""
        if not self.is_initial:
            self.now[name] = value
        elif value.array is None:
            raise Unsupported(f"the first value of the variable {name!r} is not constant")
        else:
            self.add(name, value.array)


class ImportState(GraphWalk):
    """Import state that all subgraphs of one model share."""

    def __init__(self, model: TfliteModel, scope: Scope, main: MainBuilder) -> None:
        super().__init__(model.label, scope)
        self.model, self.variables = model, VariableTable(main)
        self.is_nested = False
        """Whether a graph inside an operator is being imported."""


class SubgraphImporter:
    """Importer of one subgraph."""

    def __init__(self, graph: TfliteSubgraph, shared: ImportState) -> None:
        self.graph, self.shared = graph, shared
        self.env = CaseValues(shared.scope, shared.problems)
        """Its tensors by their names, of which each has its own."""
        self.failed: set[int] = set()
        """Tensors of operators that are not supported, and of what comes after them."""

    def subgraph_importer(self, index: int) -> SubgraphImporter:
        """Return an importer of another subgraph of the model. Raises ImportModelError if there is
        none.
        """
        if not 0 <= index < len(self.shared.model.graphs):
            raise ImportModelError(f"there is no subgraph {index}")
        return SubgraphImporter(self.shared.model.graphs[index], self.shared)

    @property
    def input_names(self) -> list[str]:
        """Return the names of the graph's inputs."""
        return [self.graph.tensors[i].name for i in self.graph.inputs]

    def import_body(self, inputs: Sequence[Value]) -> list[Value]:
        """Import the subgraph for these inputs; return its outputs. Raises UnsupportedError for an
        operator without a converter.
        """
        if len(inputs) != len(self.graph.inputs):
            expected, actual = len(inputs), len(self.graph.inputs)
            raise Unsupported(f"expected a graph of {expected} inputs, got one of {actual}")
        self.env = CaseValues(self.shared.scope, self.shared.problems)
        self.bind_inputs(inputs)
        around, self.shared.is_nested = self.shared.is_nested, True
        try:
            self.import_operators()
        finally:
            self.shared.is_nested = around
        if self.failed:
            raise Unsupported("")
        return self.output_values()

    def bind_inputs(self, inputs: Sequence[Value]) -> None:
        """Bind the graph's inputs to these values."""
        names = (self.graph.tensors[i].name for i in self.graph.inputs)
        self.env.bind(dict(zip(names, inputs, strict=True)))

    def import_operators(self) -> None:
        """Import the operators in order; those after a value of several ranks once per case."""
        operations, tensors = self.graph.operations, self.graph.tensors
        last = {tensors[i].name: n for n, o in enumerate(operations) for i in o.inputs if i >= 0}
        last.update((tensors[i].name, len(operations)) for i in self.graph.outputs)

        def live_names(position: int) -> list[str]:
            """Return the names of several ranks that are read from a position on."""
            return sorted(name for name in self.env.ranked if last.get(name, -1) >= position)

        for position, operation in enumerate(operations):
            self._import_operator(operation, partial(live_names, position))
            self.env.try_merge_cases(partial(live_names, position + 1))
        if not self.failed:
            self.env.merge_outputs([tensors[i].name for i in self.graph.outputs])

    def _import_operator(
        self, operation: TfliteOperator, live: Callable[[], Sequence[str]]
    ) -> None:
        """Import an operator in each case that it depends on."""
        tensors = self.graph.tensors
        ranked = self.env.rank_polymorphic_names(
            tensors[i].name for i in operation.inputs if i >= 0
        )
        if not ranked:
            self._convert_operator(operation)
            return

        def import_in_case() -> None:
            """Import the operator in one case. Raises UnsupportedError where that changes a
            variable, which has one value in all cases.
            """
            before = dict(self.shared.variables.now)
            self._import_operator(operation, live)
            if self.shared.variables.now != before:
                self.shared.variables.now = before
                raise UnsupportedError(
                    f"import {self.shared.label}: {self._operator_label(operation)}: it gives a "
                    "variable a value that depends on one whose rank depends on data"
                )

        if self.env.import_in_cases(self._operator_label(operation), ranked, live, import_in_case):
            self.failed.difference_update(operation.outputs or [-2])

    def _operator_label(self, operation: TfliteOperator) -> str:
        """Return the name of an operator in messages."""
        outputs = (repr(self.graph.tensors[i].name) for i in operation.outputs)
        return f"{operation.code} #{operation.index} {' '.join(outputs)}".strip()

    def output_values(self) -> list[Value]:
        """Return the subgraph's outputs after its operators are imported."""
        return [self.lookup_value(i) for i in self.graph.outputs]

    def lookup_value(self, index: int) -> Value:
        """Return a tensor that is computed, constant or a variable. Raises ImportModelError where
        nothing computes it.
        """
        tensor = self.graph.tensors[index]
        if tensor.name in self.env:
            return self.env[tensor.name]
        if tensor.is_variable:
            return self._variable_tensor(tensor)
        if not tensor.is_supported and tensor.data is None:
            raise Unsupported(tensor.unsupported_reason)
        if tensor.data is None and 0 not in tensor.shape:
            raise ImportModelError(f"import {self.shared.label}: nothing makes {tensor}")
        data = tensor.data
        if data is None:
            data = np.zeros(tensor.shape, to_numpy(tensor.dtype))
        self.env.bind_in_all_cases(tensor.name, constant_value(data))
        return self.env[tensor.name]

    def _variable_tensor(self, tensor: TfliteTensor) -> Value:
        """Return a variable tensor, which starts at zero and which operators update."""
        variables = self.shared.variables
        if tensor.name in variables.now:
            return variables.now[tensor.name]
        if self.shared.is_nested or tensor.dtype not in NUMERIC_DTYPES or -1 in tensor.shape:
            raise Unsupported(tensor.unsupported_reason)
        steps = tensor.quantization
        point = steps.zero_point[0] if steps and tensor.dtype in QUANTIZED_DTYPES else 0
        dtype = to_numpy(tensor.dtype)
        check_memory_limit(
            math.prod(tensor.shape) * dtype.itemsize, f"the variable {tensor.name!r}"
        )
        return variables.add(tensor.name, np.full(tensor.shape, point, dtype))

    def _convert_operator(self, operation: TfliteOperator) -> None:
        tensors = self.graph.tensors
        ins = [None if i < 0 else tensors[i] for i in operation.inputs]
        outs = [tensors[i] for i in operation.outputs]
        name = self._operator_label(operation)
        if self.failed.intersection(operation.inputs):
            self.failed.update(operation.outputs)  # made of what has been reported
            return
        input_values = {t.name: self.env.get(t.name) for t in ins if t is not None}
        named = {n: v for n, v in input_values.items() if not isinstance(v, NonTensorValue)}
        self.failed.update(operation.outputs or [-2])  # until they are made
        with self.shared.convert_node(name, named):
            row = lookup_converter(operation.code)
            _check_tensors(row, ins, outs)
            values = [None if t is None else self.lookup_value(t.index) for t in ins]
            node = TfliteNode(operation, name, values, self, ins, outs)
            with reject_malformed("its tensors or options do not fit the operator"):
                results = _convert_or_fold(row, node)
            outputs = self.shared.bind_outputs(results, node.output_names)
            checked = {
                t.name: _check_output_dtype(outputs[t.name], t) for t in outs if t.name in outputs
            }
            if row.rule is not None and len(outs) == 1 and outs[0].name in checked:
                checked[outs[0].name] = _propagate_elements(row, node, checked[outs[0].name])
            self.env.bind(checked)
            self.failed.difference_update(operation.outputs or [-2])


def _propagate_elements(row: TfliteRow, node: TfliteNode, value: Value) -> Value:
    """Annotate an output computed from data with the elements that its rule proves."""
    rule = row.rule
    assert rule is not None
    return rules.propagate_elements(
        node.scope, node.inputs, lambda elements: rule(node, elements), value
    )


def _convert_or_fold(row: TfliteRow, node: TfliteNode) -> Result:
    rule = row.rule
    if rule is not None:
        known_result = rules.evaluate_rule(
            node.inputs, lambda elements: rule(node, elements), node.outs[0].dtype
        )
        if known_result is not None:
            return known_result
    convert = row.convert
    if row.hybrid_converter is not None and is_hybrid(node):
        convert = row.hybrid_converter
    elif row.integer_converter is not None and is_quantized(node):
        convert = row.integer_converter
    return rules.fold_results(node.scope, node.inputs, convert(node))


def _check_output_dtype(value: Value, tensor: TfliteTensor) -> Value:
    """Check that an output has the dtype of its tensor."""
    if isinstance(value, NonTensorValue):
        return value
    if value.type.dtype != tensor.storage_dtype:
        raise Unsupported(f"{tensor} is {tensor.dtype}, computed as {value.type.dtype}")
    return value


def _check_tensors(
    row: TfliteRow, ins: Sequence[TfliteTensor | None], outs: Sequence[TfliteTensor]
) -> None:
    """Raise Unsupported for tensors that a converter entry does not accept."""
    for tensor in (*(t for t in ins if t is not None), *outs):
        if not row.accepts(tensor):
            raise Unsupported(tensor.unsupported_reason)
    _check_quantization(row, ins, outs)


def _check_quantization(
    row: TfliteRow, ins: Sequence[TfliteTensor | None], outs: Sequence[TfliteTensor]
) -> None:
    """Raise Unsupported for quantized tensors that a converter entry does not accept."""
    if row.quantized_policy is QuantizedPolicy.CONVERTER_HANDLED:
        return
    if row.integer_converter is not None:
        for tensor in (t for t in (*ins, *outs) if t is not None and t.quantization is not None):
            if tensor.dtype == "int16" and not row.supports_int16:
                raise Unsupported(
                    f"{tensor} is int16: kernels of quantised int8 and uint8 are here"
                )
        return
    moved = [
        t
        for i, t in enumerate(ins)
        if t is not None and (not row.moved_inputs or i in row.moved_inputs)
    ]
    for tensor in (*(t for t in ins if t is not None), *outs):
        if tensor.quantization is None or tensor.dtype not in QUANTIZED_DTYPES:
            continue
        if row.quantized_policy is QuantizedPolicy.REFUSED:
            raise Unsupported(f"{tensor} is quantised: {tensor.dtype}")
    # Moved numbers keep their meaning only where all tensors share one scale and zero point.
    if row.quantized_policy is QuantizedPolicy.MOVES_ELEMENTS:
        kinds = {t.quantization and (t.quantization.scale, t.quantization.zero_point)
                 for t in (*moved, *outs) if t.dtype in QUANTIZED_DTYPES}  # fmt: skip
        if len(kinds) > 1:
            names = ", ".join(map(str, (*moved, *outs)))
            raise Unsupported(f"{names} have different scales or zero points")
