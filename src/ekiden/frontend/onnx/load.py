"""Reading a model file and checking what an import relies on: that it is one, its opsets, its
names, its order.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ekiden.frontend.onnx.beside import bytes_of
from ekiden.frontend.onnx.messages import onnx
from ekiden.frontend.onnx.node import describe
from ekiden.frontend.onnx.weights import Weights, number_of
from ekiden.frontend.table import frontend, frontend_of
from ekiden.runtime.artifact.mapped_files import read_whole
from ekiden.runtime.errors import ImportModelError, UnsupportedError

OLDEST = 1
"""The oldest opset of the default domain that converters are written for."""
KNOWN = 22
"""The newest that every package `onnx` knows with which this one is installed (pyproject.toml):
which one the installed package knows is asked for models of newer ones alone."""

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto


def read_model(
    source: Source, weights: Weights | None = None
) -> tuple[onnx.ModelProto, str, tuple[str, ...]]:
    """The parsed model, its name for messages, and the files beside its own with weights of it.
    With `weights` the large ones are there, and not in the model.

    Raises ImportModelError for a file that is missing, cut short or no ONNX model, and for weights
    in files of their own that are missing or cut short.
    """
    if isinstance(source, (bytes, onnx.ModelProto)):
        model = _parse(source, "model", weights) if isinstance(source, bytes) else source
        _check_weights_are_here(model)
        return _checked(model, "model"), "model", ()
    path = os.fspath(source)
    label = f"model {os.path.basename(path.rstrip(os.sep))!r}"
    try:
        data = _read(path, weights)
    except OSError as error:
        raise ImportModelError(f"import {label}: cannot read {path!r}: {error.strerror}") from error
    try:
        model = _checked(_parse(data, label, weights), label)
    except ImportModelError as error:
        _told_apart(path, label, error)
        raise
    files = tuple(sorted({file for _, file in _outside(model)}))
    if files:
        _find_external_data(model, path, label, weights)
    return model, label, files


def _told_apart(path: str, label: str, error: ImportModelError) -> None:
    """Say what a file is that could not be read as ONNX, where another frontend takes it: functions
    and commands for ONNX alone are given such files. Raises ImportModelError."""
    row = frontend_of(path)
    if row is not None and row is not frontend("onnx"):
        text = f"import {label}: expected an ONNX model, got {row.model}"
        raise ImportModelError(text) from error


def _read(path: str, weights: Weights | None) -> memoryview:
    """The bytes of a file: mapped, where large weights stay in it."""
    found = None if weights is None else weights.files.map(path)
    if found is not None:
        return found
    with open(path, "rb", buffering=0) as file:
        return read_whole(file)


def _parse(data: bytes | memoryview, label: str, weights: Weights | None) -> onnx.ModelProto:
    try:
        return onnx.ModelProto.FromString(data if weights is None else weights.without(data))
    except DecodeError as error:
        raise ImportModelError(
            f"import {label}: expected an ONNX model, got {len(data)} bytes that do not parse "
            "as one (another format, or cut short)"
        ) from error


def _outside(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    """The tensors that lie in files of their own, and the names of those."""
    for each in _tensors(model):
        if each.data_location == onnx.TensorProto.EXTERNAL and number_of(each) is None:
            yield each, next((e.value for e in each.external_data if e.key == "location"), "")


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The initializers and the tensors of attributes, those inside nodes and functions too."""
    yield from model.graph.initializer
    yield from _sparse_parts(model.graph)
    for node in _inside([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else attribute.tensors
        for inner in subgraphs(node):
            yield from inner.initializer
            yield from _sparse_parts(inner)


def _sparse_parts(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The values and indices of sparse initializers."""
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def _check_weights_are_here(model: onnx.ModelProto) -> None:
    for weight, file in _outside(model):
        raise ImportModelError(
            f"import model: the weight {weight.name!r} lies in the file {file!r}, and a model "
            "without a path does not say where that is; give the path of the model instead, or "
            "load it with its weights (onnx.load)"
        )


def _find_external_data(
    model: onnx.ModelProto, path: str, label: str, weights: Weights | None
) -> None:
    """Let weights stay in the files beside a model; those that are not plain bytes of plain files,
    and all without `weights`, are for the package onnx to read, or to refuse."""
    folder = os.path.dirname(path) or os.curdir
    for weight, file in list(_outside(model)):
        if not os.path.exists(os.path.join(folder, file)):
            raise ImportModelError(
                f"import {label}: the weight {weight.name!r} lies in the file {file!r}, which must "
                f"be in the folder of the model, {folder!r}; there is none"
            )
        if weights is None or not weights.leave_beside(weight, folder):
            _load_external_data(weight, folder, label)


def _load_external_data(weight: onnx.TensorProto, folder: str, label: str) -> None:
    if all(entry.key != "length" for entry in weight.external_data):
        weight.external_data.add(key="length", value=str(bytes_of(weight)))
    try:
        onnx.external_data_helper.load_external_data_for_tensor(weight, folder)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ImportModelError(
            f"import {label}: cannot read the weights that lie beside it: {error}"
        ) from error
    weight.data_location = onnx.TensorProto.DEFAULT
    del weight.external_data[:]


def _checked(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ImportModelError(
            f"import {label}: expected an ONNX model, got one without a graph "
            "(another format, or cut short)"
        )
    if not model.opset_import:
        raise ImportModelError(f"import {label}: expected an 'opset_import', got none (cut short?)")
    _check_text(model, label)
    return model


def initializers(
    graph: onnx.GraphProto,
) -> list[tuple[str, onnx.TensorProto | onnx.SparseTensorProto]]:
    """Return the weights of a graph with their names; a sparse one has that of its values."""
    weights: list[tuple[str, onnx.TensorProto | onnx.SparseTensorProto]] = []
    weights += ((t.name, t) for t in graph.initializer)
    weights += ((t.values.name, t) for t in graph.sparse_initializer)
    return weights


def _check_text(model: onnx.ModelProto, label: str) -> None:
    """Raise ImportModelError where a name is not text: such a one comes as bytes."""
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    names = [v.name for v in (*model.graph.input, *model.graph.output)]
    names += (name for name, _ in initializers(model.graph))
    while nodes:
        node = nodes.pop()
        names += (node.op_type, node.domain, node.name, *node.input, *node.output)
        names += (a.name for a in node.attribute)
        for graph in subgraphs(node):
            names += (v.name for v in (*graph.input, *graph.output))
            names += (name for name, _ in initializers(graph))
            nodes.extend(graph.node)
    for name in names:
        if not isinstance(name, str):
            raise ImportModelError(f"import {label}: expected names in UTF-8, got {name!r}")


def versions_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Domain -> version; the default domain is ""."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in imports}


MAX_EXPANDED = 250_000
"""Nodes that a model may have when the bodies of its functions stand for their calls."""
Key = tuple[str, str, str]
Functions = Mapping[Key, onnx.FunctionProto]
"""(domain, name, overload) -> a function of the model."""


def local_functions(model: onnx.ModelProto, label: str) -> Functions:
    """The functions that a model defines. Raises ImportModelError where they call themselves."""
    found = {
        ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions
    }
    sizes = _sizes({key: Counter(map(key_of, _inside(f.node))) for key, f in found.items()}, label)
    size = sum(1 + sizes.get(key_of(n), 0) for n in _inside(model.graph.node))
    if found and size > MAX_EXPANDED:
        raise ImportModelError(
            f"import {label}: its functions stand for {size} nodes, at most {MAX_EXPANDED} expected"
        )
    return found


def _sizes(calls: Mapping[Key, Counter[Key]], label: str) -> dict[Key, int]:
    """Return how many nodes each function stands for, those that it calls included: `calls` are the
    operators of its nodes. Raises ImportModelError where functions call themselves."""
    inner = {key: [c for c in called if c in calls] for key, called in calls.items()}
    callers: dict[Key, list[Key]] = {key: [] for key in calls}
    for key, called in inner.items():
        for each in called:
            callers[each].append(key)
    left = {key: len(called) for key, called in inner.items()}
    ready = [key for key, count in left.items() if count == 0]
    sizes: dict[Key, int] = {}
    while ready:
        key = ready.pop()
        sizes[key] = sum(n * (1 + sizes.get(each, 0)) for each, n in calls[key].items())
        for caller in callers[key]:
            left[caller] -= 1
            if left[caller] == 0:
                ready.append(caller)
    if len(sizes) < len(calls):
        names = ", ".join(repr(key[1]) for key in calls if key not in sizes)
        raise ImportModelError(f"import {label}: functions must not call themselves: {names}")
    return sizes


def key_of(node: onnx.NodeProto) -> tuple[str, str, str]:
    """What a node calls, as a function of the model has it."""
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)


def _inside(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    waiting = list(nodes)
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(n for g in subgraphs(each) for n in g.node)


def opsets(model: onnx.ModelProto, label: str, override: int | None) -> dict[str, int]:
    """Version of each domain's operators; the default domain is "".

    Raises UnsupportedError for ones outside the known range, and for a file of a later format.
    """
    if model.ir_version > onnx.IR_VERSION:
        raise UnsupportedError(
            f"import {label}: expected an IR version up to {onnx.IR_VERSION}, which the installed "
            f"onnx package knows, got {model.ir_version}"
        )
    found = versions_of(model.opset_import)
    if override is not None:
        found[""] = override
    version = found.get("", KNOWN)
    newest = KNOWN if OLDEST <= version <= KNOWN else onnx.defs.onnx_opset_version()
    if not OLDEST <= version <= newest:
        raise UnsupportedError(
            f"import {label}: expected an opset from {OLDEST} to {newest}, which the installed "
            f"onnx package knows, got {version}"
        )
    return found


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs inside a node: branches, bodies."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]


def names_read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Every name that nodes, or nodes and results of the graphs inside them, refer to."""
    found: set[str] = set()
    waiting = list(nodes)
    while waiting:
        each = waiting.pop()
        found.update(each.input)
        for graph in subgraphs(each):
            found.update(o.name for o in graph.output)
            waiting.extend(graph.node)
    return found


def own_names(graph: onnx.GraphProto) -> set[str]:
    """What a graph names itself: inputs, initializers, results of its nodes."""
    found = {i.name for i in graph.input} | {name for name, _ in initializers(graph)}
    return found | {o for n in graph.node for o in n.output if o}


def reads(node: onnx.NodeProto) -> list[str]:
    """The tensors of the graph around that a node needs: its inputs, and what the graphs inside it
    take from outside.
    """
    found = [i for i in node.input if i]
    for graph in subgraphs(node):
        own = own_names(graph)
        inside = [i for n in graph.node for i in reads(n)] + [o.name for o in graph.output]
        found += [i for i in inside if i not in own]
    return found


def check_names(graph: onnx.GraphProto, label: str, outer: frozenset[str] = frozenset()) -> None:
    """Raise ImportModelError when two tensors have one name, or a node reads one that neither its
    graph nor one around it makes.
    """
    weights = {name for name, _ in initializers(graph)}
    inputs = [i.name for i in graph.input]
    made = [o for n in graph.node for o in n.output if o]
    counts = Counter([*inputs, *(w for w in weights if w not in set(inputs)), *made])
    twice = [repr(name) for name, count in counts.items() if count > 1]
    twice += [
        repr(name)
        for name, count in Counter(name for name, _ in initializers(graph)).items()
        if count > 1
    ]
    if twice:
        raise ImportModelError(
            f"import {label}: every tensor must be made once, "
            f"but {', '.join(twice)} {'is' if len(twice) == 1 else 'are'} made more than once"
        )
    seen = outer.union(counts)
    missing = list(_missing(graph, seen))
    if missing:
        raise ImportModelError(
            f"import {label}: expected an initializer, input or node for each tensor; "
            f"missing: {'; '.join(missing)}"
        )
    for node in graph.node:
        for inner in subgraphs(node):
            check_names(inner, label, seen)


def _missing(graph: onnx.GraphProto, made: frozenset[str]) -> Iterator[str]:
    for node in graph.node:
        for name in node.input:
            if name and name not in made:
                yield f"{name!r}, input of {describe(node)}"
    for output in graph.output:
        if output.name not in made:
            yield f"{output.name!r}, output of the model"


def sorted_nodes(graph: onnx.GraphProto, label: str) -> list[onnx.NodeProto]:
    """The nodes that outputs need, each after its producers, in the file's order if it has that.

    Raises ImportModelError naming the nodes of a cycle.
    """
    producer = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
    needed = [reads(n) for n in graph.node]
    order: list[int] = []
    state: dict[int, bool] = {}  # False while open, True when done
    for root in _producers(producer, (o.name for o in graph.output)):
        stack = [root]
        while stack:
            at = stack[-1]
            if at in state:
                stack.pop()
                if not state[at]:
                    state[at] = True
                    order.append(at)
                continue
            state[at] = False
            for each in _producers(producer, needed[at]):
                if state.get(each) is False:
                    _report_cycle(graph, stack, state, each, label)
                if each not in state:
                    stack.append(each)
    in_file = sorted(order)
    if all(p < at for at in in_file for p in _producers(producer, needed[at])):
        order = in_file
    return [graph.node[at] for at in order]


def _producers(producer: dict[str, int], names: Iterable[str]) -> list[int]:
    return [producer[n] for n in names if n in producer]


def _report_cycle(
    graph: onnx.GraphProto, stack: list[int], state: dict[int, bool], start: int, label: str
) -> None:
    loop = [i for i in stack[stack.index(start) :] if state.get(i) is False]
    path = " -> ".join(describe(graph.node[i]) for i in [start, *reversed(loop)])
    raise ImportModelError(f"import {label}: the graph must have no cycle, got {path}")
