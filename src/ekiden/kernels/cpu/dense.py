"""Dense layers with packed constant weights.

    out[m, n] = sum over k of data[m, k] * weight[n // tile, k, n % tile]

or, of uint8 and int8 with int32 results, weight[n // tile, k // 4, n % tile, k % 4]; of bytes or
int16 that are multiplied as int16, and of bfloat16 with float32 results, two steps of k side by
side. Word weights may be
batched; threads share the batch first. Panels of bytes may have further rows, and a table of the
data words that multiply those (int8_dot.py): the loop over k is partitioned where the table begins.

    for a run of panels, or one, in parallel:
      for a block of k:
        for a panel, for a tile of rows:         or the other way round, by `order`
          l1_prefetch:  every step of k prefetches the panel's row `l1_prefetch` steps later into L1
                        (with dynamic rows, only in tiles of enough rows)
          l2_prefetch:  so many first tiles prefetch the next panel into L2, a cache line at a time

Partial sums of a block of k are stored in the result until the last one. With few panels threads
share the row tiles instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr
from ekiden.ir.prim_visitor import rewrite
from ekiden.kernels.cost_model import (
    MIN_K_BLOCK,
    PREFETCH_DISTANCES,
    LoopBlocking,
    can_hide_prefetches,
    choose_panel_width,
    fills_matrix_unit,
    max_register_rows,
    panel_width_knob,
    tile_rows,
)
from ekiden.kernels.decision import (
    Decision,
    Knob,
    KnobValue,
    Overrides,
    SearchSpace,
    descending_range,
    divisors,
)
from ekiden.kernels.family import (
    INT16_PAIR_SUMS,
    RANGE_EPILOGUE,
    Family,
    MatmulSizes,
    elements_per_word,
    known_extent,
    product_dtype,
)
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.matrix_tiles import AMX_TILE_HEIGHTS, MATRIX_DOT_FEATURES
from ekiden.kernels.micro_kernels.register_tiles import MAX_DYNAMIC_TILE_ROWS, WIDENED_DTYPE
from ekiden.kernels.micro_kernels.registered_micro_kernels import (
    MATRIX_TILE_KERNEL,
    REGISTER_TILE_KERNEL,
)
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.kernels.quantized.int8_dot import (
    BF16_PAIR_FEATURE,
    MADD_FEATURE,
    NARROW_DOT_FEATURE,
    dot_instruction_knobs,
    emit_widen_pairs,
    matrix_dot_instruction,
    supported_dots,
)
from ekiden.kernels.scheduled_kernel import (
    KernelSpec,
    create_inlined_program,
    replace_computation,
    row_loop,
    try_primitive,
)
from ekiden.kernels.stages import has_known_weights
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc
from ekiden.topi.nn.weight_packing import DOT_WORD_CHANNELS, WORD_PAIR_ELEMENTS

if TYPE_CHECKING:
    from ekiden.tir.schedule.schedule import Schedule
    from ekiden.tir.schedule.trace import LoopRV

CACHE_LINE_F32_WORDS = 16
"""Four-byte words per cache line."""
MAX_NARROW_TILE_ROWS = 12
"""Maximum tile rows on the narrow last panel."""
K_UNROLL_FACTORS = (1, 2, 4)
"""Domain of the unroll factor of k."""


def schedule_dense(sch: Schedule, kernel: KernelSpec) -> None:
    """Schedule a dense layer."""
    decision, target, anchor = kernel.decision, kernel.target, kernel.anchor
    data, weight = operands_of(anchor)
    sizes, width = _matmul_sizes(anchor)
    in_matrices = decision.get("dot") in MATRIX_DOT_FEATURES
    product_block = sch.get_block(anchor.op.name)
    epilogues = sch.get_consumers(product_block)
    *leading, columns, k = sch.get_loops(product_block)
    batch, leading = leading[: _num_batch_axes(weight)], leading[_num_batch_axes(weight) :]
    rows = sch.fuse(*leading) if len(leading) > 1 else row_loop(sch, product_block, leading)
    if in_matrices:
        tile, row = sch.split(rows, [None, decision.int_value("rows")], tail="short")
    else:
        tile, row = sch.split(rows, [None, _max_tile_rows(sizes, width, kernel)], tail="balanced")
    panel, column = sch.split(columns, [None, width], tail="short")
    block: list[LoopRV] = []
    if decision.int_value("k_block"):
        outer, k = sch.split(k, [None, decision.int_value("k_block")])
        block = [outer]
    word_loops = _dot_loop_extents(weight, decision)
    depth = sch.split(k, [None, *word_loops]) if word_loops else [k]
    # With a batch, threads share its axis, the outermost loop: panels are never shared out.
    by_rows = decision["split"] == "rows" or bool(batch)
    is_outer = decision["order"] == "panel" and not by_rows
    chunk: list[LoopRV] = []
    if not by_rows and (block or not is_outer):
        panels = -(-int(str(anchor.op.attrs["units"])) // width)
        chunk, panel = _split_panels_for_threads(sch, panel, min(target.cores, panels))
    order = [panel, tile] if is_outer else [tile, panel]
    sch.reorder(*batch, *chunk, *block, *order, row, column, *depth)
    for epilogue_block in epilogues:
        sch.reverse_compute_at(epilogue_block, column)
    # Equally spaced rows conflict in L1: the copy is padded by a cache line to spread them over the
    # sets.
    if block and decision["copy"]:
        copy = sch.read_at(block[0], product_block, 0, "global", pad=CACHE_LINE_F32_WORDS)
        sch.vectorize(sch.get_loops(copy)[-1], target.lanes(data.dtype))
    if chunk or by_rows or (is_outer and not block):
        # Epilogues may store rows where the steps of threads cannot be proved to be apart.
        try_primitive(sch, sch.parallel, (*batch, *chunk, *order)[0])
    if _num_residual_words(anchor):
        # The words in front are strided, those behind are looked up.
        sch.partition(depth[0], [weight.shape[1] - _num_residual_words(anchor)])
    # Partial sums wait in the output between blocks of k, which needs the accumulators' dtype.
    if block and epilogues and kernel.outputs[0].dtype == anchor.dtype:
        sch.reuse_buffer(product_block, 0)
    if in_matrices:
        sch.tensorize(row, MATRIX_TILE_KERNEL.call())
        return
    options = {name: decision.int_value(name) for name in ("l1_prefetch", "l2_prefetch", "unroll")}
    if decision.get("dot") == NARROW_DOT_FEATURE:
        options["pair_sums"] = 1
    # With dynamic rows short tiles occur at run time: they finish before a prefetch arrives.
    if sizes.rows is None:
        options |= _min_prefetching_rows(sizes, width, target)
    sch.tensorize(row, REGISTER_TILE_KERNEL.call(lanes=target.lanes("float32"), **options))


def create_initial_program(inputs: list[te.Tensor], kernel: KernelSpec, name: str) -> PrimFunc:
    """Create the program to schedule: the product and its epilogues, with bytes widened to int16
    pairs first where needed.
    """
    anchor = kernel.anchor
    data, weight = operands_of(anchor)
    if kernel.decision.get("dot") != MADD_FEATURE or data.dtype == WIDENED_DTYPE:
        return create_inlined_program(inputs, list(kernel.outputs), name)
    size, lanes = product_of_dims(list(data.shape)), kernel.target.lanes("float32")
    pairs = te.extern(
        data.shape,
        [data],
        lambda ins, outs: emit_widen_pairs(ins[0], outs[0], size, lanes, _word_size(weight)),
        name="pairs",
        dtype="int16",
    )
    assert isinstance(pairs, te.Tensor)
    return create_inlined_program(
        inputs, replace_computation(kernel.outputs, anchor, widen_to_pairs(anchor, pairs)), name
    )


def widen_to_pairs(anchor: te.Tensor, pairs: te.Tensor) -> te.Tensor:
    """Return a product over data widened to int16: beside words of four in the pair order 0, 2, 1,
    3.
    """
    op = anchor.op
    assert isinstance(op, te.ComputeOp)
    data, weight = operands_of(anchor)

    def redirect_to_pairs(e: PrimExpr) -> PrimExpr:
        """Rewrite a load of `data` to load from the buffer of widened pairs, in which the elements
        of a word of four bytes are in the order 0, 2, 1, 3.
        """
        if isinstance(e, te.ProducerLoad) and e.producer is data:
            *row, k = e.indices
            if _word_size(weight) == WORD_PAIR_ELEMENTS:
                return pairs[(*row, k)]
            return pairs[(*row, k // 4 * 4 + k % 2 * 2 + k % 4 // 2)]
        return e

    return anchor.with_fields(
        op=op.with_fields(body=tuple(rewrite(b, redirect_to_pairs) for b in op.body))
    )


def _dot_loop_extents(weight: te.Tensor, decision: Decision) -> list[int]:
    """Return the extents of the loops over a word: (2, 2) for int16 pairs."""
    word = _word_size(weight)
    if word == 1:
        return []
    is_halved = decision.get("dot") == MADD_FEATURE and word == DOT_WORD_CHANNELS
    return [2, 2] if is_halved else [word]


def _split_panels_for_threads(
    sch: Schedule, panel: LoopRV, count: int
) -> tuple[list[LoopRV], LoopRV]:
    """Split the panel loop into a loop over threads and a loop over each thread's panels."""
    if count < 2:
        return [], panel
    chunk, inside = sch.split(panel, [count, None], tail="balanced")
    return [chunk], inside


