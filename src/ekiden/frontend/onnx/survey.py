"""Survey of an ONNX model: its operators, inputs, outputs and unsupported nodes, without
an import.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.frontend.common.survey import Operator, Port, Problem, Survey
from ekiden.frontend.common.value import input_dim_name
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.frontend.onnx.load import (
    Functions,
    ModelSource,
    function_key,
    local_functions,
    model_opsets,
    named_initializers,
    read_model,
    subgraph_attributes,
    topological_order,
)
from ekiden.frontend.onnx.node import describe_node
from ekiden.frontend.onnx.operator_check import (
    canonical_domain,
    lookup_converter,
    unsupported_nodes,
)

if TYPE_CHECKING:
    from ekiden.frontend.onnx import function_body
else:
    function_body = LazyModule("ekiden.frontend.onnx.function_body")


def survey(model: ModelSource, opset: int | None = None) -> Survey:
    """Survey a model: count its operators and check which nodes can be imported. Raises
    ImportModelError for what is not an ONNX model.
    """
    proto, label, _ = read_model(model)
    versions = model_opsets(proto, label, opset)
    nodes = _flatten_nodes(topological_order(proto.graph, label))
    functions = local_functions(proto, label)
    problems = tuple(
        Problem(
            describe_node(n),
            canonical_domain(n),
            n.op_type,
            versions.get(canonical_domain(n), 1),
            reason,
        )
        for n, reason in unsupported_nodes(
            topological_order(proto.graph, label), versions, functions
        )
    )
    weights = dict(named_initializers(proto.graph))
    counts = Counter((canonical_domain(n), n.op_type) for n in nodes)
    sample = {(canonical_domain(n), n.op_type): n for n in nodes}
    constants = [
        a.t for n in nodes if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    ]
    sizes = [_tensor_size(t) for t in (*weights.values(), *constants)]
    return Survey(
        label,
        versions,
        tuple(
            Operator(*k, c, _implementation_kind(sample[k], versions, functions))
            for k, c in sorted(counts.items())
        ),
        problems,
        tuple(_make_port(i) for i in proto.graph.input if i.name not in weights),
        tuple(map(_make_port, proto.graph.output)),
        sum(count for count, _ in sizes),
        sum(nbytes for _, nbytes in sizes),
    )


def _flatten_nodes(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes and those of their subgraphs."""
    nodes_found, waiting = [], list(nodes)
    while waiting:
        node = waiting.pop()
        nodes_found.append(node)
        waiting.extend(n for g in subgraph_attributes(node) for n in g.node)
    return nodes_found


def _implementation_kind(
    node: onnx.NodeProto, versions: dict[str, int], functions: Functions
) -> str:
    """Return how an operator is implemented: "kernel", "function" or "none"."""
    if function_key(node) in functions:
        return "function"
    if lookup_converter(node, versions) is not None:
        return "kernel"
    domain = canonical_domain(node)
    is_function = function_body.has_function(node, domain, versions.get(domain, 1))
    return "function" if is_function else "none"


def _tensor_size(tensor: onnx.TensorProto | onnx.SparseTensorProto) -> tuple[int, int]:
    """Return the number of elements and of bytes of a tensor, sparse ones as dense."""
    count = math.prod(tensor.dims)
    kind = tensor.values if isinstance(tensor, onnx.SparseTensorProto) else tensor
    try:
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(kind.data_type).itemsize
    except (KeyError, ValueError, TypeError):
        itemsize = 0
    return count, count * itemsize


def _make_port(info: onnx.ValueInfoProto) -> Port:
    """Return the name, dtype and shape of a graph input or output."""
    kind = info.type.WhichOneof("value") or "unknown"
    if kind != "tensor_type":
        return Port(info.name, kind.removesuffix("_type"), None)
    tensor = info.type.tensor_type
    names = {v: k.lower() for k, v in onnx.TensorProto.DataType.items()}
    dtype = {"float": "float32", "double": "float64"}.get(
        names.get(tensor.elem_type, ""), names.get(tensor.elem_type, str(tensor.elem_type))
    )
    if not tensor.HasField("shape"):
        return Port(info.name, dtype, None)
    dims = [
        int(d.dim_value)
        if d.HasField("dim_value") and d.dim_value >= 0
        else input_dim_name(info.name, i, d.dim_param)
        for i, d in enumerate(tensor.shape.dim)
    ]
    return Port(info.name, dtype, tuple(dims))
