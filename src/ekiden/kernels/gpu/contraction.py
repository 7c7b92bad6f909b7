"""Contractions on GPUs (dense, batched matrix products, convolutions): family, search space and
dispatch by element type.

    out[z, m, n] = sum over k of a[z, m, k] * b[z, n, k]

Axes that only one factor reads are rows or columns, those that both read batches: a convolution is
a product whose rows are its channels, whose columns are its pixels, and whose k are channels and
taps; the data is never copied. Columns are those with the last axis of the result, so that
neighbouring threads write neighbouring elements.

    a block of threads per tile of rows x columns, each thread every so many columns of some rows
    vector>1   one thread a block, whose columns or steps of k are vectors (`vector_matmul`)
    shared=0   for k: a, b of the thread's rows and columns; sums in registers
    tensor=1   warps multiply squares on tensor cores (`tensor_cores`)
    shared=1   for blocks of k: all threads load their part of a and b into shared memory,
               `access_width` elements at a time; barrier; sums in registers; barrier
    buffers=2  the next block comes while one is multiplied; one barrier for each
    dot=1      the same of words of four bytes (`int8_dot`), one at a time
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace
from ekiden.kernels.family import Family, known_extent
from ekiden.kernels.gpu import int8_dot, tensor_cores
from ekiden.kernels.gpu.contraction_factors import ContractionFactors, match_contraction
from ekiden.kernels.gpu.launch import ReductionGroup
from ekiden.kernels.gpu.tiled_matmul import TiledMatmulKernel
from ekiden.kernels.gpu.vector_matmul import (
    ALONG_COLUMNS,
    ALONG_DEPTH,
    PANEL_STEPS,
    PackedPanelKernel,
    VectorMatmulKernel,
    choose_band,
    choose_panel,
    choose_tile,
    choose_vector_axis,
    contiguous_column_axes,
)
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.te.tensor import Tensor
from ekiden.tir.stmt import PrimFunc

DEFAULT_THREAD_ROWS, DEFAULT_THREAD_COLUMNS = 4, 4
"""Default register tile of a thread: enough arithmetic per load that still fits the registers."""
MAX_BLOCK_LANES = 16
"""Maximum threads of a block along columns."""

DEFAULT_SERIAL_ROWS, DEFAULT_SERIAL_COLUMNS, DEFAULT_SERIAL_LANES = 8, 2, 64
"""The same where threads run one after the other, as in PoCL on a processor, whose compiler makes
vectors along the threads of a block (512x512x512 on a Zen 4: 2.9 GFLOP/s, 1.3 with the above)."""
DEFAULT_K_BLOCK = 16
"""Default steps of k between two barriers."""
BLOCK_TILE_KNOBS = ("lanes", "lines", "depth", "shared", "buffers", "access_width", "dot")
"""Knobs of kernels with several threads per block."""


def _search_space(anchor: Tensor, target: Target) -> SearchSpace:
    return (
        Knob("rows", (12, 8, 6, 4, 3, 2, 1), "rows of a thread"),
        Knob("columns", (12, 8, 6, 4, 3, 2, 1), "columns of a thread"),
        Knob("lanes", (64, 32, 16, 8, 4, 2, 1), "threads along columns"),
        Knob("lines", (64, 32, 16, 8, 4, 2, 1), "threads along rows"),
        Knob("depth", (64, 32, 16, 8, 4), "steps of k between two barriers, for shared=1"),
        Knob("shared", (1, 0), "whether blocks of k are staged in shared memory"),
        Knob("buffers", (2, 1), "buffers of blocks of k in shared memory, for shared=1"),
        Knob(
            "access_width",
            (16, 8, 4, 2, 1),
            "elements of a thread's vector loads and stores, for shared=1",
        ),
        Knob("vector", (16, 8, 4, 2, 1), "lanes of the vectors of a thread alone in its block"),
        Knob("along", (ALONG_COLUMNS, ALONG_DEPTH), "axis of its vectors"),
        Knob(
            "band",
            (64, 32, 16, 8, 4, 2, 1, 0),
            "tiles of rows per block of columns; 0 for all",
        ),
        Knob(
            "panel",
            (*PANEL_STEPS, 0),
            "steps of k whose columns a thread packs before the rows of a band",
        ),
        Knob(
            "tensor",
            (1, 0),
            "whether warps multiply squares of 16 x 16: rows and columns are"
            " those of a warp, lanes and lines count warps",
        ),
        Knob("dot", (1, 0), "whether words of four bytes are multiplied in one instruction"),
    )


def _power_of_two(limit: int, size: int | None) -> int:
    """Return the smallest power of two that covers `size`, at most `limit`."""
    return limit if size is None else max(1, min(limit, 2 ** math.ceil(math.log2(max(size, 1)))))


def _default_decision(anchor: Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: square tiles; on targets that run threads serially, fewer
    threads and no barriers.
    """
    factors = match_contraction(anchor)
    assert factors is not None
    if (vectors := _vector_decision(anchor, factors, target, fixed)) is not None:
        return vectors
    if (tensor := tensor_cores.tensor_core_decision(factors, target, fixed)) is not None:
        return tensor
    m, n = (
        known_extent(factors.num_elements(factors.rows)),
        known_extent(factors.num_elements(factors.columns)),
    )
    has_warps = target.thread_warp_size > 1
    lanes = _power_of_two(MAX_BLOCK_LANES if has_warps else DEFAULT_SERIAL_LANES, n)
    rows = _power_of_two(DEFAULT_THREAD_ROWS if has_warps else DEFAULT_SERIAL_ROWS, m)
    max_columns = DEFAULT_THREAD_COLUMNS if has_warps else DEFAULT_SERIAL_COLUMNS
    columns = _power_of_two(max_columns, None if n is None else -(-n // lanes))
    lines = _power_of_two(MAX_BLOCK_LANES if has_warps else 1, None if m is None else -(-m // rows))
    # Lanes go last: neighbours along columns make accesses contiguous.
    while lanes * lines > target.max_num_threads:
        lanes, lines = (lanes, lines // 2) if lines > 1 else (lanes // 2, lines)
    has_dot = has_warps and int8_dot.can_multiply(factors, target) and fixed.get("shared", 1)
    dot = int(fixed.get("dot", int(bool(has_dot))))
    needs_shared = dot or fixed.get("buffers", 1) != 1 or fixed.get("access_width", 1) != 1
    values: dict[str, int | str] = {
        "rows": rows, "columns": columns, "lanes": lanes, "lines": lines,
        "depth": int8_dot.words_per_k_block(factors) if dot else DEFAULT_K_BLOCK,
        "shared": int(has_warps or needs_shared), "vector": 1, "along": ALONG_COLUMNS,
        "band": 0, "panel": 0, "tensor": 0, "dot": dot,
    }  # fmt: skip
    kind = int8_dot.Int8DotKernel if dot else TiledMatmulKernel
    decision = kind.complete_decision(factors, target, values | dict(fixed))
    # Without room for tiles, the kernel reads global memory; overrides are refused later instead.
    if (
        not decision.int_value("shared")
        or kind.shared_bytes(factors, decision) <= target.block_memory
    ):
        return decision
    if not fixed.keys().isdisjoint(("shared", "dot", "buffers", "access_width")):
        return decision  # which is refused, with what it takes
    return TiledMatmulKernel.complete_decision(
        factors, target, values | dict(fixed) | {"shared": 0, "dot": 0}
    )


def _vector_decision(
    anchor: Tensor, factors: ContractionFactors, target: Target, fixed: Overrides
) -> Decision | None:
    """Return the decision of a vectorised kernel, for targets that run threads serially on vector
    units.

    Returns:
        None where they do not, or where a knob is fixed that only the other kernels have.
    """
    max_lanes = target.lanes(factors.a.dtype)
    vector = fixed.get("vector", max_lanes if target.thread_warp_size == 1 else 1)
    if vector == 1 or not fixed.keys().isdisjoint(BLOCK_TILE_KNOBS):
        return None
    along, lanes = choose_vector_axis(factors, int(vector))
    if lanes == 1 and "vector" not in fixed:
        return None
    inner = contiguous_column_axes(factors) if along == ALONG_COLUMNS else factors.columns
    m, n = (
        known_extent(factors.num_elements(factors.rows)),
        known_extent(factors.num_elements(inner)),
    )
    vectors = n if n is None or along == ALONG_DEPTH else n // lanes
    rows, columns = choose_tile(target, m, vectors)
    depth = known_extent(factors.reduction_size)
    tiles = None if m is None else -(-m // rows)
    values: dict[str, int | str] = {
        "rows": rows, "columns": columns, "lanes": 1, "lines": 1, "depth": DEFAULT_K_BLOCK,
        "shared": 0, "buffers": 1, "access_width": 1, "vector": lanes, "along": along,
        "band": choose_band(target, rows, tiles, depth, factors.a.dtype), "panel": 0,
        "tensor": 0, "dot": 0,
    }  # fmt: skip
    if fixed.keys().isdisjoint(("along", "panel")):
        values = dict(choose_panel(target, factors, values, int(vector)) or values)
    return Decision.from_mapping(values | dict(fixed))


def build_contraction(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of a contraction and its epilogue.

    Args:
        inputs: The tensors that are read.
        outputs: The tensors that are written.
        target: The device.
        name: The symbol of the kernel.
        decision: The values of all knobs.

    Raises:
        CompileError: For decisions that no kernel follows.
    """
    group = ReductionGroup.from_tensors(inputs, outputs)
    if decision.int_value("vector") > 1:
        if decision.int_value("panel"):
            return PackedPanelKernel(group, decision).build(name)
        return VectorMatmulKernel(group, decision).build(name)
    kind: type[TiledMatmulKernel] = TiledMatmulKernel
    if decision.int_value("tensor"):
        _require_supported(tensor_cores, "tensor cores", group, target, decision)
        kind = tensor_cores.TensorCoreKernel
    elif decision.int_value("dot"):
        _require_supported(int8_dot, "products of words", group, target, decision)
        kind = int8_dot.Int8DotKernel
    try:
        return (
            kind(group, decision).validate(target).build(name, bool(decision.int_value("shared")))
        )
    except CompileError as error:
        raise CompileError(f"decisions: 'thread_product' {decision}: {error}") from error


class _KernelModule(Protocol):
    """Protocol of a module that implements contraction kernels for some element types."""

    FACTOR_DTYPES: Mapping[str, str]
    """Accumulator dtype by factor dtype."""

    def can_multiply(self, factors: ContractionFactors, target: Target) -> bool:
        """Return whether a target has the instructions that the kernels need."""


def _require_supported(
    kernels: _KernelModule, what: str, group: ReductionGroup, target: Target, decision: Decision
) -> None:
    """Raise CompileError for a decision that selects kernels which do not support the group. Raises
    CompileError.
    """
    factors = match_contraction(group.anchor)
    if factors is None or not kernels.can_multiply(factors, target):
        raise CompileError(
            f"decisions: 'thread_product' {decision}: target {str(target)!r} has no {what} for "
            f"these factors, which must be {' or '.join(kernels.FACTOR_DTYPES)}"
        )


FAMILY = Family(
    name="thread_product",
    is_gpu_family=True,
    unscheduled_reason=(
        "any number of axes is fused into rows, columns and k, and threads load what "
        "others read; the checks do not yet prove tiles of fused axes with dynamic sizes"
    ),
    accepts=lambda anchor, target: match_contraction(anchor) is not None,
    search_space=_search_space,
    default_decision=_default_decision,
    build_unscheduled=build_contraction,
)
