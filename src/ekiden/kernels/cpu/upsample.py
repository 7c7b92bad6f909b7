"""Transposed convolutions to few channels whose windows do not overlap (kernel = stride, no
padding), in NHWC.

    out[n, y*s + i, x*s + j, o] = sum over c of data[n, y, x, c] * weight[c, o, i, j]

All taps are the columns of one product of the input pixels; its rows go to a buffer in the order of
the output's lines, from which whole vectors are finished and stored. The weights are put in a panel
first, a copy that is small beside the product.
"""

from __future__ import annotations

import math

from ekiden import te
from ekiden.arith import prove_equal, simplify
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const, logical_and
from ekiden.kernels.cost_model import max_register_rows
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.family import Family, known_extent
from ekiden.kernels.micro_kernels.epilogue import Epilogue, find_anchor, operands_of
from ekiden.kernels.micro_kernels.register_tiles import (
    RegisterTile,
    balanced_row_tiles,
    column_mask,
    emit_register_tile,
)
from ekiden.kernels.prim_builder import declare_parameters, kernel_builder
from ekiden.kernels.spaces.batch_matmul import MAX_PRODUCT_TILE_ROWS
from ekiden.kernels.stages import has_known_weights
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, Stmt, seq
from ekiden.tir.tensor_intrin.micro import SumLoop
from ekiden.topi.dimensions import as_ints
from ekiden.topi.nn.transposed_convolution import fits_one_panel

UPSAMPLE_CONV_TAG = "conv2d_transpose"
MAX_UPSAMPLE_LANES = 16
"""Maximum lanes of the vectors."""


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


