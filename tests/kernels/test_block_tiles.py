"""Tiles of products with block-quantised weights: decisions, traces, and what is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.prim import SizeVar
from ekiden.ir.structural import structural_equal
from ekiden.kernels import ScheduledKernel, schedule_kernel
from ekiden.kernels.micro_kernels.block_tile import DOT_INSTRUCTIONS
from ekiden.kernels.quantized.dynamic_quantization import SYMMETRIC_INT8_FACT
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir import Schedule, ScheduleError
from ekiden.tir.transform import lower
from ekiden.topi.nn import dense_blocks_pack
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME, GGUF_BLOCK_FORMATS, BlockFormat
from ekiden.topi.nn.block_quantized import PackedBlock, pack_blocks, unpack_blocks
from long_runs import LONG
from processor import processors

CASES, GROUP = 100, 10
"""Groups of random tiles, and tiles of a group."""


def kernel(
    row: BlockFormat, shape: tuple[int | SizeVar, int, int], text: str, how: str, fixed: str = ""
) -> ScheduledKernel:
    """The kernel of (rows, units, blocks) with a panel of two vectors."""
    rows, units, blocks = shape
    target = Target.parse(text)
    panel = 2 * target.lanes("float32")
    data = te.placeholder((rows, blocks * row.values_per_block), name="data")
    size = PackedBlock(row, panel).block_bytes
    weight = te.placeholder((-(-units // panel), blocks, size), "uint8", "weight")
    result = dense_blocks_pack(data, weight, row.name, units, panel, how)
    overrides = dict(item.split("=") for item in fixed.split())
    decision = {"dense_blocks_pack": {k: int(v) for k, v in overrides.items()}}
    return schedule_kernel([data, weight], [result], target, "kernel", decision)


def packed_weight(row: BlockFormat, shape: tuple[int, int, int], panel: int) -> np.ndarray:  # type: ignore[type-arg]
    """Random levels, with scales that are numbers."""
    _, units, blocks = shape
    source = np.random.default_rng(shape)
    plain = source.integers(0, 256, (units, blocks, row.block_bytes), dtype=np.uint8)
    for real in (row.scale, row.offset):
        if real is not None:
            numbers = source.standard_normal((units, blocks, 1)).astype("<f2")
            plain[..., real.byte_offset : real.byte_offset + 2] = numbers.view(np.uint8)
    return pack_blocks(plain, row.name, panel)


@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < 1 else LONG) for n in range(CASES)]
)
def test_random_tiles_of_blocks_equal_numpy(group: int) -> None:
    texts = [text for text in processors() if Target.parse(text).has("madd_u8s8")]
    for seed in range(group * GROUP, (group + 1) * GROUP):
        source = random.Random(seed)
        row, text = source.choice(GGUF_BLOCK_FORMATS), source.choice(texts)
        shape = (source.randint(1, 7), source.choice([1, 8, 33, 64]), source.randint(1, 2))
        how = source.choice(["int8", "int8", "float32"])
        fixed = f"rows={source.randint(1, 6)} wide_rows={source.randint(0, 3)}"
        result = kernel(row, shape, text, how, fixed)
        target = Target.parse(text)
        panel = 2 * target.lanes("float32")
        weight = packed_weight(row, shape, panel)
        data = np.random.default_rng(seed).integers(
            -127, 128, (shape[0], weight.shape[1] * row.values_per_block)
        )
        data[:, ::32] = 127  # steps are 1, and nothing is rounded
        values, out = data.astype("float32"), np.full(shape[:2], np.nan, "float32")
        image = link_image([compile_object([lower(result.func, target)], target)], ["kernel"])
        load_image(image)["kernel"](values, weight, out)
        plain = unpack_blocks(weight, row.name, panel)[: shape[1]].astype("float64")
        near = (np.abs(values) @ np.abs(plain).T) * 2e-6
        assert (np.abs(out - values @ plain.T) <= near).all(), (seed, row.name, text, how, fixed)


@pytest.mark.slow
@pytest.mark.quick
@pytest.mark.parametrize("how", ["int8", "float32"])
@pytest.mark.parametrize("rows", [1, 5, SizeVar("n")])
@pytest.mark.parametrize("name", ["q4_0", "q6_k"])
def test_trace_of_a_block_kernel_replays(name: str, rows: int | SizeVar, how: str) -> None:
    row = BLOCK_FORMATS_BY_NAME[name]
    result = kernel(row, (rows, 40, 2), "llvm -mcpu=x86-64-v3 -cores=2", how)
    assert result.trace is not None and result.initial_program is not None
    assert ("block_int8_tile(" if how == "int8" else "block_tile(") in str(result.trace)
    again = Schedule(result.initial_program)
    result.trace.apply_to_schedule(again)
    attrs = {k: v for k, v in (result.func.attrs or {}).items() if k != "tir.in_place"}
    assert structural_equal(again.func, result.func.with_fields(attrs=attrs), map_free_vars=True)


def replayed(name: str, options: dict[str, int], without: str = "") -> tir.PrimFunc:
    """The kernel of a format with other options of its micro-kernel."""
    row = BLOCK_FORMATS_BY_NAME[name]
    result = kernel(row, (3, 40, 1), "llvm -mcpu=x86-64-v3 -cores=1", "int8")
    assert result.trace is not None and result.initial_program is not None
    text = str(result.trace)
    for key, value in options.items():
        (old,) = {word for word in text.replace("(", " ").split() if word.startswith(f"{key}=")}
        text = text.replace(old.rstrip(",)'"), f"{key}={value}")
    start = result.initial_program
    if without:
        start = tir.script.from_source(
            str(start).replace(f'T.block_attr({{"{without}": 1}})', "pass")
        )
    sch, names = Schedule(start), {**vars(tir)}
    exec(text, names)
    names["apply_trace"](sch)
    return sch.func


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "options", "without", "message"),
    [
        ("q6_k", {"int16_sums": 1}, "", "sums of groups of q6_k do not fit int16"),
        ("q8_0", {"dot": 1}, "", "sums of two products of levels of 8 bits do not fit int16"),
        ("q8_0", {}, SYMMETRIC_INT8_FACT, "madd_s8s8 is exact for data from -127 on"),
        ("q4_0", {"format": 8}, "", "is not what 'block_int8_tile' describes"),
        ("q4_0", {"blocks": 2}, "", "is not what 'block_int8_tile' describes"),
    ],
)
def test_invalid_block_tile_options_are_refused(
    name: str, options: dict[str, int], without: str, message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        replayed(name, options, without)


@pytest.mark.quick
def test_options_name_dot_products() -> None:
    assert DOT_INSTRUCTIONS == ("dot4_u8s8", "madd_u8s8", "madd_s8s8")
    assert replayed("q4_0", {}).attrs["tir.tiled"] == 1  # type: ignore[index]
