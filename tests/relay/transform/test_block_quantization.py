"""Block-quantised weights: lowering per target, and results."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from pass_checks import Array, calls

import ekiden
from ekiden import relay
from ekiden.arith import simplify
from ekiden.codegen.llvm import compile_object
from ekiden.ir.module import IRModule
from ekiden.ir.prim import const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.kernels import schedule
from ekiden.kernels.cost_model import STREAM_PREFETCH_BYTES, STREAM_PREFETCH_STRIDE_BYTES
from ekiden.relay.transform import AlterOpLayout, InferType
from ekiden.runtime.errors import CompileError, IndexRangeError, TypeInferenceError
from ekiden.target import Target
from ekiden.te import placeholder
from ekiden.tir.stmt import Prefetch
from ekiden.tir.transform import lower
from ekiden.tir.visitor import pre_order_stmts
from ekiden.topi.nn import dense_blocks_pack
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME, GGUF_BLOCK_FORMATS, BlockFormat
from ekiden.topi.nn.block_quantized import PackedBlock, pack_blocks, unpack_blocks
from long_runs import alike, share
from processor import processors

NAMES = [row.name for row in GGUF_BLOCK_FORMATS]
BYTES = Target.parse("llvm -mcpu=znver4 -mattr=avx512vnni")
NARROW = Target.parse("llvm -mcpu=x86-64-v2")
PLAIN = Target.parse("llvm -mcpu=x86-64")


def weight(row: BlockFormat, rows: int, blocks: int) -> Array:
    """Blocks of every level; scales that are numbers."""
    random = np.random.default_rng(rows + blocks)
    result = random.integers(0, 256, (rows, blocks, row.block_bytes), dtype=np.uint8)
    for real in (row.scale, row.offset):
        if real is not None:
            numbers = random.standard_normal((rows, blocks, 1)).astype("<f2")
            result[..., real.byte_offset : real.byte_offset + 2] = numbers.view(np.uint8)
    return result


def layer(
    given: Array, row: BlockFormat, relu: bool = False, how: str = "int8", rows: int | None = None
) -> IRModule:
    """A layer of so many rows, or of any number."""
    count = relay.SizeVar("n") if rows is None else rows
    depth = given.shape[1] * row.values_per_block
    x = relay.var("x", relay.TensorType((count, depth), "float32"))
    body = relay.nn.dense_blocks(x, relay.const(given), row.name, how)
    return IRModule.from_expr(relay.Function([x], relay.nn.relu(body) if relu else body))


@share(3)
@pytest.mark.parametrize("row", GGUF_BLOCK_FORMATS, ids=NAMES)
@pytest.mark.parametrize(("rows", "panel"), [(1, 4), (64, 16), (65, 64)])
def test_packing_is_lossless(row: BlockFormat, rows: int, panel: int) -> None:
    argument = weight(row, rows, 2)
    packed, of = pack_blocks(argument, row.name, panel), PackedBlock(row, panel)
    assert packed.shape == (-(-rows // panel), 2, of.block_bytes) and packed.dtype == np.uint8
    assert sorted(of.word_order) == list(range(of.num_words))
    result = unpack_blocks(packed, row.name, panel)
    assert result[:rows].tobytes() == row.decode(argument).tobytes()
    assert not result[rows:].any()


@pytest.mark.parametrize("row", GGUF_BLOCK_FORMATS, ids=NAMES)
def test_packed_weights_are_hardly_larger(row: BlockFormat) -> None:
    """Factors of six bits become bytes, and no more."""
    more = PackedBlock(row, 1).block_bytes - row.block_bytes
    assert more == {"q3_k": 4, "q4_k": 4, "q5_k": 4, "q2_k": 16}.get(row.name, 0)


@pytest.mark.parametrize(
    ("target", "last"),
    [
        (BYTES, "nn.contrib_dense_blocks_pack"),
        (NARROW, "nn.contrib_dense_blocks_pack"),
        (PLAIN, "nn.contrib_dense_pack"),
    ],
)
def test_quantised_layer_lowering_per_target(target: Target, last: str) -> None:
    row = BLOCK_FORMATS_BY_NAME["q4_0"]
    module = AlterOpLayout(target)(InferType()(layer(weight(row, 20, 2), row)))
    result = calls(InferType()(module))
    assert result[-1] == last and "nn.dense_blocks" not in result


@share(100, by=lambda how, **_: how)
@pytest.mark.parametrize("row", GGUF_BLOCK_FORMATS, ids=NAMES)
@pytest.mark.parametrize("rows", [0, 1, 4, 7, 33])
@pytest.mark.parametrize("units", [1, 64, 77])
@pytest.mark.parametrize("how", ["int8", "float32"])
def test_block_quantized_dense_matches_reference(
    row: BlockFormat, rows: int, units: int, how: str
) -> None:
    argument = weight(row, units, 512 // row.values_per_block)
    data = np.random.default_rng(rows).standard_normal((rows, 512)).astype("float32")
    plain = row.decode(argument).astype("float64")
    expected = np.maximum(data @ plain.T, 0)
    near = (np.abs(data) @ np.abs(plain).T).max(initial=0) * 1e-5
    most = np.abs(data.reshape(rows, 16, 32)).max(-1, initial=0)
    error = most @ np.abs(plain).reshape(units, -1, 32).sum(-1).T / 254
    known = rows if how == "float32" and rows else None
    for target in processors():
        made = ekiden.compile(layer(argument, row, relu=True, how=how, rows=known), target)
        actual = made(data).numpy()
        assert actual.shape == (rows, units)
        wrong = np.abs(actual - expected)
        assert (wrong <= near + (error if how == "int8" else 0)).all()


@share(6)
@pytest.mark.parametrize("row", GGUF_BLOCK_FORMATS, ids=NAMES)
@pytest.mark.parametrize("cpu", ["znver4", "x86-64-v3", "x86-64-v2", "neoverse-v1"])
def test_exact_int8_inputs_give_exact_results(row: BlockFormat, cpu: str) -> None:
    """Sums of products are those of whole numbers: every level against every byte, also where two
    products of bytes do not fit int16."""
    if cpu == "neoverse-v1":  # compiled, not run
        kernel_object(row, Target.parse(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}"))
        return
    target = Target.parse(f"llvm -mcpu={cpu}")
    if not target.serves(Target.host()):
        pytest.skip(f"this machine does not run code for {cpu}")
    random = np.random.default_rng(row.gguf_type)
    argument = weight(row, 40, 512 // row.values_per_block)
    data = random.integers(-127, 128, (3, 512)).astype("float32")
    data[:, ::32] = 127
    data[0], data[1, 1::2] = 127, -127
    result = ekiden.compile(layer(argument, row), target)(data).numpy()
    plain = row.decode(argument).astype("float64")
    near = (np.abs(data) @ np.abs(plain).T) * 2e-6
    assert (np.abs(result - data @ plain.T) <= near).all()


def kernel_object(row: BlockFormat, target: Target) -> None:
    panel = 4 * target.lanes("float32")
    data = placeholder((2, row.values_per_block), name="data")
    packed = placeholder((1, 1, PackedBlock(row, panel).block_bytes), "uint8", "weight")
    result = dense_blocks_pack(data, packed, row.name, panel, panel, "int8")
    compile_object([lower(schedule([data, packed], [result], target, "k"), target)], target)


def brought_near(rows: int, at: int) -> tuple[set[int], list[int], int]:
    """Which caches a product of so many rows brings weights near to; those places, from the place
    that it reads; and how many there are."""
    row, target = BLOCK_FORMATS_BY_NAME["q4_0"], Target.parse("llvm -mcpu=x86-64-v3")
    panel = 4 * target.lanes("float32")
    data = placeholder((rows, 4 * row.values_per_block), name="data")
    packed = placeholder((6, 4, PackedBlock(row, panel).block_bytes), "uint8", "weight")
    result = dense_blocks_pack(data, packed, row.name, 6 * panel, panel, "int8")
    func = lower(schedule([data, packed], [result], target, "k"), target)
    actual = [item for item in pre_order_stmts(func.body) if isinstance(item, Prefetch)]
    named = {v: const(at if v.name == "at" else 0) for item in actual
             for v in free_vars(item.indices[0])}  # fmt: skip
    places = [simplify(substitute(item.indices[0], named)) for item in actual]
    size = 6 * 4 * PackedBlock(row, panel).block_bytes
    return {item.locality for item in actual}, [int(str(p)) for p in places], size


def test_single_row_weights_are_prefetched_as_a_stream() -> None:
    """Some way ahead, a line of so many, to the second cache, also behind the last of them, where
    the weight begins that is used next; several tiles bring all of the panel that they read
    next."""
    caches, places, size = brought_near(1, 0)
    assert caches == {2}
    assert min(places) == STREAM_PREFETCH_BYTES
    assert all(b - a == STREAM_PREFETCH_STRIDE_BYTES for a, b in pairwise(sorted(places)))
    _, behind, _ = brought_near(1, size - 64)
    assert min(behind) == size - 64 + STREAM_PREFETCH_BYTES
    many = brought_near(40, 0)
    assert many[0] == {2}
    assert len(many[1]) > len(places)


def test_zero_blocks_give_zero() -> None:
    row = BLOCK_FORMATS_BY_NAME["q5_k"]
    result = ekiden.compile(layer(weight(row, 3, 2), row))(np.zeros((2, 512), "float32")).numpy()
    np.testing.assert_array_equal(result, np.zeros((2, 3), "float32"))


@pytest.mark.parametrize("row", GGUF_BLOCK_FORMATS, ids=NAMES)
def test_rows_are_decoded_bit_for_bit(row: BlockFormat) -> None:
    argument = weight(row, 9, 2)
    at = relay.var("at", relay.TensorType((relay.SizeVar("n"), 2), "int64"))
    body = relay.nn.take_blocks(relay.const(argument), at, row.name)
    run = ekiden.compile(IRModule.from_expr(relay.Function([at], body)))
    places = np.array([[0, 8], [-9, 3], [-1, 3]])
    assert run(places).numpy().tobytes() == row.decode(argument)[places].tobytes()
    with pytest.raises(IndexRangeError, match=r"nn.take_blocks: .* 9 "):
        run(np.array([[0, 9]]))


@alike(5)
@pytest.mark.parametrize("row", GGUF_BLOCK_FORMATS, ids=NAMES)
def test_tied_embedding_is_stored_once(row: BlockFormat) -> None:
    """Rows come out of the packed weight, bit for bit; of another weight, or one that is not
    packed, out of the weight itself."""
    argument, other = weight(row, 9, 2), weight(row, 9, 2)[::-1].copy()
    at = relay.var("at", relay.TensorType((relay.SizeVar("n"),), "int64"))

    def module(table: Array) -> IRModule:
        rows = relay.nn.take_blocks(relay.const(table), at, row.name)
        last = relay.nn.dense_blocks(rows, relay.const(argument), row.name)
        return InferType()(IRModule.from_expr(relay.Function([at], relay.Tuple([rows, last]))))

    places = np.array([0, 8, -9, 3, -1])
    for table, taken in ((argument, "nn.contrib_take_blocks_pack"), (other, "nn.take_blocks")):
        for target, name in ((BYTES, taken), (NARROW, taken), (PLAIN, "nn.take_blocks")):
            assert name in calls(InferType()(AlterOpLayout(target)(module(table))))
        exe = ekiden.compile(module(table))
        assert exe(places)[0].numpy().tobytes() == row.decode(table)[places].tobytes()
        with pytest.raises(IndexRangeError, match=r"nn.take_blocks: .* 9 "):
            exe(np.array([0, 9]))


def test_decisions_are_checked() -> None:
    row = BLOCK_FORMATS_BY_NAME["q4_0"]
    with (
        ekiden.transform.PassContext(
            config={"kernels.decisions": {"dense_blocks_pack": "panel=9"}}
        ),
        pytest.raises(CompileError, match="'dense_blocks_pack'"),
    ):
        ekiden.compile(layer(weight(row, 64, 2), row))


@pytest.mark.parametrize(
    ("shape", "dtype", "format", "message"),
    [
        ((2, 65), "float32", "q4_0", "the numbers of a row of 'data' and of 'weight'"),
        ((2, 64), "float64", "q4_0", "'data' must be float32, got float64"),
        ((2, 64), "float32", "q9", "format must be one of q4_0, .*, got 'q9'"),
        ((2, 64), "float32", "q5_0", "the bytes of a block of q5_0"),
    ],
)
def test_invalid_block_weights_are_refused(
    shape: tuple[int, ...], dtype: str, format: str, message: str
) -> None:
    x = relay.var("x", shape=shape, dtype=dtype)
    argument = relay.const(weight(BLOCK_FORMATS_BY_NAME["q4_0"], 4, 2))
    body = relay.nn.dense_blocks(x, argument, format)
    with pytest.raises(TypeInferenceError, match=message):
        InferType()(IRModule.from_expr(relay.Function([x], body)))
    body = relay.nn.dense_blocks(relay.var("y", shape=(2, 64)), argument, "q4_0", "int4")
    with pytest.raises(TypeInferenceError, match="activations must be int8 or float32, got 'int4'"):
        InferType()(IRModule.from_expr(relay.Function(list(relay.analysis.free_vars(body)), body)))