class _UpsampleKernel:
    """Builder of one kernel of a transposed convolution without overlapping windows."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
    ) -> None:
        self.limit = decision.int_value("rows")
        self.anchor = find_anchor(outputs, UPSAMPLE_CONV_TAG)
        self.buffers = declare_parameters(inputs, outputs)
        data, weight = operands_of(self.anchor)
        self.data, self.weight = self.buffers[data], self.buffers[weight]
        self.kernel = _stride_pair(self.anchor)
        self.taps = self.kernel[0] * self.kernel[1]
        depth, channels = weight.shape[:2]
        assert isinstance(depth, IntImm)
        assert isinstance(channels, IntImm)
        self.depth, self.channels = depth.value, channels.value
        self.lanes, self.target = target.lanes("float32"), target
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.width = -(-self.channels * self.taps // self.lanes) * self.lanes
        self.packed = Buffer("packed", (const(self.width * self.depth),))

    def emit_pack(self) -> Stmt:
        """Emit packed[c][tap, o] = weight[c, o, tap]."""
        tap, c, o = Var("tap"), Var("c"), Var("o")
        source = self.weight[(c * self.channels + o) * self.taps + tap]
        index = c * self.width + tap * self.channels + o
        body: Stmt = BufferStore(self.packed, source, (index,))
        for var, extent in ((o, self.channels), (c, self.depth), (tap, self.taps)):
            body = For(var, const(0), const(extent), ForKind.SERIAL, body)
        return body

    def pixel_offsets(self, line: PrimExpr, first: PrimExpr, rows: int) -> list[PrimExpr]:
        """Return the data offsets of input pixels of a line."""
        return [(line * self.data.shape[2] + first + i) * self.depth for i in range(rows)]

    def emit_line(self, line: PrimExpr) -> Stmt:
        """Emit the product of an input line with all taps into a line buffer, then the output lines
        from it.
        """
        (sy, sx), (_, _, width, _) = self.kernel, self.data.shape
        across = simplify(width * (sx * self.channels))
        # vectors that begin in it are read whole, and what is beyond a line is left
        stage = Buffer("lines", (simplify(across * sy + (self.lanes - 1)),))
        vectors, valid = self.width // self.lanes, self.taps * self.channels

        def multiply_pixels(rows: int, first: PrimExpr) -> Stmt:
            """Multiply some pixels of a line by all taps, and store the products in the line
            buffer.
            """

            def store_to_stage(
                i: PrimExpr, at: PrimExpr, value: PrimExpr, _: PrimExpr | None
            ) -> Stmt:
                """Store a transformed value to the staging buffer."""
                assert isinstance(at, IntImm)
                return self.emit_scatter(stage, across, first + i, at.value, value)

            return emit_register_tile(
                RegisterTile(rows, vectors, self.lanes, valid),
                [SumLoop(const(self.depth), const(1), const(self.width))],
                self.data,
                self.pixel_offsets(line, first, rows),
                self.packed,
                const(0),
                store_to_stage,
            )

        tiles = balanced_row_tiles(width, self.limit, multiply_pixels)
        return Allocate(stage, seq(tiles, self.emit_epilogue(stage, across, line)))

    def emit_scatter(
        self, stage: Buffer, across: PrimExpr, x: PrimExpr, at: int, value: PrimExpr
    ) -> Stmt:
        """Emit the store of one pixel's columns, from `at` on, to the output lines they belong
        to.
        """
        run = self.kernel[1] * self.channels
        stores: list[Stmt] = []
        for i in range(self.kernel[0]):
            low, high = max(i * run - at, 0), min((i + 1) * run - at, self.lanes)
            # No lane of this vector belongs to output line i.
            if low >= high:
                continue
            # A vector of columns may span two output lines; each store masks the lanes of one.
            mask = column_mask(high, self.lanes)
            if low:
                over = broadcast(const(low - 1), self.lanes) < ramp(const(0), 1, self.lanes)
                mask = logical_and(mask, over)
            start = across * i + x * run + (at - i * run)
            stores.append(BufferStore(stage, value, (ramp(start, 1, self.lanes),), mask))
        return seq(*stores)

    def emit_epilogue(self, stage: Buffer, across: PrimExpr, line: PrimExpr) -> Stmt:
        """Emit the output lines from the line buffer, through the epilogue."""
        i, x = Var("i"), Var("x")
        n, y = line // self.data.shape[1], line % self.data.shape[1] * self.kernel[0] + i
        wide = simplify(self.data.shape[2] * self.kernel[1])
        base = (line * self.kernel[0] + i) * across

        def store_vector(at: PrimExpr, column: PrimExpr, mask: PrimExpr | None) -> Stmt:
            """Store a vector of the stage through the epilogue."""
            offset = at * self.channels
            lanes = ramp(across * i + offset, 1, self.lanes)
            value = stage[lanes].with_fields(dtype=dt.with_lanes("float32", self.lanes))
            # With one channel, vectors run along the pixels of a line.
            axis = -2 if self.channels == 1 else -1
            return self.epilogue.emit_store([n, y, at, column], base + offset, value, mask, axis)

        if self.channels > 1:
            mask = column_mask(self.channels, self.lanes)
            inside: Stmt = For(x, const(0), wide, ForKind.SERIAL, store_vector(x, const(0), mask))
        else:
            full_vectors, tail_width = simplify(wide // self.lanes), simplify(wide % self.lanes)
            body = store_vector(x * self.lanes, const(0), None)
            inside = For(x, const(0), full_vectors, ForKind.SERIAL, body)
            tail = ramp(const(0), 1, self.lanes) < broadcast(tail_width, self.lanes)
            last = store_vector(full_vectors * self.lanes, const(0), tail)
            inside = seq(inside, IfThenElse(tail_width > 0, last))
        return For(i, const(0), const(self.kernel[0]), ForKind.SERIAL, inside)

    def body(self) -> Stmt:
        """Emit the packing of the weights into a panel, then all lines."""
        line = Var("line")
        total = simplify(self.data.shape[0] * self.data.shape[1])
        lines = For(line, const(0), total, ForKind.PARALLEL, self.emit_line(line), {"grain": 2})
        # Packed once before the parallel loop: all threads read the same panel.
        return Allocate(self.packed, seq(self.emit_pack(), lines))


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
    build_unscheduled=kernel_builder(_UpsampleKernel),
    unscheduled_reason="each phase of pixels has its own taps, and border pixels may have none",
)
