"""Import of an ONNX model as a module: inputs, graph, outputs and metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ekiden.frontend.common.dim_facts import DimFacts, import_to_fixpoint
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.main_builder import MainBuilder
from ekiden.frontend.common.options import Shapes, parse_shape_option
from ekiden.frontend.common.rank_cases import to_program_output
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sequence_value import (
    AbsentValue,
    MapValue,
    SequenceValue,
    to_sequence_value,
)
from ekiden.frontend.common.string_value import StringValue
from ekiden.frontend.common.unranked_inputs import check_ranks, format_user_shape
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, sanitize_name
from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.graph import GraphImporter, ImportState
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.load import (
    ModelSource,
    check_names,
    local_functions,
    model_opsets,
    read_model,
    referenced_names,
    topological_order,
)
from ekiden.frontend.onnx.node import describe_node
from ekiden.frontend.onnx.operator_check import check_operators
from ekiden.frontend.onnx.weight_registry import WeightRegistry
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.pass_context import DEBUG_LEVEL, time_phase
from ekiden.ir.prim import AnyDim, PrimExpr, const
from ekiden.ir.type import TensorType
from ekiden.relay.op.sequence import list_type
from ekiden.runtime.artifact.metadata import OBJECT_DTYPE, STRING_DTYPE
from ekiden.runtime.errors import (
    ExpressionError,
    ImportModelError,
    UnsupportedError,
)


def from_onnx(
    model: ModelSource,
    shape: Shapes | None = None,
    opset: int | None = None,
    freeze_params: bool = True,
) -> IRModule:
    """Import an ONNX model as a module whose `main` computes it.

    Weights become constants; with `freeze_params=False` the floating-point ones become further
    parameters of main, and `attrs["params"]` maps their names to arrays. Named dimensions of inputs
    stay symbolic. An input that has an initializer is that constant, unless `shape` names it: then
    it is an input.

    Args:
        model: a path, bytes or ModelProto.
        shape: input name -> shape that replaces the declared one.
        opset: overrides the default domain's version that the model states.
        freeze_params: whether floating-point weights become constants.

    Returns:
        The module; its attributes are described in ekiden.frontend.common.import_result.

    Raises:
        ImportModelError: the model is broken.
        UnsupportedError: lists every node that cannot be imported.
    """
    return import_onnx(model, shape, opset, freeze_params).to_module()


def import_onnx(
    model: ModelSource,
    shape: Shapes | None = None,
    opset: int | None = None,
    freeze_params: bool = True,
) -> ImportResult:
    """Import an ONNX model and return the module with its metadata.

    Args:
        model: a path, bytes or ModelProto.
        shape: input name -> shape that replaces the declared one.
        opset: overrides the default domain's version that the model states.
        freeze_params: whether floating-point weights become constants.
    """
    weights = WeightRegistry()
    with time_phase("read model", DEBUG_LEVEL):
        proto, label, weight_files = read_model(model, weights)
    with weights.activate():
        imported = _import_with_facts(proto, label, opset, shape or {}, freeze_params)
    weights.files.check_unchanged(f"import {label}")
    return replace(imported, weight_files=weight_files)


def _import_with_facts(
    proto: onnx.ModelProto, label: str, opset: int | None, shapes: Shapes, freeze_params: bool
) -> ImportResult:
    """Import a parsed model, repeated with the dimension facts that failed attempts found."""
    check_names(proto.graph, label)
    versions = model_opsets(proto, label, opset)
    functions = local_functions(proto, label)
    check_operators(topological_order(proto.graph, label), versions, label, functions)

    # An attempt that learns a dimension is repeated with it until nothing new is found.
    def import_once(facts: DimFacts) -> ImportResult:
        """Run one attempt with the known facts."""
        shared = ImportState(versions, label, Scope(facts, set()), functions)
        return _ImportAttempt(proto.graph, shared, shapes, freeze_params).run()

    return import_to_fixpoint(import_once)


class _ImportAttempt:
    """One attempt at an import, with the dimension facts of earlier attempts."""

    def __init__(
        self,
        proto: onnx.GraphProto,
        shared: ImportState,
        shapes: Shapes,
        freeze_params: bool,
    ) -> None:
        self.proto, self.label, self.shapes = proto, shared.label, shapes
        self.freeze_params = freeze_params
        self.params: dict[str, Array] = {}
        self.texts: list[str] = []
        self.shared, self.scope = shared, shared.scope
        self.main = MainBuilder(self.scope)
        self.scope.used = referenced_names(proto.node) | {o.name for o in proto.output}
        self.graph = GraphImporter(proto, self.shared)

    def run(self) -> ImportResult:
        """Import the whole model or raise."""
        self._check_shape_names([i.name for i in self.proto.input])
        # Before IR version 4 every initializer is an input too, and may be fed.
        for name in self.shapes:  # a weight that a shape is given for is an input
            self.graph.weights.pop(name, None)
        inputs = [i for i in self.proto.input if i.name not in self.graph.weights]
        check_ranks(
            self.label,
            [(i.name, _dtype_name(i), self._declared_shape(i)) for i in inputs],
            [(o.name, _dtype_name(o)) for o in self.proto.output],
        )
        for graph_input in inputs:
            self._declare_input(graph_input)
        if not self.freeze_params:
            self._weights_as_params()
        try:
            self.graph.import_nodes()
        except Unsupported as error:
            if str(error):  # else it has been noted
                self.shared.problems.append(f"graph {self.proto.name!r}: {error}")
        self.shared.raise_collected_problems()
        if not self.proto.output:
            raise ImportModelError(f"import {self.label}: expected at least one output, got none")
        outputs = {
            o.name: to_program_output(self.scope, self.graph.defined_value(o.name))
            for o in self.proto.output
        }
        self._check_outputs(outputs)
        function = self.main.build_main([outputs[o.name] for o in self.proto.output])
        texts = [n for n, v in outputs.items() if isinstance(v, StringValue)]
        maps = [(n, tuple(v.keys)) for n, v in outputs.items() if isinstance(v, MapValue)]
        return ImportResult(
            IRModule({"main": function}, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(o.name for o in self.proto.output),
            constraints=tuple(self.scope.constraints.values()),
            tensors=tuple(
                (name, describe_node(node), index)
                for node in self.proto.node
                for index, name in enumerate(node.output)
                if name
            ),
            sequences=True,
            texts=(*self.texts, *texts),
            maps=tuple(maps),
            params=self.params,
        )

    def _check_outputs(self, outputs: Mapping[str, Value]) -> None:
        """Raise UnsupportedError for outputs that a program cannot return, such as absent
        optionals.
        """
        for name, value in outputs.items():
            reason = "an optional value that is absent" if isinstance(value, AbsentValue) else ""
            try:
                _ = value.relay_type
            except Unsupported as error:
                reason = str(error)
            if reason:
                raise UnsupportedError(f"import {self.label}: output {name!r}: {reason}")

    # Inputs and weights.

    def _check_shape_names(self, names: Sequence[str]) -> None:
        """Raise ImportModelError for given shapes whose name is no input."""
        unknown = [repr(n) for n in self.shapes if n not in names]
        if unknown:
            have = ", ".join(repr(n) for n in names if n not in self.graph.weights)
            weights = [repr(n) for n in names if n in self.graph.weights]
            more = f"; with a value of their own: {', '.join(weights)}" if weights else ""
            raise ImportModelError(
                f"import {self.label}: shape is given for {', '.join(unknown)}; "
                f"the inputs are {have}{more}"
            )

    def _declared_shape(self, info: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
        """Return an input's shape as numbers and dimension names; None where its rank is
        unknown.
        """
        held = _unwrap_optional(info.type)
        override = self.shapes.get(info.name)
        if not held.HasField("tensor_type"):
            return ()  # a sequence or a map: its shapes are those of its elements
        if override is not None:
            return format_user_shape(info.name, override)
        if not held.tensor_type.HasField("shape"):
            return None
        declared = [_declared_dim(d) for d in held.tensor_type.shape.dim]
        for axis, size in enumerate(declared):
            if isinstance(size, int) and size < -1:
                raise ImportModelError(
                    f"import {self.label}: input {info.name!r}: dimension {axis} is {size}; "
                    "0 or more, a name, or -1 for any expected"
                )
        return format_user_shape(info.name, declared)

    def _declare_input(self, info: onnx.ValueInfoProto) -> None:
        """Declare a graph input: a tensor, a sequence, or an absent optional."""
        if info.name in self.shapes and self.shapes[info.name] is None:
            self.graph.values.bind_in_all_cases(info.name, AbsentValue())
            return
        inner = _unwrap_optional(info.type)
        if inner.HasField("sequence_type"):
            self._declare_sequence(info.name, inner.sequence_type.elem_type)
        elif inner.HasField("tensor_type"):
            held = onnx.ValueInfoProto(name=info.name, type=inner)
            self.graph.values.bind_in_all_cases(info.name, self._declare_tensor(held))
        else:
            what = "a tensor or a sequence of tensors"
            raise UnsupportedError(f"import {self.label}: input {info.name!r} must be {what}")

    def _declare_sequence(self, name: str, element: onnx.TypeProto) -> None:
        """Declare a sequence input: one tensor per given shape, otherwise a run-time list."""
        shapes = self.shapes.get(name)
        if shapes is not None:
            items = []
            for index, shape in enumerate(shapes):
                held = onnx.ValueInfoProto(name=f"{name}.{index}", type=element)
                self.shapes = {**self.shapes, held.name: shape}  # type: ignore[dict-item]
                items.append(self._declare_tensor(held))
            dtype = from_onnx_dtype(element.tensor_type.elem_type)
            self.graph.values.bind_in_all_cases(name, SequenceValue(items, dtype=dtype))
            return
        tensor = element.tensor_type
        if not tensor.HasField("shape"):
            raise ImportModelError(
                f"import {self.label}: the elements of the sequence {name!r} have no shape; "
                f"give each one with shape={{{name!r}: [..., ...]}}"
            )
        dims = [
            const(d.dim_value) if d.HasField("dim_value") else AnyDim() for d in tensor.shape.dim
        ]
        kind = list_type(TensorType(tuple(dims), from_onnx_dtype(tensor.elem_type)))
        self.graph.values.bind_in_all_cases(
            name, to_sequence_value(self.main.add_object_input(name, kind), kind)
        )

    def _declare_tensor(self, info: onnx.ValueInfoProto) -> Value:
        """Declare a tensor input as a variable of main."""
        kind = info.type.tensor_type
        # Strings are tensors of bytes with one more axis.
        if kind.elem_type == onnx.TensorProto.STRING:
            return self._declare_strings(info)
        try:
            dtype = from_onnx_dtype(kind.elem_type)
        except Unsupported as error:
            raise UnsupportedError(f"import {self.label}: input {info.name!r}: {error}") from error
        try:
            type_ = TensorType(self._symbolic_shape(info), dtype)
        except ExpressionError as error:
            raise ImportModelError(f"import {self.label}: input {info.name!r}: {error}") from error
        return self.main.add_tensor_input(info.name, type_)

    def _declare_strings(self, info: onnx.ValueInfoProto) -> Value:
        """Declare a string tensor: uint8, with one more axis for the UTF-8 bytes."""
        width = self.scope.dim_symbol(f"{sanitize_name(info.name) or 'input'}_bytes")
        self.texts.append(info.name)
        value = self.main.add_tensor_input(
            info.name, TensorType((*self._symbolic_shape(info), width), "uint8")
        )
        return StringValue(self.scope.expr(value), value.type)

    def _symbolic_shape(self, info: onnx.ValueInfoProto) -> tuple[PrimExpr, ...]:
        """Return an input's dimensions as expressions over the dimension variables of main."""
        override = self.shapes.get(info.name)
        stated = [
            _declared_dim(d) for d in info.type.tensor_type.shape.dim
        ]  # checked by _declared_shape
        dims = stated if override is None else parse_shape_option(info.name, override)
        return tuple(self.main.input_dim(info.name, axis, d) for axis, d in enumerate(dims))

    def _weights_as_params(self) -> None:
        """Turn the floating-point initializers that nodes read into parameters of main."""
        # Weights that no node reads would become parameters without a use.
        used = {i for n in self.graph.nodes for i in n.input}
        for name in self.graph.weights:
            value = self.graph.initializer_value(name) if name in used else None
            if value is not None and value.array is not None and value.array.dtype.kind == "f":
                self.graph.values.bind_in_all_cases(
                    name, self.main.add_tensor_input(name, value.type)
                )
                self.params[name] = value.array


def _declared_dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """Return a declared dimension: a number, a name, or None."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or None


def _dtype_name(info: onnx.ValueInfoProto) -> str:
    """Return the dtype name of a graph input or output; OBJECT_DTYPE for what is no tensor."""
    kind = _unwrap_optional(info.type)
    if not kind.HasField("tensor_type"):
        return OBJECT_DTYPE
    if kind.tensor_type.elem_type == onnx.TensorProto.STRING:
        return STRING_DTYPE
    try:
        return from_onnx_dtype(kind.tensor_type.elem_type)
    except Unsupported:
        return OBJECT_DTYPE


def _unwrap_optional(kind: onnx.TypeProto) -> onnx.TypeProto:
    """Return the element type of an optional type; other types unchanged."""
    return kind.optional_type.elem_type if kind.HasField("optional_type") else kind
