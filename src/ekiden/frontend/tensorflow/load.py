"""Loading of TensorFlow models: a graph with constant weights, and its library of functions.

A SavedModel or a Keras model is a function of TensorFlow; TensorFlow's own
`convert_variables_to_constants_v2` makes its variables constants.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
from tensorflow.python.saved_model.loader_impl import parse_saved_model

from ekiden.frontend.common.error_translation import check_readable, translate_errors
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.tensorflow.check_arity import check_arity, iter_all_nodes
from ekiden.runtime.artifact.metadata import OBJECT_DTYPE
from ekiden.runtime.errors import CompileError, ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass

Proto: TypeAlias = Any
"""A message of TensorFlow's protocol buffers, which has no types."""
Dims: TypeAlias = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class GraphInput:
    """Graph input: tensor name, the user's name, shape (-1 for an unknown extent, None for unknown
    rank), dtype.
    """

    tensor: str
    name: str
    shape: Dims
    dtype: str


@dataclass(frozen=True, slots=True)
class TensorflowGraph:
    """Graph of a model: nodes by name, inputs, and outputs as (the user's name, tensor)."""

    nodes: Mapping[str, Proto]
    inputs: Sequence[GraphInput]
    outputs: Sequence[tuple[str, str]]


@dataclass(slots=True)
class TensorflowModel:
    """Loaded model: its main graph and a library of functions, which become graphs when first used.

    label: the model's name in messages.
    """

    label: str
    graph: TensorflowGraph
    library: Mapping[str, Proto]
    versions: Proto
    _functions: dict[str, TensorflowGraph] = field(default_factory=dict)

    def library_function(self, name: str) -> TensorflowGraph:
        """Return a library function as a graph; raise Unsupported without one."""
        if name not in self.library:
            raise Unsupported(f"the graph has no function {name!r}")
        if name not in self._functions:
            with translate_errors("TensorFlow", f"{self.label}: function {name!r}", None):
                self._functions[name] = _function_graph(self.library[name])
        return self._functions[name]


def dtype_name(number: int) -> str:
    """Return the name of a DataType enum value; "string", "resource" and "variant" are no tensor
    dtypes.

    Raises ImportModelError for a number that is not a DataType.
    """
    try:
        return str(tf.dtypes.as_dtype(number).name)
    except TypeError as error:
        raise ImportModelError(f"the number {number} is no dtype of TensorFlow") from error


def decode_shape(proto: Proto) -> Dims:
    """Return the extents of a TensorShapeProto, -1 for unknown ones; None for an unknown rank."""
    return None if proto.unknown_rank else tuple(int(d.size) for d in proto.dim)


def normalize_tensor_name(name: str) -> str:
    """Return a tensor's name with its output index: "x:0" for "x"."""
    return name if ":" in name else f"{name}:0"


def output_dtype(graph: TensorflowGraph, tensor: str) -> str:
    """Return the dtype of a function's output that an Identity or Placeholder yields; else
    OBJECT_DTYPE.
    """
    node = graph.nodes.get(tensor.rpartition(":")[0])
    if node is None or node.op not in ("Identity", "Placeholder"):
        return OBJECT_DTYPE
    return dtype_name(node.attr["T" if node.op == "Identity" else "dtype"].type)


def read_model(source: object, signature: str = "", outputs: Sequence[str] = ()) -> TensorflowModel:
    """Load a path, bytes, or an object of TensorFlow or Keras.

    Args:
        source: The path, bytes or object.
        signature: A signature of a SavedModel.
        outputs: Outputs of a frozen graph; by default the tensors that no node reads.

    Raises:
        ImportModelError: The model is missing or broken.
        CompileError: It has no such signature.
    """
    if isinstance(source, bytes):
        if source.startswith(b"PK"):
            return _read_keras_bytes(source, signature)
        _check_no_signature(signature, "model")
        return _from_graph_def(_parse_graph_def(source, "model"), "model", outputs)
    if isinstance(source, (str, os.PathLike)):
        return _read_path(Path(source), signature, outputs)
    if isinstance(source, tf.compat.v1.GraphDef):
        _check_no_signature(signature, "graph")
        return _from_graph_def(source, "graph", outputs)
    name = getattr(source, "name", type(source).__name__)
    label = f"model {name.decode() if isinstance(name, bytes) else name!r}"
    _check_no_signature(signature, label)
    if isinstance(source, tf.types.experimental.ConcreteFunction):
        return _from_concrete_function(source, label)
    return _from_keras_model(source, label)


