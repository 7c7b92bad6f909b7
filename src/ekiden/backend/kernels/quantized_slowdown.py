"""Warn of quantised kernels that the cost model predicts to be slower than their float form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ekiden import kernels
from ekiden._lazy import LazyModule
from ekiden.backend.kernels.flops import count_flops
from ekiden.backend.kernels.lower import te_graph
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.language.scopes import evaluation_order
from ekiden.runtime.logs import LazyLogger
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.kernels.quantized import over_floats
else:  # for products of integers
    over_floats = LazyModule("ekiden.kernels.quantized.over_floats")

_LOG = LazyLogger("ekiden")
MIN_REPORTED_SLOWDOWN = 1.1
"""Times as long from which a kernel is named: the model is not nearer than that."""
MIN_REPORTED_OPERATIONS = 1 << 17
"""Operations of a kernel from which it is looked at: less takes microseconds in any form."""
MAX_KERNELS_NAMED = 3
"""Kernels that a warning names."""
ACCUMULATOR_DTYPES = ("int32", "int64")


def _is_integer_product(call: Call) -> bool:
    kind = call.checked_type
    is_sum = isinstance(kind, TensorType) and kind.dtype in ACCUMULATOR_DTYPES
    return is_sum and isinstance(call.op, Op) and call.op.definition.macs is not None


def predicted_slowdown(function: Function, target: Target) -> dict[str, object]:
    """Return {"over_floats": ratio as text} for a canonical kernel that the cost model predicts to
    be slower than the same product in float32, else {}.
    """
    calls = [e for e in evaluation_order(function.body) if isinstance(e, Call)]
    if not any(map(_is_integer_product, calls)):
        return {}
    operations = count_flops(function)
    if isinstance(operations, IntImm) and operations.value < MIN_REPORTED_OPERATIONS:
        return {}
    _, outputs = te_graph(function, target)
    times = over_floats.int8_cost_ratio(outputs, kernels.choose(outputs, target), target)
    return {"over_floats": f"{times:.1f}"} if times >= MIN_REPORTED_SLOWDOWN else {}


def warn_of_slower(
    kernels: Mapping[str, Mapping[str, object]], sources: Iterable[tuple[str, str]], target: Target
) -> None:
    """Log a warning that names the slowest of the kernels that `predicted_slowdown` has marked,
    with the model nodes (`sources`) they come from.
    """
    nodes: dict[str, str] = {}
    for name, node in sources:
        nodes.setdefault(name, node)
    times = {
        name: float(str(k["over_floats"])) for name, k in kernels.items() if "over_floats" in k
    }
    if not times:
        return
    slowest = sorted(times, key=lambda name: -times[name])[:MAX_KERNELS_NAMED]
    named = ", ".join(f"{nodes.get(name) or name} {times[name]:.1f} times" for name in slowest)
    more = f" and {len(times) - len(slowest)} more" if len(times) > len(slowest) else ""
    _LOG.warning(
        "compile: on %s kernels of integers take longer than their floats would, by the model:"
        " %s%s; leave these layers in floats (docs/guides/quantise.md)",
        target.cpu,
        named,
        more,
    )


__all__ = ["predicted_slowdown", "warn_of_slower"]
