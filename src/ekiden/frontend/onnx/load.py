"""Loading and validation of an ONNX model: parsing, external data, opsets, names, functions,
topological order.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ekiden.frontend.onnx.external_data import tensor_nbytes
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.node import describe_node
from ekiden.frontend.onnx.weight_registry import WeightRegistry, weight_number
from ekiden.frontend.registry import find_frontend, frontend_by_name
from ekiden.runtime.artifact.mapped_files import read_remaining
from ekiden.runtime.errors import ImportModelError, UnsupportedError

OLDEST_OPSET = 1
"""The oldest opset of the default domain that converters are written for."""
NEWEST_BUNDLED_OPSET = 22
"""The newest that every package `onnx` knows with which this one is installed (pyproject.toml):
which one the installed package knows is asked for models of newer ones alone."""

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto


def read_model(
    source: ModelSource, weights: WeightRegistry | None = None
) -> tuple[onnx.ModelProto, str, tuple[str, ...]]:
    """Load a model; return it with its label for messages and the names of its external data files.

    With `weights`, large weights are registered there and stay out of the message.

    Returns:
        The model, its name for messages, and the external data files that it refers to.

    Raises:
        ImportModelError: the file is missing, truncated or not an ONNX model, or its external data
            are missing or truncated.
    """
    if isinstance(source, (bytes, onnx.ModelProto)):
        model = _parse_model(source, "model", weights) if isinstance(source, bytes) else source
        _check_no_external_data(model)
        return _validate_model(model, "model"), "model", ()
    path = os.fspath(source)
    label = f"model {os.path.basename(path.rstrip(os.sep))!r}"
    try:
        data = _read_file(path, weights)
    except OSError as error:
        raise ImportModelError(f"import {label}: cannot read {path!r}: {error.strerror}") from error
    try:
        model = _validate_model(_parse_model(data, label, weights), label)
    except ImportModelError as error:
        _reject_other_format(path, label, error)
        raise
    files = tuple(sorted({file for _, file in _external_tensors(model)}))
    if files:
        _find_external_data(model, path, label, weights)
    return model, label, files


def _reject_other_format(path: str, label: str, error: ImportModelError) -> None:
    """Raise ImportModelError if another frontend recognises the file's format."""
    row = find_frontend(path)
    if row is not None and row is not frontend_by_name("onnx"):
        text = f"import {label}: expected an ONNX model, got {row.model_noun}"
        raise ImportModelError(text) from error


def _read_file(path: str, weights: WeightRegistry | None) -> memoryview:
    """Return the bytes of a file, memory-mapped if its large weights are to stay there."""
    mapping = None if weights is None else weights.files.map(path)
    if mapping is not None:
        return mapping
    with open(path, "rb", buffering=0) as file:
        return read_remaining(file)


def _parse_model(
    data: bytes | memoryview, label: str, weights: WeightRegistry | None
) -> onnx.ModelProto:
    """Parse a ModelProto, with the large weights cut out if a registry is given."""
    try:
        return onnx.ModelProto.FromString(data if weights is None else weights.strip_weights(data))
    except DecodeError as error:
        raise ImportModelError(
            f"import {label}: expected an ONNX model, got {len(data)} bytes that do not parse "
            "as one (another format, or cut short)"
        ) from error