def _check_no_signature(signature: str, label: str) -> None:
    """Raise CompileError if a signature is requested of something other than a SavedModel."""
    if signature:
        text = f"no signature {signature!r}; a SavedModel alone has some"
        raise CompileError(f"import {label}: {text}")


def _read_keras_bytes(data: bytes, signature: str) -> TensorflowModel:
    """Load the bytes of a .keras file through a temporary file, as Keras reads paths only."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(data)
        return _read_path(path, signature, ())


def _read_path(path: Path, signature: str, outputs: Sequence[str]) -> TensorflowModel:
    label = f"model {path.name!r}"
    if path.is_dir():
        return _load_saved_model(path, label, signature)
    check_readable(path, label)
    with open(path, "rb") as file:
        # .keras files are zip archives; a frozen graph never begins with "PK".
        is_archive = file.read(2) == b"PK"
    if path.suffix == ".keras" or is_archive:
        import keras  # noqa: PLC0415 - TensorFlow's, loaded for its own files alone

        if not zipfile.is_zipfile(path):
            text = "it is no zip archive, which .keras files are, or cut short"
            raise ImportModelError(f"import {label}: {text}")
        with translate_errors("Keras cannot load it", label, None, _LOAD_ADVICE):
            loaded = keras.saving.load_model(path, compile=False)
        return read_model(loaded, signature)
    _check_no_signature(signature, label)
    return _from_graph_def(_parse_graph_def(path.read_bytes(), label), label, outputs)


_LOAD_ADVICE = (
    "ekiden.compile also takes the model as keras.saving.load_model gives it, which has arguments "
    "for what is not Keras's own"
)
LIBRARY_PACKAGES = ("tensorflow", "keras", "optree")
"""Those whose lines are none of the user's."""


def _parse_graph_def(data: bytes, label: str) -> Proto:
    graph = tf.compat.v1.GraphDef()
    try:
        graph.ParseFromString(data)
    except DecodeError as error:
        raise ImportModelError(f"import {label}: it is no frozen graph, or cut short") from error
    return graph


def _load_saved_model(path: Path, label: str, signature: str) -> TensorflowModel:
    with translate_errors("TensorFlow cannot load it", label, None):
        for meta_graph in parse_saved_model(str(path)).meta_graphs:
            # TensorFlow itself allocates declared counts: check them before it loads the graph.
            check_arity(iter_all_nodes(meta_graph.graph_def), label)
        loaded = tf.saved_model.load(str(path))
    signatures = getattr(loaded, "signatures", None)
    # A file may bind the name to any object of its own, or to none.
    if not isinstance(signatures, Mapping):
        raise ImportModelError(f"import {label}: a SavedModel with signatures expected, got none")
    signature_list = ", ".join(map(repr, sorted(signatures))) or "none"
    if signature and signature not in signatures:
        raise CompileError(f"import {label}: no signature {signature!r}; it has {signature_list}")
    if not signature and "serving_default" not in signatures and len(signatures) != 1:
        text = f"it has the signatures {signature_list}: choose one, signature=..."
        raise CompileError(f"import {label}: {text}")
    default = "serving_default" if "serving_default" in signatures else next(iter(signatures))
    model = _from_concrete_function(signatures[signature or default], label)
    del loaded  # its variables are needed until here
    return model


