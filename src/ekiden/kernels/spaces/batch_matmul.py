"""Search space and default decision of batched matrix products.

The right matrix is copied into panels, which costs k * n writes beside m * k * n / lanes
multiply-adds: with m below MAX_STREAMED_ROWS copying is most of the time, and lines are read in
place instead: from 4 to 27 times as fast for 1 to 7 rows by a transposed matrix (Zen 4). Of more
rows the tile follows from registers (cost_model.py), and the panel's width from the remainder of
columns: 1024^3 forced to AVX2 on a Sapphire Rapids reached 80 percent of that class's peak with
panels of four vectors, and reaches 93 with two.

A product of many rows and one column is that of one row and many columns: panels of one column
would leave all lanes but one empty, and reading the left matrix in place takes a fifth of the time
(32 of 256 x 64, 147 us to 32, Zen 4 with AVX-512).
"""

from __future__ import annotations

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.dtype import itemsize
from ekiden.ir.prim import const
from ekiden.kernels.cost_model import (
    MAX_PANEL_VECTORS,
    PREFETCH_DISTANCES,
    LoopBlocking,
    is_balanced,
    step_cycles,
    tile_rows,
)
from ekiden.kernels.cpu.dense import K_UNROLL_FACTORS
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.family import MatmulSizes, known_extent
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

MAX_PRODUCT_TILE_ROWS = 12
"""Maximum tile rows: more only increase code size."""
MAX_STREAMED_ROWS = 8
"""Tile rows of one vector width that hide the FMA latency."""
ASSUMED_PRODUCT_ROWS = 1 << 12
"""Assumed number of rows where it is dynamic."""


def is_transposed(anchor: te.Tensor) -> bool:
    """Return whether a product with one column is computed as its transpose, a row by the left
    matrix.

    It has one column then, and a vector of results can run along its rows.
    """
    columns, rows = (
        known_extent(anchor.shape[-1]),
        known_extent(anchor.shape[-2]) if anchor.ndim > 1 else 1,
    )
    return columns == 1 != rows and (anchor.op.tag == "batch_matmul" or anchor.ndim == 2)


