"""From a model of TensorFlow Lite to a module: its inputs, its operators, its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.facts import Facts, settled
from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.main import Main
from ekiden.frontend.common.options import Dims, Shapes
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant, dim_name
from ekiden.frontend.common.walk import Walk
from ekiden.frontend.tflite.load import Graph, Model, Operation, Signature, Tensor, read_model
from ekiden.frontend.tflite.node import Node, Quantized, Row
from ekiden.frontend.tflite.registry import find
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import tensor_type
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError


def import_tflite(
    source: object, shape: Shapes | None = None, signature: str = ""
) -> ImportedModule:
    """A module whose `main` computes a model, from a path or bytes.

    Extents that the model leaves open are symbolic; `shape` replaces those of inputs by name.
    `signature` is one of the model's, which need not be named where it has one alone; its names are
    those of inputs and outputs, else the tensors' own.
    Raises UnsupportedError listing every operator that cannot be imported, ImportModelError for a
    broken model, CompileError for a signature or a shape that the model has not.
    """
    model = read_model(source)
    chosen = _signature(model, signature)
    graph = model.graphs[chosen.graph]
    return settled(lambda facts: _Importer(model, graph, chosen, facts).run(shape or {}))


def _signature(model: Model, name: str) -> Signature:
    known = ", ".join(map(repr, model.signatures)) or "none"
    if name and name not in model.signatures:
        raise CompileError(f"import {model.label}: no signature {name!r}; it has {known}")
    if not name and len(model.signatures) > 1:
        text = f"it has the signatures {known}: choose one, signature=..."
        raise CompileError(f"import {model.label}: {text}")
    if name:
        return model.signatures[name]
    return next(iter(model.signatures.values()), Signature(0, {}, {}))


class _Importer:
    """One attempt, with what is known so far about the dimensions."""

    def __init__(self, model: Model, graph: Graph, signature: Signature, facts: Facts) -> None:
        self.label, self.graph, self.signature = model.label, graph, signature
        wanted = {i for o in graph.operations for i in o.inputs} | set(graph.outputs)
        self.scope = Scope(facts, {graph.tensors[i].name for i in wanted if i >= 0})
        self.walk = Walk(model.label, self.scope)
        self.main = Main(self.scope)
        self.env: dict[int, Value] = {}
        self.failed: set[int] = set()
        """Tensors of operators that are not supported, and of what comes after them."""

    def run(self, shapes: Shapes) -> ImportedModule:
        """Import everything, or raise."""
        names = [self.signature.inputs.get(i, self._tensor(i).name) for i in self.graph.inputs]
        for name in shapes:
            if name not in names:
                known = ", ".join(map(repr, names)) or "none"
                text = f"shape: no input {name!r}; it has {known}"
                raise CompileError(f"import {self.label}: {text}")
        for index, name in zip(self.graph.inputs, names, strict=True):
            self.env[index] = self._input(self._tensor(index), name, shapes.get(name))
        for operation in self.graph.operations:
            self._convert(operation)
        self.walk.finish()
        outputs = [self._value(i) for i in self.graph.outputs]
        if not outputs:
            raise ImportModelError(f"import {self.label}: it gives no tensor")
        return ImportedModule(
            IRModule({"main": self.main.function(outputs)}, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(
                self.signature.outputs.get(i, self._tensor(i).name) for i in self.graph.outputs
            ),
            constraints=tuple(self.scope.constraints.values()),
        )

    def _tensor(self, index: int) -> Tensor:
        return self.graph.tensors[index]

    # Inputs.

    def _input(self, tensor: Tensor, name: str, given: object) -> Value:
        if not tensor.is_supported:
            raise UnsupportedError(f"import {self.label}: input {name!r}: {tensor.why}")
        dims: Dims = [d if d >= 0 else None for d in tensor.shape]
        if given is not None:
            assert isinstance(given, Sequence)
            if len(given) != len(tensor.shape):
                text = f"shape of the input {name!r}: expected {len(tensor.shape)} dimensions"
                raise CompileError(f"import {self.label}: {text}, got {len(given)}")
            dims = given
        extents = [self._dim(d, name, axis) for axis, d in enumerate(dims)]
        return self.main.tensor(name, tensor_type(extents, tensor.dtype))

    def _dim(self, dim: int | str | None, name: str, axis: int) -> int | PrimExpr:
        if isinstance(dim, str) or dim is None:
            return self.scope.symbol(dim_name(name, axis, dim or ""))
        return int(dim)

    def _value(self, index: int) -> Value:
        """A tensor that is made or constant. Raises ImportModelError where nothing makes it."""
        if index in self.env:
            return self.env[index]
        tensor = self._tensor(index)
        if not tensor.is_supported:
            raise Unsupported(tensor.why)
        if tensor.data is None:
            raise ImportModelError(f"import {self.label}: nothing makes {tensor}")
        self.env[index] = constant(tensor.data)
        return self.env[index]

    # Operators.

    def _convert(self, operation: Operation) -> None:
        ins = [None if i < 0 else self._tensor(i) for i in operation.inputs]
        outs = [self._tensor(i) for i in operation.outputs]
        name = f"{operation.code} #{operation.index} {' '.join(repr(t.name) for t in outs)}".strip()
        if self.failed.intersection(operation.inputs):
            self.failed.update(operation.outputs)  # made of what has been reported
            return
        self.failed.update(operation.outputs)  # until they are made
        with self.walk.at(name, {t.name: self.env.get(t.index) for t in ins if t is not None}):
            row = find(operation.code)
            values = [None if t is None else self._value(t.index) for t in ins]
            for each in outs:
                if not each.is_supported:
                    raise Unsupported(each.why)
            _check_quantization(row, ins, outs)
            node = Node(operation, name, values, self.scope, ins, outs)
            made = self.walk.outputs(row.convert(node), node.output_names)
            for tensor in outs:
                if tensor.name in made:
                    self.env[tensor.index] = self._checked(made[tensor.name], tensor)
            self.failed.difference_update(operation.outputs)

    def _checked(self, value: Value, tensor: Tensor) -> Value:
        """Raises Unsupported for an output of another dtype than the model says."""
        if value.type.dtype != tensor.dtype:
            raise Unsupported(f"{tensor} is {tensor.dtype}, computed as {value.type.dtype}")
        return value


def _check_quantization(row: Row, ins: Sequence[Tensor | None], outs: Sequence[Tensor]) -> None:
    """Raise Unsupported for quantised tensors that a converter does not know how to take."""
    if row.quantized is Quantized.OWN:
        return
    moved = [t for i, t in enumerate(ins) if t is not None and (not row.data or i in row.data)]
    for each in (*(t for t in ins if t is not None), *outs):
        if each.quantization is None or each.dtype not in ("int8", "uint8", "int16"):
            continue
        if row.quantized is Quantized.REFUSED:
            raise Unsupported(f"{each} is quantised: {each.dtype}")
    if row.quantized is Quantized.MOVED:
        kinds = {t.quantization and (t.quantization.scale, t.quantization.zero_point)
                 for t in (*moved, *outs) if t.dtype in ("int8", "uint8", "int16")}  # fmt: skip
        if len(kinds) > 1:
            names = ", ".join(map(str, (*moved, *outs)))
            raise Unsupported(f"{names} have different scales or zero points")
