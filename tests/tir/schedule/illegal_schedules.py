"""Rejected schedules; illegal_schedules.txt has the messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from illegal_programs import (
    bare,
    changed,
    half_read,
    ordered,
    padded,
    pair,
    part,
    product,
    rows,
    scan,
    shared,
    sums,
    symbolic,
    triangle,
    window,
)

from ekiden.tir import LoopRV, PrimFunc, Schedule


def at(sch: Schedule, block: str, number: int) -> LoopRV:
    """A loop around a block."""
    return sch.get_loops(block)[number]


def parted(sch: Schedule) -> LoopRV:
    """Part the rows of the product at 2, inside of panels of 8 columns; return the panel loop."""
    i, j, k = sch.get_loops("c")
    panel, column = sch.split(j, [None, 8])
    sch.reorder(panel, i, k, column)
    sch.partition(i, [2])
    return panel


def dead_loop(sch: Schedule) -> None:
    """Use a loop that a split took apart."""
    loop = at(sch, "c", 0)
    sch.split(loop, [None, 2])
    sch.parallel(loop)


STEPS: dict[str, tuple[PrimFunc, Callable[[Schedule], object]]] = {
    "split_none_twice": (product(), lambda s: s.split(at(s, "c", 0), [None, None])),
    "split_no_factor": (product(), lambda s: s.split(at(s, "c", 0), [])),
    "split_zero": (product(), lambda s: s.split(at(s, "c", 0), [None, 0])),
    "split_negative": (product(), lambda s: s.split(at(s, "c", 1), [-2, None])),
    "split_too_small": (product(), lambda s: s.split(at(s, "c", 0), [2, 2])),
    "split_too_small_symbolic": (symbolic(), lambda s: s.split(at(s, "c", 0), [4, 2])),
    "split_unknown_tail": (product(), lambda s: s.split(at(s, "c", 0), [None, 2], tail="mask")),
    "split_tail_inner_none": (product(), lambda s: s.split(at(s, "c", 0), [2, None], tail="loop")),
    "split_vectorized": (
        product(),
        lambda s: (s.vectorize(at(s, "d", 1)), s.split(at(s, "d", 1), [None, 2])),
    ),
    "split_annotated": (
        product(),
        lambda s: (s.annotate(at(s, "d", 1), "note", 1), s.split(at(s, "d", 1), [None, 2])),
    ),
    "split_gone": (product(), lambda s: dead_loop(s)),
    "fuse_nothing": (product(), lambda s: s.fuse()),
    "fuse_apart": (product(), lambda s: s.fuse(at(s, "c", 0), at(s, "c", 2))),
    "fuse_wrong_order": (product(), lambda s: s.fuse(at(s, "c", 1), at(s, "c", 0))),
    "fuse_two_nests": (product(), lambda s: s.fuse(at(s, "c", 0), at(s, "d", 0))),
    "fuse_parallel": (
        product(),
        lambda s: (s.parallel(at(s, "c", 0)), s.fuse(at(s, "c", 0), at(s, "c", 1))),
    ),
    "fuse_triangle": (triangle, lambda s: s.fuse(at(s, "t", 0), at(s, "t", 1))),
    "fuse_from_one": (triangle, lambda s: s.fuse(at(s, "from_one", 0), at(s, "from_one", 1))),
    "reorder_twice": (product(), lambda s: s.reorder(at(s, "c", 0), at(s, "c", 0))),
    "reorder_two_nests": (product(), lambda s: s.reorder(at(s, "c", 1), at(s, "d", 0))),
    "reorder_triangle": (triangle, lambda s: s.reorder(at(s, "t", 1), at(s, "t", 0))),
    "reorder_around_two_blocks": (
        product(),
        lambda s: (s.compute_at("c", at(s, "d", 0)), s.reorder(at(s, "d", 1), at(s, "d", 0))),
    ),
    "reorder_prefix_sum": (scan, lambda s: s.reorder(at(s, "prefix", 1), at(s, "prefix", 0))),
    "reorder_not_commutative": (scan, lambda s: s.reorder(at(s, "horner", 1), at(s, "horner", 0))),
    "reorder_spatial_and_reduced": (
        product(),
        lambda s: (
            s.split(s.fuse(at(s, "c", 1), at(s, "c", 2)), [None, 5]),
            s.reorder(at(s, "c", 2), at(s, "c", 1)),
        ),
    ),
    "reorder_parallel": (
        product(),
        lambda s: (s.parallel(at(s, "c", 0)), s.reorder(at(s, "c", 1), at(s, "c", 0))),
    ),
    "reorder_store_outside": (bare, lambda s: s.reorder(at(s, "inner", 1), at(s, "inner", 0))),
    "reorder_iters": (product(), lambda s: s.reorder_block_iter_var("c", [0, 1, 1])),
    "reorder_iters_short": (product(), lambda s: s.reorder_block_iter_var("c", [1, 0])),
    "parallel_reduced": (product(), lambda s: s.parallel(at(s, "c", 2))),
    "parallel_prefix": (scan, lambda s: s.parallel(at(s, "prefix", 0))),
    "parallel_same_element": (scan, lambda s: s.parallel(at(s, "same", 0))),
    "parallel_grain": (product(), lambda s: s.parallel(at(s, "c", 0), 0)),
    "parallel_fused_reduction": (
        product(),
        lambda s: s.parallel(s.fuse(at(s, "c", 1), at(s, "c", 2))),
    ),
    "parallel_rolling": (
        window(),
        lambda s: (
            s.compute_at("y", at(s, "z", 0)),
            s.rolling_buffer("y", 0),
            s.parallel(at(s, "z", 0)),
        ),
    ),
    "vectorize_reduced": (product(), lambda s: s.vectorize(at(s, "c", 2), 8)),
    "vectorize_lanes": (product(), lambda s: s.vectorize(at(s, "d", 1), 0)),
    "vectorize_within_vectors": (
        product(),
        lambda s: (s.vectorize(at(s, "d", 1)), s.vectorize(at(s, "d", 0))),
    ),
    "unroll_symbolic": (symbolic(), lambda s: s.unroll(at(s, "c", 0))),
    "bind_axis": (product(), lambda s: s.bind(at(s, "c", 0), "threadIdx.w")),
    "bind_reduced": (product(), lambda s: s.bind(at(s, "c", 2), "blockIdx.x")),
    "bind_twice": (
        product(),
        lambda s: (s.bind(at(s, "c", 0), "threadIdx.x"), s.bind(at(s, "c", 1), "threadIdx.x")),
    ),
    "inline_reduction": (product(), lambda s: s.compute_inline("c")),
    "inline_output": (product(), lambda s: s.compute_inline("e")),
    "inline_missing": (product(), lambda s: s.compute_inline("nothing")),
    "inline_two_stores": (pair, lambda s: s.compute_inline("pair")),
    "inline_changed_input": (changed, lambda s: s.compute_inline("copy")),
    "inline_init": (
        product(),
        lambda s: (s.decompose_reduction("c", at(s, "c", 2)), s.compute_inline("c_init")),
    ),
    "inline_inside": (product(), lambda s: (s.blockize(at(s, "d", 1)), s.compute_inline("d"))),
    "reverse_inline_two_producers": (product(), lambda s: s.reverse_compute_inline("c")),
    "reverse_inline_reduction_before": (product(), lambda s: s.reverse_compute_inline("d")),
    "reverse_inline_shared": (shared, lambda s: s.reverse_compute_inline("left")),
    "reverse_inline_window": (window(), lambda s: s.reverse_compute_inline("w")),
    "reverse_inline_padding": (padded, lambda s: s.reverse_compute_inline("pad")),
    "reverse_inline_argument": (shared, lambda s: s.reverse_compute_inline("last")),
    "compute_at_own_loop": (product(), lambda s: s.compute_at("c", at(s, "c", 0))),
    "compute_at_output": (half_read, lambda s: s.compute_at("right", at(s, "last", 0))),
    "compute_at_earlier": (product(), lambda s: s.compute_at("d", at(s, "c", 0))),
    "compute_at_not_read": (product(), lambda s: s.compute_at("c", at(s, "e", 0))),
    "compute_at_read_elsewhere": (shared, lambda s: s.compute_at("base", at(s, "left", 0))),
    "compute_at_index": (product(), lambda s: s.compute_at("d", at(s, "e", 0), index=3)),
    "compute_at_update": (
        product(),
        lambda s: (s.decompose_reduction("c", at(s, "c", 0)), s.compute_at("c", at(s, "d", 0))),
    ),
    "compute_at_opaque": (scan, lambda s: s.compute_at("prefix", at(s, "after", 0))),
    "reverse_at_unfinished": (product(), lambda s: s.reverse_compute_at("d", at(s, "c", 2))),
    "reverse_at_earlier": (product(), lambda s: s.reverse_compute_at("c", at(s, "d", 0))),
    "reverse_at_not_made": (product(), lambda s: s.reverse_compute_at("e", at(s, "c", 0))),
    "reverse_at_window": (window(), lambda s: s.reverse_compute_at("z", at(s, "y", 0))),
    "reverse_at_other_input": (shared, lambda s: s.reverse_compute_at("last", at(s, "left", 0))),
    "reverse_at_part": (padded, lambda s: s.reverse_compute_at("pad", at(s, "base", 0))),
    "cache_read_number": (product(), lambda s: s.cache_read("c", 2, "local")),
    "cache_read_name": (product(), lambda s: s.cache_read("c", "z", "local")),
    "cache_read_scope": (product(), lambda s: s.cache_read("c", 0, "texture")),
    "cache_read_consumer": (product(), lambda s: s.cache_read("c", 0, "local", ["d"])),
    "cache_read_changed": (changed, lambda s: s.cache_read("copy", 0, "local")),
    "cache_write_number": (product(), lambda s: s.cache_write("c", 1, "local")),
    "cache_write_two_writers": (
        product(),
        lambda s: (s.decompose_reduction("c", at(s, "c", 0)), s.cache_write("c", 0, "local")),
    ),
    "cache_write_opaque": (scan, lambda s: s.cache_write("prefix", 0, "local")),
    "cache_write_consumer": (product(), lambda s: s.cache_write("c", 0, "local", ["e"])),
    "reindex_side": (product(), lambda s: s.reindex("c", ("both", 0))),
    "reindex_number": (product(), lambda s: s.reindex("c", ("read", 5))),
    "reindex_guarded": (padded, lambda s: s.reindex("pad", ("read", 0))),
    "reindex_two_patterns": (window(), lambda s: s.reindex("w", ("read", 0))),
    "set_scope_output": (product(), lambda s: s.set_scope("e", 0, "local")),
    "set_scope_name": (product(), lambda s: s.set_scope("c", 0, "nowhere")),
    "set_dtype_output": (product(), lambda s: s.unsafe_set_dtype("e", 0, "float16")),
    "set_dtype_name": (product(), lambda s: s.unsafe_set_dtype("c", 0, "float17")),
    "align_output": (product(), lambda s: s.storage_align("e", 0, 0, 16, 0)),
    "align_axis": (product(), lambda s: s.storage_align("c", 0, 2, 16, 0)),
    "align_factor": (product(), lambda s: s.storage_align("c", 0, 0, 0, 0)),
    "decompose_plain": (product(), lambda s: s.decompose_reduction("d", at(s, "d", 0))),
    "decompose_other_loop": (product(), lambda s: s.decompose_reduction("c", at(s, "d", 0))),
    "decompose_inside": (
        product(),
        lambda s: (
            s.reorder(at(s, "c", 2), at(s, "c", 1)),
            s.decompose_reduction("c", at(s, "c", 2)),
        ),
    ),
    "decompose_fused": (
        product(),
        lambda s: s.decompose_reduction("c", s.fuse(at(s, "c", 1), at(s, "c", 2))),
    ),
    "merge_other_buffer": (product(), lambda s: s.merge_reduction("d", "c")),
    "merge_plain": (
        product(),
        lambda s: (s.decompose_reduction("c", at(s, "c", 2)), s.merge_reduction("c_init", "d")),
    ),
    "merge_not_constant": (sums, lambda s: s.merge_reduction("start", "sum")),
    "merge_part": (part, lambda s: s.merge_reduction("zero", "sum")),
    "merge_order": (part, lambda s: s.merge_reduction("sum", "zero")),
    "rfactor_spatial": (product(), lambda s: s.rfactor(at(s, "c", 0), 0)),
    "rfactor_plain": (product(), lambda s: s.rfactor(at(s, "d", 0), 0)),
    "rfactor_axis": (product(), lambda s: s.rfactor(at(s, "c", 2), 4)),
    "rfactor_two_blocks": (
        product(),
        lambda s: (s.compute_at("c", at(s, "d", 0)), s.rfactor(at(s, "d", 0), 0)),
    ),
    "layout_axes": (product(), lambda s: s.transform_layout("c", ("write", 0), lambda i: (i,))),
    "layout_collision": (
        product(),
        lambda s: s.transform_layout("c", ("write", 0), lambda i, j: (i + j,)),
    ),
    "layout_lost": (
        product(),
        lambda s: s.transform_layout("c", ("write", 0), lambda i, j: (i, j // 4)),
    ),
    "layout_padded_argument": (
        product(),
        lambda s: s.transform_layout("e", ("write", 0), lambda i, j: (i, j // 4, j % 4)),
    ),
    "layout_pad_value": (
        product(),
        lambda s: s.transform_layout("c", ("write", 0), lambda i, j: (i, j // 4, j % 4), 0.0),
    ),
    "block_layout_rank": (product(), lambda s: s.transform_block_layout("c", lambda i, j: (j, i))),
    "block_layout_mixed": (
        product(),
        lambda s: s.transform_block_layout("c", lambda i, j, k: (i, j * 7 + k)),
    ),
    "block_layout_lost": (
        product(),
        lambda s: s.transform_block_layout("c", lambda i, j, k: (i, j, k // 2)),
    ),
    "block_layout_split": (
        product(),
        lambda s: (
            s.split(at(s, "c", 0), [None, 2]),
            s.transform_block_layout("c", lambda i, j, k: (j, i, k)),
        ),
    ),
    "pad_plain": (product(), lambda s: s.pad_einsum("d", [4, 4])),
    "pad_factors": (product(), lambda s: s.pad_einsum("c", [4, 4])),
    "pad_max": (rows(), lambda s: s.pad_einsum("largest", [4, 4])),
    "pad_inputs_apart": (rows(), lambda s: s.pad_einsum("weighted", [1, 4])),
    "blockize_two": (
        product(),
        lambda s: (s.compute_at("c", at(s, "d", 0)), s.blockize(at(s, "d", 0))),
    ),
    "blockize_window": (
        product(),
        lambda s: (
            s.split(at(s, "d", 1), [None, 4]),
            s.split(at(s, "d", 1), [None, 3]),
            s.reorder(at(s, "d", 2), at(s, "d", 1)),
            s.blockize(at(s, "d", 2)),
        ),
    ),
    "tensorize_extent": (product(), lambda s: s.tensorize(at(s, "c", 2), "test.dot8")),
    "tensorize_operation": (product(), lambda s: s.tensorize(at(s, "d", 1), "test.dot8")),
    "first_use_alone": (
        product(),
        lambda s: s.read_at(at(s, "c", 0), "c", 1, "global", first_use="c"),
    ),
    "first_use_later": (
        product(),
        lambda s: s.read_at(parted(s), "c", 1, "global", first_use="c_1"),
    ),
    "first_use_elsewhere": (
        product(),
        lambda s: s.read_at(parted(s), "c_1", 1, "global", first_use="d"),
    ),
    "copy_out_of_its_loop": (
        product(),
        lambda s: (
            s.cache_read("c", 1, "global"),
            s.reverse_compute_inline(s.read_at(at(s, "c", 0), "c", 1, "global")),
        ),
    ),
    "first_use_masked": (
        product(),
        lambda s: s.read_at(parted(s), "c_1", 1, "global", first_use="c"),
    ),
    "ordered_parallel": (ordered, lambda s: s.parallel(at(s, "scatter", 1))),
    "ordered_vectorize": (ordered, lambda s: s.vectorize(at(s, "recurrence", 0))),
    "ordered_bind": (ordered, lambda s: s.bind(at(s, "scatter", 0), "threadIdx.x")),
    "ordered_part": (
        ordered,
        lambda s: s.parallel(s.split(at(s, "scatter", 1), [None, 3], tail="short")[0]),
    ),
    "ordered_reorder": (
        ordered,
        lambda s: s.reorder(at(s, "scatter", 1), at(s, "scatter", 0)),
    ),
    "ordered_reorder_mixed": (
        ordered,
        lambda s: s.reorder(at(s, "turning", 1), at(s, "turning", 0)),
    ),
    "ordered_shared": (ordered, lambda s: s.parallel(at(s, "mirrored", 1))),
    "ordered_transform": (
        ordered,
        lambda s: s.transform_block_layout("recurrence", lambda t, j: (j, t)),
    ),
    "ordered_compute_at": (ordered, lambda s: s.compute_at("scatter", at(s, "relu", 0))),
    "ordered_consumer": (ordered, lambda s: s.reverse_compute_at("relu", at(s, "scatter", 1))),
    "ordered_inline": (ordered, lambda s: s.compute_inline("scatter")),
    "ordered_start": (ordered, lambda s: s.compute_at("start", at(s, "scatter", 1))),
    "ordered_cache_write": (ordered, lambda s: s.cache_write("scatter", 0, "global")),
    "ordered_rfactor": (ordered, lambda s: s.rfactor(at(s, "scatter", 1), 0)),
    "rolling_argument": (product(), lambda s: s.rolling_buffer("e", 0)),
    "rolling_apart": (product(), lambda s: s.rolling_buffer("c", 0)),
    "rolling_no_overlap": (
        product(),
        lambda s: (s.compute_at("d", at(s, "e", 1)), s.rolling_buffer("d", 0)),
    ),
    "unannotate_missing": (product(), lambda s: s.unannotate("c", "note")),
    "sample_symbolic": (symbolic(), lambda s: s.sample_perfect_tile(at(s, "c", 0), 2)),
    "sample_decision": (product(), lambda s: s.sample_perfect_tile(at(s, "c", 0), 2, decision=[5])),
    "sample_weights": (product(), lambda s: s.sample_categorical([1, 2], [1.0])),
    "sample_place": (product(), lambda s: s.sample_compute_location("c", decision=7)),
    "get_block": (product(), lambda s: s.get_block("nothing")),
    "get_loop_name": (product(), lambda s: s.unroll("i")),
    "foreign_handle": (product(), lambda s: s.get_loops(Schedule(product()).get_block("c"))),
    "unknown_function": (product(), lambda s: s.work_on("other")),
}


@dataclass(frozen=True, slots=True)
class Refused:
    """A program, steps of which the last is refused, and the whole message."""

    name: str
    program: PrimFunc
    steps: Callable[[Schedule], object]
    message: str


def _messages() -> dict[str, str]:
    """Name -> message, of blocks that begin with `== name`."""
    text = Path(__file__).with_suffix(".txt").read_text()
    parts = (part.split("\n", 1) for part in text.split("== ")[1:])
    return {name: message.rstrip("\n") for name, message in parts}


MESSAGES = _messages()
CASES = [Refused(name, *case, MESSAGES[name]) for name, case in STEPS.items()]
"""What a program and its steps on it give: a message each."""