def _external_tensors(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    """Yield each tensor with external data and the file that holds it."""
    for tensor in _stored_tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL and weight_number(tensor) is None:
            yield tensor, next((e.value for e in tensor.external_data if e.key == "location"), "")


def _stored_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all initializers and attribute tensors, also of subgraphs and functions."""
    yield from model.graph.initializer
    yield from _sparse_tensors(model.graph)
    for node in _nested_nodes([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else attribute.tensors
        for inner in subgraph_attributes(node):
            yield from inner.initializer
            yield from _sparse_tensors(inner)


def _sparse_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the value and index tensors of sparse initializers."""
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def _check_no_external_data(model: onnx.ModelProto) -> None:
    """Raise ImportModelError for external data of a model without a path."""
    for weight, file in _external_tensors(model):
        raise ImportModelError(
            f"import model: the weight {weight.name!r} lies in the file {file!r}, and a model "
            "without a path does not say where that is; give the path of the model instead, or "
            "load it with its weights (onnx.load)"
        )


def _find_external_data(
    model: onnx.ModelProto, path: str, label: str, weights: WeightRegistry | None
) -> None:
    """Map the external data of a model's weights, or load what cannot be mapped. Data that are not
    plain bytes of regular files, and all data without `weights`, are left to the package onnx to
    read or to reject.
    """
    folder = os.path.dirname(path) or os.curdir
    for weight, file in list(_external_tensors(model)):
        if not os.path.exists(os.path.join(folder, file)):
            raise ImportModelError(
                f"import {label}: the weight {weight.name!r} lies in the file {file!r}, which must "
                f"be in the folder of the model, {folder!r}; there is none"
            )
        if weights is None or not weights.register_external(weight, folder):
            _load_external_data(weight, folder, label)


def _load_external_data(weight: onnx.TensorProto, folder: str, label: str) -> None:
    # onnx reads to the end of the file without a length, which takes in the weights stored after
    # this one.
    """Load one tensor's external data into its message."""
    if all(entry.key != "length" for entry in weight.external_data):
        weight.external_data.add(key="length", value=str(tensor_nbytes(weight)))
    try:
        onnx.external_data_helper.load_external_data_for_tensor(weight, folder)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ImportModelError(
            f"import {label}: cannot read the weights stored beside it: {error}"
        ) from error
    weight.data_location = onnx.TensorProto.DEFAULT
    del weight.external_data[:]


def _validate_model(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """Validate that a message is a model with a graph and opset imports, and return it."""
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ImportModelError(
            f"import {label}: expected an ONNX model, got one without a graph "
            "(another format, or cut short)"
        )
    if not model.opset_import:
        raise ImportModelError(f"import {label}: expected an 'opset_import', got none (cut short?)")
    _check_utf8_names(model, label)
    return model


def named_initializers(
    graph: onnx.GraphProto,
) -> list[tuple[str, onnx.TensorProto | onnx.SparseTensorProto]]:
    """Return (name, tensor) of a graph's initializers; a sparse one goes by the name of
    its values.
    """
    weights: list[tuple[str, onnx.TensorProto | onnx.SparseTensorProto]] = []
    weights += ((t.name, t) for t in graph.initializer)
    # SparseTensorProto has no name of its own.
    weights += ((t.values.name, t) for t in graph.sparse_initializer)
    return weights


def _check_utf8_names(model: onnx.ModelProto, label: str) -> None:
    """Raise ImportModelError for a name that is not UTF-8, which protobuf gives as bytes."""
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    names = [v.name for v in (*model.graph.input, *model.graph.output)]
    names += (name for name, _ in named_initializers(model.graph))
    while nodes:
        node = nodes.pop()
        names += (node.op_type, node.domain, node.name, *node.input, *node.output)
        names += (a.name for a in node.attribute)
        for graph in subgraph_attributes(node):
            names += (v.name for v in (*graph.input, *graph.output))
            names += (name for name, _ in named_initializers(graph))
            nodes.extend(graph.node)
    for name in names:
        if not isinstance(name, str):
            raise ImportModelError(f"import {label}: expected names in UTF-8, got {name!r}")


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return domain -> opset version; the default domain is ""."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in imports}


MAX_INLINED_NODES = 250_000
"""Nodes that a model may have when the bodies of its functions stand for their calls."""
FunctionKey = tuple[str, str, str]
Functions = Mapping[FunctionKey, onnx.FunctionProto]
"""(domain, name, overload) -> a function of the model."""


def local_functions(model: onnx.ModelProto, label: str) -> Functions:
    """Return the model-local functions by (domain, name, overload). Raises ImportModelError where
    they are recursive or expand to more than MAX_INLINED_NODES nodes.
    """
    functions = {
        ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions
    }
    sizes = _inlined_sizes(
        {key: Counter(map(function_key, _nested_nodes(f.node))) for key, f in functions.items()},
        label,
    )
    size = sum(1 + sizes.get(function_key(n), 0) for n in _nested_nodes(model.graph.node))
    # Bound before expansion: nested calls can grow exponentially with the size of the file.
    if functions and size > MAX_INLINED_NODES:
        raise ImportModelError(
            f"import {label}: its functions stand for {size} nodes, "
            f"at most {MAX_INLINED_NODES} expected"
        )
    return functions


def _inlined_sizes(
    calls: Mapping[FunctionKey, Counter[FunctionKey]], label: str
) -> dict[FunctionKey, int]:
    """Return the number of nodes that each function expands to, nested calls included. Raises
    ImportModelError for recursion.
    """
    inner = {key: [c for c in called if c in calls] for key, called in calls.items()}
    callers: dict[FunctionKey, list[FunctionKey]] = {key: [] for key in calls}
    for key, called in inner.items():
        for callee in called:
            callers[callee].append(key)
    pending = {key: len(called) for key, called in inner.items()}
    # Kahn's topological sort over the call graph: what is never ready lies on a cycle.
    ready = [key for key, count in pending.items() if count == 0]
    sizes: dict[FunctionKey, int] = {}
    while ready:
        key = ready.pop()
        sizes[key] = sum(n * (1 + sizes.get(called_key, 0)) for called_key, n in calls[key].items())
        for caller in callers[key]:
            pending[caller] -= 1
            if pending[caller] == 0:
                ready.append(caller)
    if len(sizes) < len(calls):
        names = ", ".join(repr(key[1]) for key in calls if key not in sizes)
        raise ImportModelError(f"import {label}: functions must not call themselves: {names}")
    return sizes


def function_key(node: onnx.NodeProto) -> tuple[str, str, str]:
    """Return the (domain, operator, overload) that identifies a model-local function."""
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)


def _nested_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of their subgraphs, depth first."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(n for g in subgraph_attributes(node) for n in g.node)


def model_opsets(model: onnx.ModelProto, label: str, override: int | None) -> dict[str, int]:
    """Return domain -> opset version, with the default domain's replaced by `override`; raise for
    unknown versions.

    Raises UnsupportedError for ones outside the known range, and for a file of a later format.
    """
    # Protobuf ignores fields that it does not know: a newer IR could be read wrongly without an
    # error.
    if model.ir_version > onnx.IR_VERSION:
        raise UnsupportedError(
            f"import {label}: expected an IR version up to {onnx.IR_VERSION}, which the installed "
            f"onnx package knows, got {model.ir_version}"
        )
    versions = opset_versions(model.opset_import)
    if override is not None:
        versions[""] = override
    version = versions.get("", NEWEST_BUNDLED_OPSET)
    # onnx.defs loads the whole package; it is asked only where the bundled bound does not decide.
    newest = (
        NEWEST_BUNDLED_OPSET
        if OLDEST_OPSET <= version <= NEWEST_BUNDLED_OPSET
        else onnx.defs.onnx_opset_version()
    )
    if not OLDEST_OPSET <= version <= newest:
        raise UnsupportedError(
            f"import {label}: expected an opset from {OLDEST_OPSET} to {newest}, which the "
            f"installed onnx package knows, got {version}"
        )
    return versions


def subgraph_attributes(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graph attributes of a node: branches and loop bodies."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]


def referenced_names(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return every name read by nodes, and by nodes and results of their subgraphs."""
    names: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        names.update(node.input)
        for graph in subgraph_attributes(node):
            names.update(o.name for o in graph.output)
            waiting.extend(graph.node)
    return names


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a graph defines: inputs, initializers and node outputs."""
    # An empty output name marks an output that the node does not produce.
    names = {i.name for i in graph.input} | {name for name, _ in named_initializers(graph)}
    return names | {o for n in graph.node for o in n.output if o}


def required_names(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node reads from its graph: its inputs and the captures of its
    subgraphs.
    """
    names = [i for i in node.input if i]
    for graph in subgraph_attributes(node):
        graph_names = defined_names(graph)
        inside = [i for n in graph.node for i in required_names(n)] + [o.name for o in graph.output]
        names += [i for i in inside if i not in graph_names]
    return names


def check_names(graph: onnx.GraphProto, label: str, outer: frozenset[str] = frozenset()) -> None:
    """Raise ImportModelError for a name that is defined twice or read but never defined."""
    weights = {name for name, _ in named_initializers(graph)}
    inputs = [i.name for i in graph.input]
    produced = [o for n in graph.node for o in n.output if o]
    # An initializer may repeat the name of an input (IR version < 4 requires it): that is its
    # default.
    counts = Counter([*inputs, *(w for w in weights if w not in set(inputs)), *produced])
    twice = [repr(name) for name, count in counts.items() if count > 1]
    twice += [
        repr(name)
        for name, count in Counter(name for name, _ in named_initializers(graph)).items()
        if count > 1
    ]
    if twice:
        raise ImportModelError(
            f"import {label}: every tensor must be made once, "
            f"but {', '.join(twice)} {'is' if len(twice) == 1 else 'are'} made more than once"
        )
    visible = outer.union(counts)
    missing = list(_undefined_names(graph, visible))
    if missing:
        raise ImportModelError(
            f"import {label}: expected an initializer, input or node for each tensor; "
            f"missing: {'; '.join(missing)}"
        )
    for node in graph.node:
        for inner in subgraph_attributes(node):
            check_names(inner, label, visible)


def _undefined_names(graph: onnx.GraphProto, defined: frozenset[str]) -> Iterator[str]:
    """Yield a message for each name that is read but not defined."""
    for node in graph.node:
        for name in node.input:
            if name and name not in defined:
                yield f"{name!r}, input of {describe_node(node)}"
    for output in graph.output:
        if output.name not in defined:
            yield f"{output.name!r}, output of the model"


def topological_order(graph: onnx.GraphProto, label: str) -> list[onnx.NodeProto]:
    """Return the nodes that the outputs need in topological order, in file order if that is one.

    Raises ImportModelError naming the nodes of a cycle.
    """
    producer = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
    needed = [required_names(n) for n in graph.node]
    order: list[int] = []
    state: dict[int, bool] = {}  # False while open, True when done
    for root in _producer_indices(producer, (o.name for o in graph.output)):
        # Iterative depth-first search: graphs of tens of thousands of nodes would overflow Python's
        # stack.
        stack = [root]
        while stack:
            position = stack[-1]
            if position in state:
                stack.pop()
                if not state[position]:
                    state[position] = True
                    order.append(position)
                continue
            state[position] = False
            for dependency in _producer_indices(producer, needed[position]):
                if state.get(dependency) is False:
                    _raise_cycle(graph, stack, state, dependency, label)
                if dependency not in state:
                    stack.append(dependency)
    # File order is kept where it is valid, so that nodes are reported as the model lists them.
    in_file = sorted(order)
    if all(
        p < position for position in in_file for p in _producer_indices(producer, needed[position])
    ):
        order = in_file
    return [graph.node[position] for position in order]


def _producer_indices(producer: dict[str, int], names: Iterable[str]) -> list[int]:
    """Return the indices of the nodes that produce the given names."""
    return [producer[n] for n in names if n in producer]


def _raise_cycle(
    graph: onnx.GraphProto, stack: list[int], state: dict[int, bool], start: int, label: str
) -> None:
    """Raise ImportModelError with the nodes of a cycle in the graph."""
    loop = [i for i in stack[stack.index(start) :] if state.get(i) is False]
    path = " -> ".join(describe_node(graph.node[i]) for i in [start, *reversed(loop)])
    raise ImportModelError(f"import {label}: the graph must have no cycle, got {path}")
