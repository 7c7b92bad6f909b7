"""The walk over an ONNX graph: nodes in order, each through its row of the converter table, into
one Relay function.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import onnx

from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.function_body import body, defined_by, has_function
from ekiden.frontend.onnx.load import Source, check_names, opsets, read_model, sorted_nodes
from ekiden.frontend.onnx.node import Node, Result, Row, describe, read_attribute
from ekiden.frontend.onnx.registry import TABLE
from ekiden.frontend.onnx.scope import Facts, Learned, Scope, field_types, with_span
from ekiden.frontend.onnx.shape_value import evaluate, fold
from ekiden.frontend.onnx.unsupported import Unsupported
from ekiden.frontend.onnx.value import Names, Value, clean_name, constant
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.span import Span
from ekiden.ir.type import TensorType, TupleType
from ekiden.relay.expr import Expr, Function, Tuple, TupleGetItem, Var
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError

Shapes: TypeAlias = Mapping[str, Sequence[int | str | None]]
"""Shapes of inputs by name: numbers, names of symbolic dimensions, None for ones without a name."""

DEFAULT_DOMAINS = ("", "ai.onnx")
_UNNAMED = ("None", "unknown", "unk")
"""Names that exporters give to dimensions they know nothing of: not one dimension, however often
they occur.
"""


def from_onnx(
    model: Source, shape: Shapes | None = None, opset: int | None = None, freeze_params: bool = True
) -> IRModule:
    """A module whose `main` computes an ONNX model, given as path, bytes or ModelProto.

    Weights become constants; with `freeze_params=False` the floating-point ones become further
    parameters of main, and `attrs["params"]` maps their names to arrays. Named dimensions of inputs
    stay symbolic; `shape` gives other shapes by input name. `opset` overrides the version that the
    model states.

    `attrs["input_names"]` and `attrs["output_names"]` hold the model's own names in order;
    `attrs["constraints"]` holds pairs (condition on the symbolic dimensions, node that needs it)
    which every run must meet.

    Raises ImportModelError for a broken model, and UnsupportedError listing every node that cannot
    be imported.
    """
    proto, label = read_model(model)
    check_names(proto.graph, label)
    versions = opsets(proto, label, opset)
    nodes = sorted_nodes(proto.graph, label)
    _check_operators(nodes, versions, label)
    facts = Facts()
    while True:
        try:
            return _Import(
                proto.graph, nodes, versions, label, facts, shape or {}, freeze_params
            ).run()
        except Learned:
            continue  # each restart knows one fact more about a dimension, of which there are few


def _check_operators(
    nodes: Sequence[onnx.NodeProto], versions: Mapping[str, int], label: str
) -> None:
    """Raise UnsupportedError for all nodes whose operator, opset or attributes no row has."""
    problems: list[str] = []
    for each in nodes:
        problems.extend(f"{describe(each)}: {p}" for p in _node_problems(each, versions))
    _raise_problems(problems, label)


def _raise_problems(
    problems: Sequence[str], label: str, inputs: Mapping[str, None] | None = None
) -> None:
    if problems:
        nodes = "1 node is" if len(problems) == 1 else f"{len(problems)} nodes are"
        raise UnsupportedError(
            "\n  ".join([f"import {label}: {nodes} not supported", *problems]), tuple(inputs or ())
        )


def _domain(node: onnx.NodeProto) -> str:
    return "" if node.domain in DEFAULT_DOMAINS else node.domain


def _schema_version(node: onnx.NodeProto, versions: Mapping[str, int]) -> int:
    """The opset in which the node's meaning was last changed; the stated version for domains that
    ONNX does not define.
    """
    domain = _domain(node)
    stated = versions.get(domain, 1)
    try:
        return int(onnx.defs.get_schema(node.op_type, stated, domain).since_version)
    except onnx.defs.SchemaError:
        return stated


def _find_row(node: onnx.NodeProto, versions: Mapping[str, int]) -> Row | None:
    version = _schema_version(node, versions)
    rows = [r for r in TABLE.get((_domain(node), node.op_type), ()) if r.since <= version]
    return max(rows, key=lambda r: r.since) if rows else None


def _node_problems(node: onnx.NodeProto, versions: Mapping[str, int]) -> list[str]:
    domain = _domain(node)
    if (domain, node.op_type) not in TABLE:
        if has_function(node, domain, _schema_version(node, versions)):
            return []
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            return ["operators with sub-graphs are not supported"]
        names = sorted({name for d, name in TABLE if d == domain} or {name for _, name in TABLE})
        near = difflib.get_close_matches(node.op_type, names, n=3, cutoff=0.6)
        known = f"; the nearest supported are {', '.join(near)}" if near else ""
        return [f"unknown operator{known}"]
    row = _find_row(node, versions)
    if row is None:
        oldest = min(r.since for r in TABLE[domain, node.op_type])
        return [f"opset {versions.get(domain, 1)} is not supported; expected {oldest} or newer"]
    return _attribute_problems(node, row, _schema_version(node, versions))


def _attribute_problems(node: onnx.NodeProto, row: Row, version: int) -> list[str]:
    supported = row.attributes.split()
    problems = []
    for each in node.attribute:
        try:
            value = read_attribute(each)
        except Unsupported as error:
            problems.append(str(error))
            continue
        if each.name not in supported and not _is_default(node, each, version):
            choice = f"supported are {', '.join(supported)}" if supported else "it has none"
            problems.append(f"unknown attribute {each.name!r}; {choice}")
        elif each.name in row.values and value not in row.values[each.name]:
            allowed = ", ".join(map(repr, row.values[each.name]))
            problems.append(f"attribute {each.name!r} must be one of {allowed}, got {value!r}")
    return problems


def _is_default(node: onnx.NodeProto, attribute: onnx.AttributeProto, version: int) -> bool:
    """Whether an attribute says no more than its absence would."""
    try:
        schema = onnx.defs.get_schema(node.op_type, version, _domain(node))
    except onnx.defs.SchemaError:
        return False
    declared = schema.attributes.get(attribute.name)
    if declared is None or declared.default_value.type == onnx.AttributeProto.UNDEFINED:
        return False
    return bool(read_attribute(attribute) == read_attribute(declared.default_value))


class _Import:
    """One attempt with what is known so far about the dimensions."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        nodes: Sequence[onnx.NodeProto],
        versions: Mapping[str, int],
        label: str,
        facts: Facts,
        shapes: Shapes,
        freeze_params: bool,
    ) -> None:
        self.graph, self.nodes, self.versions = graph, nodes, versions
        self.label, self.shapes, self.freeze_params = label, shapes, freeze_params
        self.names = Names()
        self.values: dict[str, Value] = {}
        self.weights = {t.name: t for t in graph.initializer}
        self.params: dict[str, object] = {}
        self.problems: list[str] = []
        self.needed: dict[str, None] = {}
        used = {i for n in nodes for i in n.input} | {o.name for o in graph.output}
        self.scope = Scope(facts, frozenset(used))

    def run(self) -> IRModule:
        """Import everything, or raise."""
        inputs = [i for i in self.graph.input if i.name not in self.weights]
        self._check_shapes([i.name for i in inputs])
        for each in inputs:
            self._input(each)
        for node in self.nodes:
            self._node(node, self.versions)
        _raise_problems(self.problems, self.label, self.needed)
        outputs = [self._output(o.name) for o in self.graph.output]
        if not outputs:
            raise ImportModelError(f"import {self.label}: expected at least one output, got none")
        body = outputs[0] if len(outputs) == 1 else Tuple(tuple(outputs), span=Span("outputs"))
        types = tuple(self.scope.type_of(o) for o in outputs)
        function = Function(
            tuple(self.scope.params), body, types[0] if len(types) == 1 else TupleType(types)
        )
        attrs: dict[str, object] = {
            "input_names": (*(i.name for i in inputs), *self.params),
            "output_names": tuple(o.name for o in self.graph.output),
            "constraints": tuple(self.scope.constraints.values()),
        }
        if not self.freeze_params:
            attrs["params"] = self.params
        return IRModule({"main": function}, attrs=attrs)

    # Inputs and weights.

    def _check_shapes(self, names: Sequence[str]) -> None:
        unknown = [repr(n) for n in self.shapes if n not in names]
        if unknown:
            have = ", ".join(map(repr, names))
            raise ImportModelError(
                f"import {self.label}: shape is given for {', '.join(unknown)}; "
                f"the inputs are {have}"
            )

    def _input(self, info: onnx.ValueInfoProto) -> None:
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type"):
            raise UnsupportedError(f"import {self.label}: input {info.name!r} must be a tensor")
        if not kind.HasField("shape") and info.name not in self.shapes:
            raise ImportModelError(
                f"import {self.label}: input {info.name!r} has no shape; "
                f"give one with shape={{{info.name!r}: ...}}"
            )
        try:
            dtype = from_onnx_dtype(kind.elem_type)
        except Unsupported as error:
            raise UnsupportedError(f"import {self.label}: input {info.name!r}: {error}") from error
        self._add_param(info.name, TensorType(self._shape(info), dtype))

    def _add_param(self, name: str, type_: TensorType) -> None:
        var = Var(self.names.unique(name, "input"), type_, span=Span(f"input '{name}'"))
        var.set_checked_type(type_)
        self.scope.add_param(var, type_, name)
        self.values[name] = Value(type_, expr=var)

    def _shape(self, info: onnx.ValueInfoProto) -> tuple[PrimExpr, ...]:
        given = self.shapes.get(info.name)
        dims = [_stated(d) for d in info.type.tensor_type.shape.dim] if given is None else given
        return tuple(self._dim(info.name, axis, d) for axis, d in enumerate(dims))

    def _dim(self, name: str, axis: int, stated: int | str | None) -> PrimExpr:
        if isinstance(stated, int) and stated >= 0:
            return const(stated)
        cleaned = clean_name(stated) if isinstance(stated, str) and stated not in _UNNAMED else ""
        return self.scope.symbol(cleaned or f"{clean_name(name) or 'input'}_dim{axis}")

    def _weight(self, name: str) -> Value:
        proto = self.weights[name]
        try:
            from_onnx_dtype(proto.data_type)
            array = onnx.numpy_helper.to_array(proto)
        except Unsupported as error:
            raise UnsupportedError(f"import {self.label}: initializer {name!r}: {error}") from error
        except (ValueError, TypeError) as error:
            raise ImportModelError(
                f"import {self.label}: initializer {name!r} is broken: {error}"
            ) from error
        value = constant(array)
        if not self.freeze_params and array.dtype.kind == "f":
            self._add_param(name, value.type)
            self.params[name] = array
            return self.values[name]
        assert value.expr is not None
        value.expr = with_span([value.expr], Span(f"initializer '{name}'"))[0]
        return value

    def _value(self, name: str) -> Value:
        if name not in self.values:
            self.values[name] = self._weight(name)
        return self.values[name]

    def _output(self, name: str) -> Expr:
        return self.scope.expr(self._value(name))

    # Nodes.

    def _node(self, proto: onnx.NodeProto, versions: Mapping[str, int]) -> None:
        if any(i and i not in self.values and i not in self.weights for i in proto.input):
            return  # made by a node that has already been reported
        inputs = [self._value(i) if i else None for i in proto.input]
        row = _find_row(proto, versions)
        if row is None:
            self._expand(proto, versions, inputs)
            return
        node = Node(
            proto,
            _schema_version(proto, versions),
            {a.name: read_attribute(a) for a in proto.attribute},
            inputs,
            self.scope,
        )
        self.scope.span = Span(describe(proto))
        try:
            self._define(proto, evaluate(node) or fold(node, row.convert(node)))
        except Unsupported as error:
            self.problems.append(f"{describe(proto)}: {error}")
            self.needed.update(dict.fromkeys(error.inputs))
        except (CompileError, ValueError) as error:
            raise ImportModelError(f"import {self.label}: {describe(proto)}: {error}") from error

    def _expand(
        self, proto: onnx.NodeProto, versions: Mapping[str, int], inputs: Sequence[Value | None]
    ) -> None:
        """Import the nodes of the function that defines an operator."""
        version = _schema_version(proto, versions)
        function = defined_by(proto, _domain(proto), version, inputs)
        nodes, inner = body(function, proto, self.label)
        problems = [f"{describe(n)}: {p}" for n in nodes for p in _node_problems(n, inner)]
        self.problems += problems
        self.scope.used |= {i for n in nodes for i in n.input}
        for node in () if problems else nodes:
            self._node(node, inner)

    def _define(self, proto: onnx.NodeProto, result: Result) -> None:
        """Give the outputs of a node their names."""
        many = (
            self._fields(result)
            if isinstance(result, Expr)
            else list(result)
            if isinstance(result, Sequence)
            else [result]
        )
        wanted = [
            (i, name) for i, name in enumerate(proto.output) if name in self.scope.used and name
        ]
        for index, name in wanted:
            if index >= len(many) or many[index] is None:
                raise Unsupported(f"output {index} ({name!r}) is not supported")
        exprs = {i: e for i, _ in wanted if isinstance(e := many[i], Expr)}
        types = {i: self.scope.typed(e) for i, e in exprs.items()}
        spanned = dict(zip(exprs, with_span(list(exprs.values()), self.scope.span), strict=True))
        for index, name in wanted:
            found = many[index]
            self.values[name] = (
                found if isinstance(found, Value) else Value(types[index], expr=spanned[index])
            )

    def _fields(self, expr: Expr) -> list[Expr | Value | None]:
        found = self.scope.type_of(expr)
        if isinstance(found, TensorType):
            return [expr]
        return [TupleGetItem(expr, i) for i in range(len(field_types(found)))]


def _stated(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or None
