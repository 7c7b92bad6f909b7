"""Attention over caches of few bits, on each class of processor: products of bytes are exact at the
ends of their range, by whatever instruction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.codegen.llvm import compile_object
from ekiden.ir.dtype import itemsize
from ekiden.ir.intrinsic import INTRINSICS
from ekiden.ir.prim import const
from ekiden.kernels import schedule
from ekiden.kernels.attention import paged_attention_family
from ekiden.kernels.attention.kv_layout import CACHE_FORMATS, CacheFormat, CachePlane
from ekiden.kernels.attention.paged_attention import (
    PREFETCHED_LINES_PER_VECTOR,
    PagedAttentionConfig,
)
from ekiden.kernels.attention.paged_attention_family import create_paged_attention
from ekiden.target import Target
from ekiden.te import placeholder
from ekiden.tir.expr import Buffer
from ekiden.tir.transform import lower
from ekiden.topi.nn import paged_attention
from long_runs import alike
from processor import processors

Array = np.ndarray
HEADS, GROUPS, DEPTH, PAGE, PAGES, TOKENS = 2, 1, 40, 8, 3, 5


def filled(row: CacheFormat, rng: np.random.Generator, size: int) -> tuple[CachePlane, Array]:
    """A cache of one block whose numbers are at the ends of a format, or near, and its planes, in
    pages of so many tokens."""
    of = CachePlane(size, DEPTH, row.dtype)
    planes = np.zeros((2, GROUPS, PAGES, of.size), row.dtype)
    ends = np.array([row.min_value, row.max_value, row.min_value, row.max_value, 1, 0], np.float32)
    for values in (0, 1):
        for page in range(PAGES):
            for token in range(size):
                data = rng.choice(ends, (GROUPS, DEPTH)) * np.float32(2.0**-9)
                data[:, ::8] = row.min_value * np.float32(2.0**-9)  # every group has this scale
                if token % 3 == 0:
                    data = np.where(data == 0, data, np.float32(row.min_value * 2.0**-9))
                of.write_token(planes[values, :, page], token, data, values)
    return of, planes


def expected(of: CachePlane, planes: Array, tokens: Array, positions: Array) -> Array:
    """In float64."""
    keys, values = (
        of.dequantize(planes[n], n).astype("float64").reshape(GROUPS, -1, DEPTH) for n in (0, 1)
    )
    result = np.zeros((TOKENS, HEADS, DEPTH))
    for t, last in enumerate(positions):
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            seen = keys[group, : last + 1] @ tokens[t, head] / np.sqrt(DEPTH)
            shares = np.exp(seen - seen.max())
            result[t, head] = shares @ values[group, : last + 1] / shares.sum()
    return result


@alike(4)
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("target", processors())
def test_int8_cache_extremes_are_exact(name: str, target: str) -> None:
    check_at_ends(name, [target])


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_caches_are_exact_without_dot_products(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """RISC-V, WebAssembly and plain C multiply unpacked numbers as floats."""
    monkeypatch.setattr(paged_attention_family, "word_dot_instructions", lambda target: ())
    # The key of a cached kernel does not know of the patch.
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path))
    check_at_ends(name, ["llvm -mcpu=x86-64-v3"])


def check_at_ends(name: str, targets: Sequence[str]) -> None:
    """Against float64, of queries that lose nothing as bytes. A page of halves of bytes has more
    tokens than sums in int16 hold products of."""
    rng = np.random.default_rng(1)
    row, page = CACHE_FORMATS[name], {"int8": PAGE, "int4": 64}[name]
    of, planes = filled(row, rng, page)
    cache = planes.reshape(1, 1, 2, GROUPS, PAGES * of.size)
    # whole numbers of which each group has 127: rounding them to bytes loses nothing
    tokens = rng.choice([-127.0, 127.0, 126.0, 3.0], (TOKENS, HEADS + 2 * GROUPS, DEPTH))
    tokens[..., ::8] = 127
    tokens = (tokens * 2.0**-6).astype("float32")
    last = page * PAGES - 1
    places = [0], [[*range(PAGES)]], [0] * TOKENS, [0, page - 2, 2 * page - 1, last - 3, last]
    ints = [np.array(item, "int32") for item in places]
    expected_value = expected(of, planes, tokens, ints[-1])
    names = "layer", "tables", "sequences", "positions"
    params = [relay.var("tokens", relay.TensorType(tokens.shape)),
              relay.var("cache", relay.TensorType(cache.shape, row.dtype))]  # fmt: skip
    params += [relay.var(n, relay.TensorType(item.shape, "int32"))
               for n, item in zip(names, ints, strict=True)]  # fmt: skip
    body = relay.op.nn.contrib_paged_attention(*params, page=page)
    module = relay.IRModule.from_expr(relay.Function(params, body))
    largest = np.abs(of.dequantize(planes[1], 1)).max()
    steps = {"int8": (1 << 15) - 1, "int4": 127}[name]
    most = (np.sqrt(page * PAGES) / steps + 1e-4) * largest  # as many roundings, either way
    for target in targets:
        actual = ekiden.compile(module, target)(tokens, cache, *ints).numpy()
        assert np.abs(actual - expected_value).max() <= most, target


@alike(2)
@pytest.mark.parametrize(
    ("cpu", "name", "way"),
    [
        ("x86-64", "int4", "madd_s16"),
        ("nehalem", "int4", "sum2_u8s8"),
        ("sandybridge", "int8", "madd_s16"),
        ("skylake-avx512", "int8", "madd_s16"),
        ("znver4", "int4", "dot4_u8s8"),
    ],
)
def test_paged_attention_compiles_for_every_processor_class(cpu: str, name: str, way: str) -> None:
    """LLVM ends the process on an instruction that is not there; products of bytes are one where
    there are any."""
    target, row = Target(f"llvm -mcpu={cpu}"), CACHE_FORMATS[name]
    of = CachePlane(PAGE, DEPTH, row.dtype)
    argument = placeholder((1, HEADS + 2 * GROUPS, DEPTH), name="tokens")
    cache = placeholder((1, 1, 2, GROUPS, PAGES * of.size), row.dtype, "cache")
    shapes = {"layer": (1,), "tables": (1, PAGES), "sequences": (1,), "positions": (1,)}
    places = [placeholder(shape, "int32", n) for n, shape in shapes.items()]
    result = paged_attention(argument, cache, places, PagedAttentionConfig(PAGE))
    func = lower(schedule([argument, cache, *places], [result], target, "kernel"), target)
    assert compile_object([func], target)
    assert way in str(func)


@pytest.mark.quick
def test_int8_dot_references_give_expected_values() -> None:
    words = np.array([-128, 127, 5, -1], np.int8), np.array([127, -127, 3, -2], np.int8)
    a, b = (w.view(np.int32) for w in words)
    assert INTRINSICS["madd_s8s8"].reference(7, a, b)[0] == 7 - 128 * 127 - 127 * 127 + 15 + 2
    result = INTRINSICS["sum2_u8s8"].reference(np.array([1, 2], np.int16), a & 0x7F7F7F7F, b)
    np.testing.assert_array_equal(result, [1 - 127 * 127, 2 + 15 - 254])


LONG = 84
"""Pages of three chunks and a piece of a fourth, at 8 tokens a page."""


def long_text(name: str, window: int) -> tuple[relay.IRModule, list[Array]]:
    """Attention of any number of tokens over a text of random numbers, and its arguments: tokens of
    one text, of another, and none."""
    rng, of = np.random.default_rng(2), CachePlane(PAGE, 16, CACHE_FORMATS[name].dtype)
    planes = np.zeros((2, GROUPS, LONG, of.size), of.dtype)
    for values in (0, 1):
        for page in range(LONG):
            for token in range(PAGE):
                data = rng.standard_normal((GROUPS, 16), np.float32)
                of.write_token(planes[values, :, page], token, data, values)
    tokens = rng.standard_normal((9, HEADS + 2 * GROUPS, 16), np.float32)
    tables = np.stack([rng.permutation(LONG), rng.permutation(LONG)])
    places = [0], tables, [0] * 7 + [1, 1], [*range(508, 514), -1, 671, 3]
    arguments = [
        tokens,
        planes.reshape(1, 1, 2, GROUPS, -1),
        *(np.array(p, "int32") for p in places),
    ]
    n, shapes = relay.SizeVar("n", "int64"), [array.shape for array in arguments]
    for at in (0, 4, 5):
        shapes[at] = (n, *shapes[at][1:])
    params = [relay.var(f"x{i}", relay.TensorType(shape, str(array.dtype)))
              for i, (shape, array) in enumerate(zip(shapes, arguments, strict=True))]  # fmt: skip
    body = relay.op.nn.contrib_paged_attention(*params, page=PAGE, window=window)
    return relay.IRModule.from_expr(relay.Function(params, body)), arguments


@pytest.mark.parametrize(("name", "window"), [("float16", 0), ("int8", 300)])
def test_token_result_is_independent_of_threads_and_batch(name: str, window: int) -> None:
    """Chunks of a long text are shared where tokens are few, and merged as one thread does it."""
    module, (tokens, *cache, sequences, positions) = long_text(name, window)
    exe = ekiden.compile(module)

    def run(some: Array, threads: int) -> Array:
        exe.num_threads = threads
        return exe(tokens[some], *cache, sequences[some], positions[some]).numpy()

    every = np.arange(len(tokens))
    alone = np.concatenate([run(every[n : n + 1], 1) for n in every])
    for threads in (2, 3):
        shared = np.concatenate([run(every[n : n + 1], threads) for n in every])
        np.testing.assert_array_equal(shared.view("int32"), alone.view("int32"))
    for some in (every, every[::-1], np.tile(every, 9), every[5:]):
        np.testing.assert_array_equal(run(some, 2), alone[some])
    expected_value = (
        relay.create_executor("debug", module)
        .evaluate()(tokens, *cache, sequences, positions)
        .numpy()
    )
    np.testing.assert_allclose(alone, expected_value, atol=2e-2 if name == "int8" else 1e-5)


def test_int8_attention_on_avx1() -> None:
    """Products of bytes are instructions of 128 bits there."""
    target = Target("llvm -mcpu=sandybridge")
    if not target.serves(Target.host()):
        pytest.skip("this machine does not run code for sandybridge")
    check_at_ends("int8", ["llvm -mcpu=sandybridge"])


@pytest.mark.parametrize("name", [*CACHE_FORMATS])
def test_softmax_prefetches_no_more_lines_than_values(name: str) -> None:
    row, size = CACHE_FORMATS[name], 64
    of = CachePlane(size, 64, row.dtype)
    shapes = ((1, 15, 64), (1, 1, 2, 3, 4 * of.size), (1,), (1, 4), (1,), (1,))
    kinds = "float32", row.dtype, "int32", "int32", "int32", "int32"
    inputs = [Buffer(f"p{n}", tuple(map(const, shape)), kind)
              for n, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))]  # fmt: skip
    output = Buffer("out", tuple(map(const, (1, 9, 64))))
    for lanes in (4, 8, 16):
        kernel = create_paged_attention(PagedAttentionConfig(size), inputs, output, lanes)
        line = 64 // itemsize(row.dtype)
        for rows in (1, 3, 6):
            late = kernel.lines_prefetched_in_softmax(rows)
            assert 0 < late <= -(-of.size // line)
            assert late <= PREFETCHED_LINES_PER_VECTOR * rows * size // lanes