def _from_keras_model(model: Any, label: str) -> TensorflowModel:  # noqa: ANN401
    """Load a Keras model as a graph.

    A subclassed model declares no inputs but can be exported once it has been called; Keras decides
    which of its axes are open.
    """
    if not getattr(model, "inputs", None) and getattr(model, "built", False):
        with tempfile.TemporaryDirectory() as folder:
            with translate_errors("Keras cannot export it", label, LIBRARY_PACKAGES):
                model.export(folder, format="tf_saved_model", verbose=False)
            return _load_saved_model(Path(folder), label, "")
    return _from_concrete_function(
        _trace_keras_model(model, label), label, _keras_input_names(model)
    )


def _trace_keras_model(model: Any, label: str) -> Any:  # noqa: ANN401
    """Trace the call of a Keras model into a concrete function, for any batch size."""
    import keras  # noqa: PLC0415 - loaded for its own objects alone

    if keras.backend.backend() != "tensorflow":
        have = keras.backend.backend()
        text = f"Keras computes with {have!r}; set KERAS_BACKEND=tensorflow before it is imported"
        raise ImportModelError(f"import {label}: {text}")
    if not getattr(model, "inputs", None):
        text = "it has no inputs yet: call it once, or build it, so that their shapes are known"
        raise ImportModelError(f"import {label}: {text}")
    # Open axes stay None, so that the batch is symbolic.
    specs = [tf.TensorSpec(i.shape, i.dtype, name=_sanitize_name(i.name)) for i in model.inputs]
    structure = getattr(model, "_inputs_struct", None)  # a Sequential has none

    def call(*args: Any) -> Any:  # noqa: ANN401
        """Call the model in inference mode with tensors in the order of its input structure."""
        if not isinstance(structure, (list, tuple, dict)):
            return model(args[0], training=False)
        return model(tf.nest.pack_sequence_as(structure, args), training=False)

    with translate_errors("Keras cannot trace it", label, LIBRARY_PACKAGES):
        return tf.function(call).get_concrete_function(*specs)


_COUNTED_NAME = re.compile(r"keras_tensor(_\d+)?")


