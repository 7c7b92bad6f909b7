"""Calls: functions of the program, composites, and custom calls."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.jax.converters.reduce_window import dynamic_reduce_window
from ekiden.frontend.jax.converters.sort import dynamic_top_k, mhlo_top_k
from ekiden.frontend.jax.node import (
    ImportedValues,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
)
from ekiden.ir.prim import PrimExpr


def _call(node: StablehloNode) -> ImportedValues:
    return node.graph.import_block(
        node.graph.function_body(node.string_attribute("callee")), node.whole
    )


def _composite(node: StablehloNode) -> Result | ImportedValues:
    """Convert a composite by the converter of its name if there is one, else inline its
    decomposition.
    """
    row = node.graph.lookup_converter(node.string_attribute("name"))
    if row is None:
        return _inline_decomposition(node)
    inner = copy.copy(node)
    inner.composite = _composite_attributes(node)
    return row.convert(inner)


def _inline_decomposition(node: StablehloNode) -> ImportedValues:
    return node.graph.import_block(
        node.graph.function_body(node.string_attribute("decomposition")), node.whole
    )


def _composite_attributes(node: StablehloNode) -> dict[str, Any]:
    if not node.has_attribute("composite_attributes"):
        return {}
    attributes = ir.DictAttr(node.attribute("composite_attributes"))
    return {entry.name: entry.attr.value for entry in attributes if hasattr(entry.attr, "value")}


def _custom_call(node: StablehloNode) -> Result | ImportedValues:
    name = node.string_attribute("call_target_name")
    row = node.graph.lookup_converter(f"custom_call:{name}")
    if row is None:
        node.reject(
            f"the function {name!r} outside of the program is not known; "
            "ekiden.frontend.jax.register teaches one"
        )
    return row.convert(node)


def _shape_assertion(node: StablehloNode) -> Result:
    """Convert shape_assertion: require the condition on input sizes."""
    condition_value = node.value(0)
    if condition_value.array is not None and not condition_value.array.all():
        node.reject(node.string_attribute("error_message") or "the shapes of inputs do not fit")
    if not condition_value.is_known:
        node.reject_dynamic_input(0, "a condition on shapes must follow from shapes")
    if condition_value.symbols is not None:
        condition = condition_value.symbols.item()
        assert isinstance(condition, PrimExpr)
        node.scope.require_condition(condition)
    return []


def _identity(node: StablehloNode) -> ImportedValues:
    return list(node.whole)


def _dummy_token(node: StablehloNode) -> Value:
    """Return a dummy value for a token; tokens carry no data, as programs run in order anyway."""
    return constant_value(np.zeros((), np.bool_))


def _device_id(node: StablehloNode) -> Value:
    """Return the replica or partition id, which is 0: a program runs on one device."""
    return constant_value(np.zeros((), np.uint32))


# fmt: off
ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("func.call",                           _call,
        make_complex_rule=custom_complex_rule(_call)),
    StablehloRow("stablehlo.composite", _composite,
        make_complex_rule=custom_complex_rule(_inline_decomposition)),
    StablehloRow("stablehlo.custom_call", _custom_call,
        make_complex_rule=custom_complex_rule(_custom_call)),
    StablehloRow("custom_call:shape_assertion",         _shape_assertion),
    StablehloRow("custom_call:stablehlo.dynamic_reduce_window", dynamic_reduce_window),
    StablehloRow("custom_call:stablehlo.dynamic_top_k", dynamic_top_k),
    StablehloRow("custom_call:mhlo.topk",               mhlo_top_k),
    StablehloRow("custom_call:annotate_device_placement", _identity,
        make_complex_rule=custom_complex_rule(_identity)),
    StablehloRow("custom_call:Sharding", _identity,
        make_complex_rule=custom_complex_rule(_identity)),
    StablehloRow("sdy.sharding_constraint", _identity,
        make_complex_rule=custom_complex_rule(_identity)),
    StablehloRow("stablehlo.after_all",                 _dummy_token),
    StablehloRow("stablehlo.replica_id",                _device_id),
    StablehloRow("stablehlo.partition_id",              _device_id),
)
# fmt: on
