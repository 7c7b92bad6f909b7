"""Importer of an FX graph, which converts nodes in order by the converter table."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import torch

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.graph_walk import GraphWalk
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.torch.dtype import COMPLEX_PART_DTYPES, from_torch_dtype, tensor_to_array
from ekiden.frontend.torch.functionalization import aliased_tensor_node, functional_variant
from ekiden.frontend.torch.node import ComplexResult, Converter, FxNode, describe_node
from ekiden.frontend.torch.registry import (
    converter_signature,
    require_complex_rule,
    require_converter,
)
from ekiden.frontend.torch.sympy_conversion import SymbolTable, symbol_name
from ekiden.ir.dtype import to_numpy
from ekiden.ir.prim import PrimExpr, SizeVar
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Expr

FAILED_NODE = object()
"""Stands for what a node that has been reported would have given."""


class FxImporter:
    """Importer of an FX graph: a program's, or a subgraph of a node."""

    def __init__(self, module: torch.fx.GraphModule, walk: GraphWalk, symbols: SymbolTable) -> None:
        self.module, self.walk, self.symbols = module, walk, symbols
        self.env: dict[torch.fx.Node, object] = {}
        self.same: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        """The nodes that give the very same tensor, where one is written into."""
        self.scope: Scope = walk.scope
        self.live: set[torch.fx.Node] = set()
        """The nodes that have an effect or are read."""
        self.generator: Value | None = None
        """What the next random numbers are drawn with; None where none may be drawn."""
        self.is_vectorized = False
        """Whether a graph of single numbers is run for tensors of them."""

    @property
    def inputs(self) -> list[torch.fx.Node]:
        """Return the placeholders."""
        return [n for n in self.module.graph.nodes if n.op == "placeholder"]

    def import_graph(self, inputs: Sequence[object]) -> list[object]:
        """Import the graph for these inputs; return its outputs.

        Raises:
            Unsupported: A node of the graph has been reported.
        """
        self.env.update(zip(self.inputs, inputs, strict=True))
        self.import_nodes()
        outputs = self.outputs()
        if any(item is FAILED_NODE for item in outputs):
            raise Unsupported("")
        return outputs

    def make_subgraph_importer(self, module: torch.fx.GraphModule) -> FxImporter:
        """Return an importer of a subgraph of one of the nodes."""
        return FxImporter(module, self.walk, self.symbols)

    def import_nodes(self, results: Sequence[torch.fx.Node] | None = None) -> None:
        """Import the live nodes; `results` replace the outputs as what is read. Raises Unsupported
        for a node that is no call, input or output.
        """
        self.live = _live_nodes(self.module.graph, results)
        for node in self.module.graph.nodes:
            if node in self.env or node not in self.live:
                continue  # an input, or what is given as one; what nobody reads
            if node.op == "get_attr":
                self.env[node] = self._import_attribute(str(node.target))
            elif node.op == "call_function":
                self._import_call(node)
            elif node.op not in ("placeholder", "output"):
                raise Unsupported(f"a node of the kind {node.op!r} in a graph of ATen")

    def outputs(self) -> list[object]:
        """Return the graph's outputs, in order."""
        node = next(n for n in self.module.graph.nodes if n.op == "output")
        output_value = node.args[0]
        items = output_value if isinstance(output_value, (list, tuple)) else [output_value]
        return [self.import_argument(item) for item in items]

    def import_argument(self, arg: object) -> object:
        """Return an argument with its nodes replaced by their imported values."""
        if isinstance(arg, torch.fx.Node):
            return self.env[arg]
        if isinstance(arg, (list, tuple)):
            return [self.import_argument(a) for a in arg]
        if isinstance(arg, slice):
            return slice(*(self.import_argument(a) for a in (arg.start, arg.stop, arg.step)))
        return arg

    def _import_attribute(self, path: str) -> object:
        attribute: object = self.module
        for name in path.split("."):
            attribute = getattr(attribute, name)
        return tensor_constant(attribute) if isinstance(attribute, torch.Tensor) else attribute

    # Calls.

    def _import_call(self, node: torch.fx.Node) -> None:
        args = [self.import_argument(a) for a in node.args]
        kwargs = {k: self.import_argument(v) for k, v in node.kwargs.items()}
        # Stays so if the conversion is reported, so that its users are skipped and only the cause
        # is listed.
        self.env[node] = FAILED_NODE
        flat = list(_flatten([*args, *kwargs.values()]))
        if any(item is FAILED_NODE for item in flat):
            return  # made by a node that has already been reported
        names = self._output_names(node)
        self.scope.used.update(filter(None, names))
        tensors = {n.name: v for n in node.all_input_nodes if isinstance(v := self.env[n], Value)}
        with self.walk.convert_node(describe_node(node), tensors):
            self.env[node] = self._convert_call(node, args, kwargs, flat, names)
        before = aliased_tensor_node(node)
        if before is not None:  # what was written is what the tensor is now, by all its names
            # An in-place operator and its input are one tensor: after the write both names mean the
            # new value.
            alike = self.same[node] = self.same.setdefault(before, [before])
            alike.append(node)
            self.env.update(dict.fromkeys(alike, self.env[node]))

    def _convert_call(
        self,
        node: torch.fx.Node,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        flat: Sequence[object],
        names: Sequence[str],
    ) -> object:
        if node.target is operator.getitem:
            outputs, index = args
            if outputs is None:  # of what has an effect and no result
                return None
            assert isinstance(outputs, Sequence) and isinstance(index, int)
            return outputs[index]
        meta = node.meta.get("val")
        is_scalar = isinstance(meta, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))
        if is_scalar and self.symbols.has_all_symbols(meta):
            return self.symbols.to_scalar(meta)
        inputs = [v for v in flat if isinstance(v, Value)]
        view = FxNode(node, inputs, self.scope, self.symbols, names, self)
        if any(isinstance(v, ComplexValue) for v in flat) or _has_complex_result(meta):
            plain = [_complex_argument(view, position, arg) for position, arg in enumerate(args)]
            return self._bind_complex(
                view, require_complex_rule(node.target)(view, *plain, **kwargs)
            )
        convert = require_converter(functional_variant(node.target) or node.target)
        _check_arguments(convert, view, args, kwargs)
        result = convert(view, *args, **kwargs)
        if result is None or is_scalar or not isinstance(result, (Expr, Value, Sequence)):
            return result
        return self._bind_outputs(node, cast(Result, result), names)

    def _bind_complex(self, node: FxNode, converted: ComplexResult) -> object:
        """Bind the results of a complex rule: pairs (real, imaginary), or something real."""
        names = list(node.output_names)
        if not isinstance(converted, tuple):
            return self._bind_outputs(node.fx, converted, names)
        sides = []
        for suffix, component in zip(("real", "imag"), converted, strict=True):
            part_names = [name and f"{name}.{suffix}" for name in names]
            self.scope.used.update(filter(None, part_names))
            values = self.walk.bind_outputs(component, part_names)
            sides.append([values.get(name) for name in part_names])
        pairs = [
            None if a is None or b is None else ComplexValue(a, b)
            for a, b in zip(*sides, strict=True)
        ]
        return pairs if isinstance(node.output_meta, (list, tuple)) else pairs[0]

    def _output_names(self, node: torch.fx.Node) -> list[str]:
        """Return a name for each used output; "" for the others."""
        meta = node.meta.get("val")
        if not isinstance(meta, (list, tuple)):
            return [node.name]
        users = [u for u in node.users if u in self.live]
        picks = [u for u in users if u.target is operator.getitem and u.args[0] is node]
        # Something reads the tuple as a whole, so every output needs a name.
        if len(picks) < len(users):
            return [f"{node.name}.{i}" for i in range(len(meta))]
        used = {u.args[1] for u in picks}
        return [f"{node.name}.{i}" if i in used else "" for i in range(len(meta))]

    def _bind_outputs(self, node: torch.fx.Node, result: Result, names: Sequence[str]) -> object:
        """Bind outputs as values of the dtypes that PyTorch inferred, and name new data-dependent
        symbols.
        """
        meta = node.meta.get("val")
        metas = meta if isinstance(meta, (list, tuple)) else [meta]
        if isinstance(result, Expr) and not isinstance(meta, (list, tuple)):
            result = self._cast_to_inferred(result, meta)
        elif isinstance(result, Sequence):
            pairs = zip(result, metas, strict=False)
            result = [self._cast_to_inferred(r, m) if isinstance(r, Expr) else r for r, m in pairs]
        bound = self.walk.bind_outputs(result, names)
        values = [bound.get(name) for name in names]
        for value, output_meta in zip(values, metas, strict=False):
            if value is not None and isinstance(output_meta, torch.Tensor):
                self.bind_symbols(value, output_meta)
        return values if isinstance(meta, (list, tuple)) else values[0]

    def _cast_to_inferred(self, expr: Expr, meta: object) -> Expr:
        if not isinstance(meta, torch.Tensor):
            return expr
        dtype = from_torch_dtype(meta.dtype)
        kind = self.scope.type_of(expr)
        if isinstance(kind, TensorType) and kind.dtype != dtype:
            return op.cast(expr, dtype)
        return expr

    def bind_symbols(self, value: Value, meta: torch.Tensor) -> None:
        """Bind the symbols of a shape to dimensions where they occur first."""
        # A scalar graph run on whole tensors has other shapes than it was traced with.
        if self.is_vectorized:
            return
        for dim, size in zip(value.type.shape, meta.shape, strict=True):
            name = symbol_name(size)
            if name is not None and name not in self.symbols.known and _is_named(dim):
                self.symbols.known[name] = dim


