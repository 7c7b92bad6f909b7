"""Warnings about quantised kernels and programs that the cost model predicts to be slower than
their float versions.

A kernel is compared with that of the same product of floats. A program pays besides for finding
ranges and rounding, which dynamic quantisation does in each run: of all its calls the cycles are
summed, and those of its floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ekiden import kernels
from ekiden._lazy import LazyModule
from ekiden.backend.kernels.flops import count_flops
from ekiden.backend.kernels.lower import te_graph
from ekiden.ir.dtype import is_float, itemsize
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.runtime.lazy_logger import LazyLogger
from ekiden.runtime.profile.quantization_cost_warning import (
    MIN_SLOWDOWN,
    quantized_slowdown_warning,
)
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.kernels.quantized import quantization_cost
else:  # for products of integers
    quantization_cost = LazyModule("ekiden.kernels.quantized.quantization_cost")

LOG = LazyLogger("ekiden")
MIN_OPERATIONS = 1 << 17
"""Minimum number of operations of kernels that are examined; smaller ones take microseconds."""
MIN_PASS_ELEMENTS = 1 << 12
"""Minimum number of elements for which a range or rounding pass counts."""
MAX_KERNELS_NAMED = 3
"""Maximum number of kernels that a warning names."""
ACCUMULATOR_DTYPES = ("int32", "int64")
BYTE_DTYPES = ("int8", "uint8")


def _has_multiplication(call: Call) -> bool:
    return isinstance(call.op, Op) and call.op.definition.macs is not None


def _has_integer_multiplication(call: Call) -> bool:
    kind = call.checked_type
    return (
        isinstance(kind, TensorType)
        and kind.dtype in ACCUMULATOR_DTYPES
        and _has_multiplication(call)
    )


def _num_elements(kind: Type | None) -> int | None:
    """Return the number of elements of a tensor; None where only the run knows it."""
    if not isinstance(kind, TensorType):
        return None
    sizes = [d.value for d in kind.shape if isinstance(d, IntImm)]
    return math.prod(sizes) if len(sizes) == len(kind.shape) else None


def estimate_slowdown(function: Function, target: Target) -> dict[str, object]:
    """Estimate the cost of a kernel in canonical form and of its float version, as metadata.

    Products, ranges and roundings have "cycles", [its own, those of its float form], where sizes
    are known; a product of integers that is slower than that of floats has "over_floats", times as
    long, as text. Empty for other kernels.
    """
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    if not any(map(_has_multiplication, calls)):
        return _estimate_pass_cycles(function, calls, target)
    operations = count_flops(function)
    number = operations.value if isinstance(operations, IntImm) else None
    if number is not None and number < MIN_OPERATIONS:
        return {}
    if not any(map(_has_integer_multiplication, calls)):
        if number is None or target.kind.has_threads:
            return {}
        return _estimate_cycles(quantization_cost.float_product_cost(number, target))
    _, outputs = te_graph(function, target)
    cost = quantization_cost.product_cost(outputs, kernels.select_kernel(outputs, target), target)
    if cost is None:
        return {}
    facts = _estimate_cycles(cost) if number is not None else {}
    times = cost.quantized / cost.floating_point if cost.floating_point else 0.0
    return facts | ({"over_floats": f"{times:.1f}"} if times >= MIN_SLOWDOWN else {})


def _estimate_cycles(cost: quantization_cost.KernelCost) -> dict[str, object]:
    return {"cycles": [round(cost.quantized), round(cost.floating_point)]}


def _estimate_pass_cycles(
    function: Function, calls: list[Call], target: Target
) -> dict[str, object]:
    """Return the cycles of a kernel that rounds floats to bytes or reduces all of a tensor."""
    sizes = [_num_elements(param.checked_type) for param in function.params]
    elements = max((size for size in sizes if size is not None), default=0)
    result = function.body.checked_type
    if elements < MIN_PASS_ELEMENTS or target.kind.has_threads or None in sizes:
        return {}
    kinds = [call.checked_type for call in calls]
    rounds = any(
        isinstance(kind, TensorType)
        and kind.dtype in BYTE_DTYPES
        and _num_elements(kind) == elements
        for kind in kinds
    )
    reads_floats = any(
        isinstance(p.checked_type, TensorType)
        and is_float(p.checked_type.dtype)
        and size == elements
        for p, size in zip(function.params, sizes, strict=True)
    )
    reduces = _num_elements(result) == 1 and any(
        isinstance(c.op, Op) and c.op.definition.pattern is OpPattern.COMM_REDUCE for c in calls
    )
    if not reads_floats or not (rounds or reduces) or not isinstance(result, TensorType):
        return {}
    written = (_num_elements(result) or 0) * itemsize(result.dtype)
    nbytes = elements * itemsize("float32") + written
    return _estimate_cycles(
        quantization_cost.quantization_pass_cost(elements, nbytes, len(calls), target)
    )


def warn_of_slowdown(
    kernels: Mapping[str, Mapping[str, object]],
    sources: Iterable[tuple[str, str]],
    calls: Iterable[str],
    target: Target,
) -> None:
    """Log a warning for a program or kernels that the cost model predicts to be slower than their
    float versions.

    Args:
        kernels: The facts of `estimate_slowdown`, by kernel.
        sources: Names of kernels with the nodes of the model that they are of.
        calls: The name of the kernel of each call of the program.
        target: The processor.
    """
    nodes: dict[str, str] = {}
    for name, node in sources:
        nodes.setdefault(name, node)
    times = {
        name: float(str(k["over_floats"])) for name, k in kernels.items() if "over_floats" in k
    }
    slowest = sorted(times, key=lambda name: -times[name])[:MAX_KERNELS_NAMED]
    if slowest:
        named = ", ".join(f"{nodes.get(name) or name} {times[name]:.1f} times" for name in slowest)
        more = f" and {len(times) - len(slowest)} more" if len(times) > len(slowest) else ""
        LOG.warning(
            "compile: on %s kernels of integers take longer than their floats would, by the model:"
            " %s%s; leave these layers in floats (docs/guides/quantise.md)",
            target.cpu,
            named,
            more,
        )
    slowdown = quantized_slowdown_warning(kernels.get(name, {}) for name in calls)
    if slowdown:
        LOG.warning("compile: on %s %s (docs/guides/quantise.md)", target.cpu, slowdown)


__all__ = ["estimate_slowdown", "warn_of_slowdown"]