def _sanitize_name(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def _keras_input_names(model: Any) -> list[str]:  # noqa: ANN401
    """Return the names of a model's inputs. One that Keras named by a counter of the process, which
    no program can know, is called as Keras 2 did: input_1 for the first.
    """
    names = [str(i.name) for i in model.inputs]
    return [
        f"input_{n}" if _COUNTED_NAME.fullmatch(name) else name for n, name in enumerate(names, 1)
    ]


def _from_concrete_function(
    function: Any,  # noqa: ANN401
    label: str,
    names: Sequence[str] = (),
) -> TensorflowModel:
    """Freeze a concrete function into a graph with constant weights."""
    with translate_errors("TensorFlow cannot freeze it", label, None):
        # Without lowering, control flow stays v2 calls of functions, which import as Relay branches
        # and loops.
        frozen = convert_variables_to_constants_v2(
            function, lower_control_flow=False, aggressive_inlining=False
        )
    graph = frozen.graph.as_graph_def()
    input_names = names or [t.name.partition(":")[0] for t in frozen.inputs]
    inputs = [
        GraphInput(t.name, n, decode_shape(t.shape.as_proto()), t.dtype.name)
        for t, n in zip(frozen.inputs, input_names, strict=True)
    ]
    results = _result_names(function, frozen)
    outputs = [(n, t.name) for n, t in zip(results, frozen.outputs, strict=True)]
    nodes = {n.name: n for n in graph.node}
    library = {f.signature.name: f for f in graph.library.function}
    return TensorflowModel(label, TensorflowGraph(nodes, inputs, outputs), library, graph.versions)


def _result_names(function: Any, frozen: Any) -> list[str]:  # noqa: ANN401
    """Return the keys of a dictionary of results, else the tensors' own names."""
    stated = function.structured_outputs
    if isinstance(stated, dict) and len(stated) == len(frozen.outputs):
        return [str(k) for k in sorted(stated)]
    return [t.name.partition(":")[0] for t in frozen.outputs]


def _from_graph_def(graph: Proto, label: str, outputs: Sequence[str]) -> TensorflowModel:
    nodes = {n.name: n for n in graph.node}
    if not nodes:
        raise ImportModelError(f"import {label}: it has no nodes")
    check_arity(iter_all_nodes(graph), label)
    inputs = [
        GraphInput(f"{n.name}:0", n.name, _placeholder_shape(n), dtype_name(n.attr["dtype"].type))
        for n in graph.node
        if n.op == "Placeholder"
    ]
    for name in outputs:
        if name.partition(":")[0] not in nodes:
            raise CompileError(f"import {label}: it has no node {name!r}")
    output_names = list(outputs) or _default_output_nodes(graph)
    pairs = [
        (name, normalize_tensor_name(_resolve_tensor_name(name, nodes, label)))
        for name in output_names
    ]
    library = {f.signature.name: f for f in graph.library.function}
    return TensorflowModel(label, TensorflowGraph(nodes, inputs, pairs), library, graph.versions)


def _resolve_tensor_name(name: str, nodes: Mapping[str, Proto], label: str) -> str:
    """Resolve a tensor name of a function body to its graph name: Identity:output:0 becomes
    Identity:0.

    Raises CompileError for a result that the operator does not have.
    """
    if name.count(":") != 2:
        return name
    node, result, index = name.split(":")
    declared = op_def_registry.get(nodes[node].op)
    result_names = [] if declared is None else [argument.name for argument in declared.output_arg]
    if result not in result_names or not index.isdecimal():
        valid = ", ".join(map(repr, result_names)) or "nothing"
        raise CompileError(f"import {label}: {nodes[node].op} {node!r} gives {valid}; got {name!r}")
    before = declared.output_arg[: result_names.index(result)]
    return (
        f"{node}:{sum(_result_length(argument, nodes[node]) for argument in before) + int(index)}"
    )


def _result_length(result: Proto, node: Proto) -> int:
    """Return the number of tensors of one result of an operator."""
    if result.type_list_attr:
        return len(node.attr[result.type_list_attr].list.type)
    return int(node.attr[result.number_attr].i) if result.number_attr else 1


def _placeholder_shape(node: Proto) -> Dims:
    if "shape" in node.attr:
        return decode_shape(node.attr["shape"].shape)
    stated = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()
    return decode_shape(stated[0]) if stated else None


def _default_output_nodes(graph: Proto) -> list[str]:
    """Return the nodes that nothing reads, except control flow; without any, the ends of loops and
    branches.
    """
    # A frozen graph does not state its outputs: nodes that nothing reads are taken for them.
    read = {i.lstrip("^").partition(":")[0] for n in graph.node for i in n.input}
    switches = {n.name for n in graph.node if n.op in ("Switch", "RefSwitch")}
    free = [n for n in graph.node if n.name not in read]
    ends = [
        n.name
        for n in free
        if n.op not in (*_NO_OUTPUT_OPS, *_CONTROL_FLOW_ENDS)
        and not (n.op == "Identity" and any(i.partition(":")[0] in switches for i in n.input[:1]))
    ]
    return ends or [n.name for n in free if n.op in _CONTROL_FLOW_ENDS]


_NO_OUTPUT_OPS = ("Placeholder", "Const", "NoOp", "Assert", "Switch", "NextIteration")
_CONTROL_FLOW_ENDS = ("Exit", "Merge")


def _function_graph(proto: Proto) -> TensorflowGraph:
    # A FunctionDef names results "node:output:index"; the flat form is "node:index".
    graph, flat = function_def_to_graph_def(proto)
    nodes = {n.name: n for n in graph.node}
    inputs = [
        GraphInput(f"{a.name}:0", a.name, None, dtype_name(a.type))
        for a in proto.signature.input_arg
    ]
    outputs = [
        (a.name, normalize_tensor_name(flat[proto.ret[a.name]])) for a in proto.signature.output_arg
    ]
    return TensorflowGraph(nodes, inputs, outputs)