def _live_nodes(
    graph: torch.fx.Graph, results: Sequence[torch.fx.Node] | None
) -> set[torch.fx.Node]:
    live: set[torch.fx.Node] = set(results or ())
    for node in reversed(graph.nodes):
        if node.op == "output" and results is not None:
            continue
        # In reverse order all users of a node have been decided before the node itself.
        if node.is_impure() or not live.isdisjoint(node.users):
            live.add(node)
    return live


def tensor_constant(tensor: torch.Tensor) -> Value | ComplexValue:
    """Return a tensor as a constant; a complex one as two."""
    if tensor.dtype not in COMPLEX_PART_DTYPES:
        return constant_value(tensor_to_array(tensor))
    plain = tensor.detach().resolve_conj()
    real, imaginary = (
        constant_value(tensor_to_array(p.contiguous())) for p in (plain.real, plain.imag)
    )
    return ComplexValue(real, imaginary)


def _check_arguments(
    convert: Converter, node: FxNode, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Raise Unsupported for an argument that a converter does not support."""
    try:
        converter_signature(convert).bind(node, *args, **kwargs)
    except TypeError as error:
        node.reject(f"it is given what is not known here: {error}")


def _complex_argument(node: FxNode, at: int, arg: object) -> object:
    """Return a complex number in the place of a tensor (`_conj(1j)`) as a tensor."""
    target = node.fx.target
    if not isinstance(arg, complex) or not isinstance(target, torch._ops.OpOverload):
        return arg
    if not isinstance(target._schema.arguments[at].type, torch.TensorType):
        return arg
    dtype = to_numpy(node.part_dtype)
    return ComplexValue(
        constant_value(np.array(arg.real, dtype)), constant_value(np.array(arg.imag, dtype))
    )


def _has_complex_result(meta: object) -> bool:
    metas = meta if isinstance(meta, (list, tuple)) else [meta]
    return any(isinstance(m, torch.Tensor) and m.dtype in COMPLEX_PART_DTYPES for m in metas)


def _is_named(dim: PrimExpr) -> bool:
    return isinstance(dim, SizeVar)


def _flatten(items: Sequence[object]) -> Iterator[object]:
    for item in items:
        if isinstance(item, (list, tuple)):
            yield from _flatten(item)
        else:
            yield item
