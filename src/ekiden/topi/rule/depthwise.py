"""Depthwise convolutions in NHWC: one filter per channel, a vector of channels at a time.

    out[n, y, x, c] = sum over i, j of data[n, y*sy + i*dy - top, x*sx + j*dx - left, c] * weight[i,
    j, c]

A tile is several neighbouring pixels of one line and one vector of channels, accumulated in
registers over all taps. Such a convolution is bound by memory; the tile only keeps each weight
vector in use for several pixels.
"""

from __future__ import annotations

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt, seq
from ekiden.topi.rule.conv2d import Geometry, geometry_of, pad_copy
from ekiden.topi.rule.dense import make_buffers
from ekiden.topi.rule.epilogue import Epilogue, find_anchor, operands_of
from ekiden.topi.rule.tiles import balanced_rows

PIXELS = 8
"""Most pixels of a tile."""


class _Depthwise:
    """One depthwise kernel being built."""

    def __init__(self, inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target) -> None:
        self.anchor = find_anchor(outputs, "depthwise_conv2d_nhwc")
        self.buffers = make_buffers(inputs, outputs)
        data, weight = operands_of(self.anchor)
        self.data, self.weight = self.buffers[data], self.buffers[weight]
        self.geometry: Geometry = geometry_of(self.anchor)
        self.lanes = target.lanes("float32")
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        channels = self.geometry.out[3]
        assert isinstance(channels, IntImm)
        self.channels = channels.value
        self.source = self.data

    def load(self, buffer: Buffer, at: PrimExpr, mask: PrimExpr | None) -> PrimExpr:
        """A vector of channels, zero where the mask is off."""
        vector = f"float32x{self.lanes}"
        found = buffer[ramp(at, 1, self.lanes)].with_fields(dtype=vector)
        return (
            found
            if mask is None
            else if_then_else(mask, found, broadcast(const(0.0, "float32"), self.lanes))
        )

    def tile(
        self,
        pixels: int,
        base: PrimExpr,
        channel: PrimExpr,
        mask: PrimExpr | None,
        out: list[list[PrimExpr]],
    ) -> Stmt:
        """`pixels` pixels from data offset `base`; `out` gives (indices..., flat offset) of each
        result."""
        (kh, kw), (dy, dx), (_, sx) = (
            self.geometry.kernel,
            self.geometry.dilation,
            self.geometry.strides,
        )
        row = self.geometry.padded()[1] * self.channels
        acc = Buffer("acc", (const(pixels),), f"float32x{self.lanes}", "register")
        i, j, w = Var("i"), Var("j"), Var("w", acc.dtype)
        start = base + i * (row * dy) + j * (dx * self.channels)
        steps = [
            BufferStore(
                acc,
                call_intrin(
                    "fma",
                    self.load(self.source, start + p * sx * self.channels, mask),
                    w,
                    acc[p],
                    dtype=acc.dtype,
                ),
                (const(p),),
            )
            for p in range(pixels)
        ]
        weight = self.load(self.weight, (i * kw + j) * self.channels + channel, mask)
        taps: Stmt = For(j, const(0), const(kw), ForKind.SERIAL, LetStmt(w, weight, seq(*steps)))
        taps = For(i, const(0), const(kh), ForKind.SERIAL, taps)
        zero = broadcast(const(0.0, "float32"), self.lanes)
        clear = [BufferStore(acc, zero, (const(p),)) for p in range(pixels)]
        stores = [self.epilogue.store(o[:-1], o[-1], acc[p], mask) for p, o in enumerate(out)]
        return Allocate(acc, seq(*clear, taps, *stores))

    def line(self, line: PrimExpr, channel: PrimExpr, mask: PrimExpr | None) -> Stmt:
        """One line of output pixels for one vector of channels."""
        _, height, width, _ = self.geometry.out
        sy, sx = self.geometry.strides
        padded_height, padded_width = self.geometry.padded()
        n, y = line // height, line % height
        start = (n * padded_height + y * sy) * padded_width * self.channels + channel

        def body(pixels: int, first: PrimExpr) -> Stmt:
            out = [
                [n, y, first + p, channel, (line * width + first + p) * self.channels + channel]
                for p in range(pixels)
            ]
            return self.tile(pixels, start + first * (sx * self.channels), channel, mask, out)

        return balanced_rows(width, PIXELS, body)

    def lines(self) -> Stmt:
        """All lines in parallel; inside, vectors of channels."""
        whole, rest = divmod(self.channels, self.lanes)
        line, vector = Var("line"), Var("v")
        parts: list[Stmt] = []
        if whole:
            parts.append(
                For(
                    vector,
                    const(0),
                    const(whole),
                    ForKind.SERIAL,
                    self.line(line, vector * self.lanes, None),
                )
            )
        if rest:
            mask = ramp(const(0), 1, self.lanes) < broadcast(const(rest), self.lanes)
            parts.append(self.line(line, const(whole * self.lanes), mask))
        total = simplify(self.geometry.out[0] * self.geometry.out[1])
        return For(line, const(0), total, ForKind.PARALLEL, seq(*parts), {"grain": 2})

    def body(self) -> Stmt:
        """The kernel: the padded copy if needed, then all lines."""
        if not self.geometry.is_padded:
            return self.lines()
        height, width = self.geometry.padded()
        self.source = Buffer(
            "padded", (self.geometry.data[0], height, width, self.geometry.data[3]), "float32"
        )
        return Allocate(
            self.source,
            seq(pad_copy(self.data, self.source, self.geometry, self.lanes), self.lines()),
        )


def depthwise_conv2d_nhwc(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    """The rule for tag "depthwise_conv2d_nhwc"."""
    kernel = _Depthwise(inputs, outputs, target)
    return PrimFunc(
        (*kernel.buffers.values(),),
        kernel.body(),
        {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1},
    )
