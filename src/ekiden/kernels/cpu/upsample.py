"""Transposed convolutions to few channels whose windows do not overlap (kernel = stride, no
padding), in NHWC.

    out[n, y*s + i, x*s + j, o] = sum over c of data[n, y, x, c] * weight[c, o, i, j]

All taps are the columns of one product of the input pixels; its rows go to a buffer in the order of
the output's lines, from which whole vectors are finished and stored. The weights are put in a panel
first, a copy that is small beside the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden import te
from ekiden.arith import prove_equal, simplify
from ekiden.ir.prim import IntImm, Var, const, is_const
from ekiden.kernels.cost_model import max_register_rows
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.family import Family, known_extent
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.register_tiles import MAX_DYNAMIC_TILE_ROWS
from ekiden.kernels.micro_kernels.registered_micro_kernels import REGISTER_TILE_KERNEL
from ekiden.kernels.scheduled_kernel import (
    KernelSpec,
    create_inlined_program,
    replace_computation,
)
from ekiden.kernels.spaces.batch_matmul import MAX_PRODUCT_TILE_ROWS
from ekiden.kernels.stages import has_known_weights
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, For, ForKind, PrimFunc, Stmt
from ekiden.topi.dimensions import as_ints
from ekiden.topi.nn.transposed_convolution import fits_one_panel

if TYPE_CHECKING:
    from ekiden.tir.schedule.schedule import Schedule

MAX_UPSAMPLE_LANES = 16
"""Maximum lanes of the vectors."""
LINES_BLOCK = "lines"
"""Name of the product of the input pixels with all taps, in the order of the output's lines."""
LINES_PER_TASK = 2
"""Input lines of an iteration of the parallel loop."""


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a transposed convolution."""
    attrs = anchor.op.attrs
    data, weight = operands_of(anchor)
    if not has_known_weights(anchor) or {data.dtype, weight.dtype, anchor.dtype} != {"float32"}:
        return False
    layouts = attrs["data_layout"], attrs["kernel_layout"], attrs["groups"], attrs["dilation"]
    if layouts != ("NHWC", "IOHW", 1, (1, 1)) or any(attrs["padding"]):  # type: ignore[arg-type]
        return False
    # Windows of kernel = stride do not overlap, so each output has one tap.
    sizes = zip(
        anchor.shape[1:3], data.shape[1:3], weight.shape[2:], _stride_pair(anchor), strict=True
    )
    if not all(is_const(k, s) and prove_equal(out, size * s) for out, size, k, s in sizes):
        return False
    return fits_one_panel(as_ints(weight.shape)[1], _stride_pair(anchor), MAX_UPSAMPLE_LANES)


def _stride_pair(anchor: te.Tensor) -> tuple[int, int]:
    strides = anchor.op.attrs["strides"]
    assert isinstance(strides, tuple)
    return int(strides[0]), int(strides[1])


def create_initial_program(inputs: list[te.Tensor], kernel: KernelSpec, name: str) -> PrimFunc:
    """Create the program to schedule: a panel of the weights, the product with it by lines of the
    output, and the output, which reads its element.
    """
    data, weight = operands_of(kernel.anchor)
    (sy, sx), (depth, channels, *_) = _stride_pair(kernel.anchor), as_ints(weight.shape)
    run, lanes = sx * channels, kernel.target.lanes("float32")
    width = -(-sy * run // lanes) * lanes

    def emit_panel(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit packed[c, (tap, o)] = weight[c, o, tap]; columns behind the last tap stay unset."""
        tap, c, o = Var("tap"), Var("c"), Var("o")
        source, index = ins[0][c, o, tap // sx, tap % sx], (c, tap * channels + o)
        body: Stmt = BufferStore(outs[0], source, index)
        for var, extent in ((o, channels), (c, depth), (tap, sy * sx)):
            body = For(var, const(0), const(extent), ForKind.SERIAL, body)
        return body

    packed = te.extern((depth, width), [weight], emit_panel, name="packed", dtype="float32")
    assert isinstance(packed, te.Tensor)
    n, height, pixels, _ = data.shape
    c = te.reduce_axis((0, depth), "c")
    lines = te.compute(
        (n, simplify(height * sy), pixels, run),
        lambda b, y, x, t: te.sum(data[b, y // sy, x, c] * packed[c, y % sy * run + t], c),
        name=LINES_BLOCK,
    )
    result = te.compute(
        kernel.anchor.shape,
        lambda b, y, x, o: lines[b, y, x // sx, x % sx * channels + o],
        name=kernel.anchor.op.name,
        tag="injective",
    )
    outputs = replace_computation(kernel.outputs, kernel.anchor, result)
    return create_inlined_program(inputs, outputs, name)


def schedule_upsample(sch: Schedule, kernel: KernelSpec) -> None:
    """Schedule a transposed convolution without overlapping windows."""
    data, weight = operands_of(kernel.anchor)
    lanes, rows = kernel.target.lanes("float32"), kernel.decision.int_value("rows")
    (result,) = sch.get_output_blocks()
    image, y, x, channel = sch.get_loops(result)
    line, _ = sch.split(y, [None, _stride_pair(kernel.anchor)[0]])
    # All output lines of an input line: its product is one, and stays in the first cache.
    sch.compute_at(LINES_BLOCK, line, preserve_unit_loops=True)
    # Behind that: of any height, the lines of all images are not proved to be within theirs.
    if not is_const(data.shape[0], 1):
        line = sch.fuse(image, line)
    *_, tap_row, pixel, tap, depth = sch.get_loops(LINES_BLOCK)
    sch.reorder(pixel, tap_row, tap, depth)
    sch.fuse(tap_row, tap)
    # Of an unknown width every number of rows is a copy of the tile.
    limit = rows if isinstance(data.shape[2], IntImm) else min(rows, MAX_DYNAMIC_TILE_ROWS)
    _, row = sch.split(pixel, [None, limit], tail="balanced")
    sch.allocate_at(line, LINES_BLOCK)
    sch.parallel(line, LINES_PER_TASK)
    # With one channel, vectors run along the pixels of a line.
    sch.vectorize(x if is_const(weight.shape[1], 1) else channel, lanes)
    sch.tensorize(row, REGISTER_TILE_KERNEL.call(lanes=lanes))


def _panel_vectors(anchor: te.Tensor, target: Target) -> int:
    """Return the number of vectors of the panel that holds all taps."""
    channels = known_extent(operands_of(anchor)[1].shape[1])
    assert channels is not None, "weights are known"
    return -(-channels * math.prod(_stride_pair(anchor)) // target.lanes("float32"))


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space."""
    rows = descending_range(max_register_rows(_panel_vectors(anchor, target), target))
    return (Knob("rows", rows, "pixels of a tile"),)


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision: as many rows as the registers hold, since the panel stays in
    L1.
    """
    rows = min(MAX_PRODUCT_TILE_ROWS, max_register_rows(_panel_vectors(anchor, target), target))
    return Decision.from_mapping({"rows": fixed.get("rows", rows)})


FAMILY = Family(
    name="conv2d_transpose",
    accepts=is_supported,
    search_space=search_space,
    default_decision=default_decision,
    schedule_steps=schedule_upsample,
    create_initial_program=create_initial_program,
)