def _max_tile_rows(sizes: MatmulSizes, width: int, kernel: KernelSpec) -> int:
    """Return the maximum number of tile rows; narrow panels get as many as the registers hold."""
    rows = kernel.decision.int_value("rows")
    if sizes.columns is not None and sizes.columns < width:
        lanes = kernel.target.lanes("float32")
        register_limit = max_register_rows(-(-sizes.columns // lanes), kernel.target, sizes.dtype)
        rows = max(rows, min(MAX_NARROW_TILE_ROWS, register_limit))
    # With dynamic rows every height is a copy of the tile: code size bounds their number.
    return min(rows, MAX_DYNAMIC_TILE_ROWS) if sizes.rows is None else rows


def _min_prefetching_rows(sizes: MatmulSizes, width: int, target: Target) -> dict[str, int]:
    """Return the minimum rows, for full and narrow panels, of tiles with time to prefetch their
    panel.
    """

    def min_tile_rows_for(columns: int) -> int:
        """Return the minimal rows that hide their panel's prefetches, as do any more up to
        MAX_DYNAMIC_TILE_ROWS.
        """
        vectors = -(-columns // target.lanes("float32"))
        row_counts = range(1, MAX_DYNAMIC_TILE_ROWS + 1)
        return 1 + max(
            (r for r in row_counts if not can_hide_prefetches(r, vectors, target, sizes.dtype)),
            default=0,
        )

    narrow = (sizes.columns or 0) % width
    return {
        "l1_prefetch_min_rows": min_tile_rows_for(width),
        "l1_prefetch_min_rows_narrow": min_tile_rows_for(narrow) if narrow else 1,
    }


def _word_size(weight: te.Tensor) -> int:
    """Return the number of row elements that one step of k consumes."""
    return elements_per_word(weight) if len(weight.shape) >= 4 else 1


def _num_residual_words(anchor: te.Tensor) -> int:
    """Return the number of words of a panel whose data words are looked up in a table."""
    table = anchor.op.attrs.get("places")
    if table is None:
        return 0
    assert isinstance(table, te.Tensor)
    count = known_extent(table.shape[1])
    assert count is not None, "weights are known"
    return count


def _num_batch_axes(weight: te.Tensor) -> int:
    """Return the number of batch axes of a packed weight."""
    return max(len(weight.shape) - 4, 0)


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the kernel covers a product: a weight packed in words, or float32
    throughout.
    """
    data, weight = operands_of(anchor)
    plain = {data.dtype, weight.dtype, anchor.dtype} == {"float32"}
    return has_known_weights(anchor) and (plain or len(weight.shape) >= 4)


def _matmul_sizes(anchor: te.Tensor) -> tuple[MatmulSizes, int]:
    """Return an anchor's product sizes in steps of k, and its panel width."""
    data, weight = operands_of(anchor)
    attrs = anchor.op.attrs
    depth = simplify(data.shape[-1] // _word_size(weight))
    units, panel = int(str(attrs["units"])), int(str(attrs["tile"]))
    # A list of words (`places`) guarantees that sums of two products fit int16.
    dtype = INT16_PAIR_SUMS if "places" in attrs else product_dtype(data.dtype, weight)
    return MatmulSizes.from_dims(
        product_of_dims(data.shape[_num_batch_axes(weight) : -1]), units, depth, dtype
    ), panel


def _amx_instruction(anchor: te.Tensor, target: Target) -> str | None:
    """Return the AMX instruction for the weight's words, or None."""
    return (
        None
        if "places" in anchor.op.attrs
        else matrix_dot_instruction(operands_of(anchor)[1], target)
    )


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a dense layer."""
    sizes, panel = _matmul_sizes(anchor)
    vectors = -(-panel // target.lanes("float32"))
    blocking = LoopBlocking(sizes, panel, 1, target)
    is_plain = sizes.dtype == "float32"
    blocks = divisors(sizes.depth, MIN_K_BLOCK)[1:] if sizes.depth and is_plain else ()
    rows = descending_range(max_register_rows(vectors, target, sizes.dtype))
    matrices = _amx_instruction(anchor, target)
    if matrices is not None:
        rows = (*AMX_TILE_HEIGHTS, *rows)
    # fmt: off
    return (
        Knob("panel", (panel,), "columns of a panel of weights", is_early=True),
        Knob("rows", rows, "rows of a tile"),
        Knob("order", ("panel", "row"), "the outer loop: panels, or tiles of rows"),
        Knob("k_block", (0, *blocks), "steps of k of a block; 0: all"),
        Knob("l1_prefetch", PREFETCH_DISTANCES,
             "L1 prefetch distance of a panel, in steps of k"),
        Knob("l2_prefetch", blocking.panel_prefetch_domain(),
             "tiles that prefetch the next panel into L2"),
        Knob("unroll", K_UNROLL_FACTORS, "unroll factor of k"),
        Knob("copy", (0, 1), "whether the rows of a block of k are packed"),
        Knob("split", ("panels", "rows"), "what is divided among threads"),
        *dot_instruction_knobs(operands_of(anchor)[1], target, "places" in anchor.op.attrs,
                               matrices),
    )
    # fmt: on


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for a dense layer."""
    sizes, panel = _matmul_sizes(anchor)
    chosen: dict[str, KnobValue] = {
        "panel": panel,
        **{n: v for n, v in fixed.items() if n != "panel"},
    }
    vectors = -(-panel // target.lanes("float32"))
    matrices = _amx_instruction(anchor, target)
    dot = (
        supported_dots(target, operands_of(anchor)[1], sizes.dtype == INT16_PAIR_SUMS)[0]
        if sizes.dtype != "bfloat16"
        else BF16_PAIR_FEATURE
    )
    if matrices is not None and fills_matrix_unit(sizes):
        dot = matrices
    if chosen.setdefault("dot", dot) in MATRIX_DOT_FEATURES:
        return _amx_decision(anchor, target, chosen, sizes)
    rows = int(chosen.setdefault("rows", tile_rows(vectors, sizes, target)))
    blocking = LoopBlocking(sizes, panel, rows, target)
    # With fewer panels than cores some cores would idle: threads share the rows instead.
    has_few_panels = -(-(sizes.columns or 0) // panel) < target.cores
    split = chosen.setdefault("split", "rows" if has_few_panels else "panels")
    order = str(chosen.setdefault("order", "row" if split == "rows" else blocking.outer_loop()))
    chosen.setdefault("k_block", blocking.k_block_steps(order) if sizes.dtype == "float32" else 0)
    l1_prefetch = int(chosen.setdefault("l1_prefetch", blocking.prefetch_distance(order)))
    l2_prefetch = int(chosen.setdefault("l2_prefetch", blocking.panel_prefetch_tiles(order)))
    change = "row" if blocking.num_row_tiles == 1 else "panel"
    chosen.setdefault("unroll", blocking.unroll_factor(change, l1_prefetch or l2_prefetch))
    chosen.setdefault("copy", blocking.should_pack_rows(int(chosen["k_block"])))
    return Decision.from_mapping(
        {choice.name: chosen[choice.name] for choice in search_space(anchor, target)}
    )


def _amx_decision(
    anchor: te.Tensor, target: Target, chosen: dict[str, KnobValue], sizes: MatmulSizes
) -> Decision:
    """Return the decision for AMX tiles, with the panel loop outermost (Sapphire Rapids, panels of
    32, 128x768x768: 1.8 TOP/s, 1.2 with the rows outermost, 0.7 without AMX).
    """
    has_few_panels = -(-(sizes.columns or 0) // int(chosen["panel"])) < target.cores
    split = "rows" if has_few_panels else "panels"
    plain: dict[str, KnobValue] = {"rows": AMX_TILE_HEIGHTS[0], "order": "panel", "split": split}
    none: dict[str, KnobValue] = {
        "k_block": 0,
        "l1_prefetch": 0,
        "l2_prefetch": 0,
        "unroll": 1,
        "copy": 0,
    }
    chosen = {**plain, **none, **chosen}
    return Decision.from_mapping(
        {choice.name: chosen[choice.name] for choice in search_space(anchor, target)}
    )


FAMILY = Family(
    name="dense_pack",
    accepts=is_supported,
    search_space=search_space,
    default_decision=default_decision,
    schedule_steps=schedule_dense,
    create_initial_program=create_initial_program,
    default_panel_width=choose_panel_width,
    panel_width_knob=panel_width_knob,
    special_epilogues=(RANGE_EPILOGUE,),
    writes_strided_rows=True,
    stores_partial_sums=lambda decision: decision["k_block"] != 0,
)