@dataclass(frozen=True, slots=True)
class BatchMatmulSizes:
    """Sizes that a batched product's default decision depends on."""

    product: MatmulSizes
    """Product sizes with the depth in four-byte words, as the cost model counts it."""
    batch: int | None
    transpose_a: bool
    transpose_b: bool
    lanes: int
    """Lanes per vector."""
    target: Target

    @staticmethod
    def from_anchor(anchor: te.Tensor, target: Target) -> BatchMatmulSizes:
        """Return the sizes of a product of computed matrices."""
        a, _ = operands_of(anchor)
        attrs, tag = anchor.op.attrs, anchor.op.tag
        batched = tag == "batch_matmul"
        transpose_a = bool(attrs.get("transpose_a", False))
        depth = a.shape[-2] if transpose_a else a.shape[-1]
        rows = anchor.shape[1] if batched else product_of_dims(list(anchor.shape[:-1]))
        transpose_b = bool(attrs.get("transpose_b", tag == "dense"))
        batch = known_extent(anchor.shape[0]) if batched else 1
        # The cost model counts words of 4 bytes.
        words = simplify(depth * (itemsize(anchor.dtype) // itemsize("float32")))
        columns, lanes = anchor.shape[-1], target.lanes(anchor.dtype)
        if is_transposed(anchor):
            rows, columns = const(1), rows
            transpose_a, transpose_b = False, not transpose_a
        size = MatmulSizes.from_dims(rows, columns, words)
        return BatchMatmulSizes(size, batch, transpose_a, transpose_b, lanes, target)

    @property
    def num_columns(self) -> int | None:
        """Return the columns of the result."""
        return self.product.columns

    def with_known_rows(self) -> MatmulSizes:
        """Return the sizes with a known number of rows, guessed where it is dynamic."""
        size = self.product
        return MatmulSizes(size.rows or ASSUMED_PRODUCT_ROWS, size.columns, size.depth)

    def panel_vectors(self) -> int:
        """Return the vectors of a full panel; remaining columns use one-vector panels."""
        product, target = self.with_known_rows(), self.target

        def panel_cost(wide: int) -> float:
            """Return the cycles of a step of k for one row, in panels of `wide` vectors and a
            remainder.
            """
            panel_cycles = step_cycles(rows := self.tile_rows(wide), wide, target) / rows
            if product.columns is None:
                return panel_cycles / wide
            num_panels, tail_columns = divmod(product.columns, wide * self.lanes)
            narrow = step_cycles(MAX_STREAMED_ROWS, 1, target) / MAX_STREAMED_ROWS
            return num_panels * panel_cycles + -(-tail_columns // self.lanes) * narrow

        # Rounding lets equal costs tie, and the widest panel win.
        return min(range(MAX_PANEL_VECTORS, 1, -1), key=lambda wide: round(panel_cost(wide), 6))

    def tile_rows(self, vectors: int) -> int:
        """Return the rows of a tile on a full panel."""
        return min(MAX_PRODUCT_TILE_ROWS, tile_rows(vectors, self.with_known_rows(), self.target))

    def supported_methods(self, vectors: int) -> tuple[str, ...]:
        """Return the supported methods, the best first."""
        rows, width = self.product.rows, vectors * self.lanes
        methods = ["panels", "whole"] if self.can_share_panels(width) else ["whole", "panels"]
        columns = -1 if self.num_columns is None or self.transpose_b else self.num_columns
        # One panel of full vectors is already in the order of reading: no copy is needed.
        if 0 <= columns <= MAX_PANEL_VECTORS * self.lanes and columns % self.lanes == 0:
            methods.insert(0, "direct")
        if rows is not None and 0 < rows < MAX_STREAMED_ROWS:
            if not self.transpose_b:
                methods.insert(0, "streamed")
            elif not self.transpose_a:
                methods.insert(0, "dots")
        return tuple(methods)

    def can_share_panels(self, width: int) -> bool:
        """Return whether threads are busy with other matrices of the batch, or can share the
        panels.
        """
        if self.batch != 1:
            return True
        columns = self.num_columns
        return columns is not None and is_balanced(columns // width, self.target.cores)


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a product of computed matrices."""
    sizes = BatchMatmulSizes.from_anchor(anchor, target)
    return (
        Knob("vectors", descending_range(MAX_PANEL_VECTORS, 2), "vectors of a panel"),
        Knob("rows", descending_range(MAX_PRODUCT_TILE_ROWS), "rows of a tile"),
        Knob(
            "rhs_access",
            tuple(sorted(sizes.supported_methods(MAX_PANEL_VECTORS))),
            "how the right matrix is read",
        ),
        Knob("pack_prefetch", ("l1", "l2"), "cache into which the next copied panel is prefetched"),
        Knob(
            "l1_prefetch",
            PREFETCH_DISTANCES,
            "L1 prefetch distance of a copied panel, in steps of k",
        ),
        Knob("unroll", K_UNROLL_FACTORS, "unroll factor of k"),
    )


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for a product of computed matrices."""
    sizes = BatchMatmulSizes.from_anchor(anchor, target)
    vectors = int(fixed.get("vectors", sizes.panel_vectors()))
    rows = int(fixed.get("rows", sizes.tile_rows(vectors)))
    blocking = LoopBlocking(sizes.with_known_rows(), vectors * sizes.lanes, rows, target)
    l1_prefetch = int(fixed.get("l1_prefetch", blocking.prefetch_distance("panel")))
    return Decision.from_mapping(
        {
            "vectors": vectors,
            "rows": rows,
            "rhs_access": fixed.get("rhs_access", sizes.supported_methods(vectors)[0]),
            "pack_prefetch": fixed.get("pack_prefetch", blocking.pack_prefetch_cache()),
            "l1_prefetch": l1_prefetch,
            "unroll": fixed.get("unroll", blocking.unroll_factor("panel", l1_prefetch)),
        }
    )
