"""Sums of products, transforms, random numbers and sparse matrices, against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import test_detection_operators
import test_elementwise_operators
import test_movement_operators
import test_network_operators

import ekiden
from ekiden import te, topi
from long_runs import share
from topi_cases import BACKENDS, Array, Case, case, check, every_backend, integers, normal

ROOT = Path(__file__).parents[2]


def products() -> Iterator[Case]:
    """Matrices, dots and Einstein's sums."""
    for a, b in (
        ((3, 7), (7, 5)),
        ((2, 3, 7), (7, 5)),
        ((2, 1, 3, 7), (4, 7, 5)),
        ((0, 7), (7, 5)),
    ):
        x, y = normal(*a), normal(*b)
        yield case("matmul", x, y, expected=np.matmul)
    x, y = normal(7, 3), normal(5, 7)
    yield case("matmul", x, y, transp_a=True, transp_b=True, expected=x.T @ y.T)
    small = integers(-9, 9, 3, 7, dtype="int8"), integers(-9, 9, 7, 2, dtype="int8")
    yield case("matmul", *small, expected=lambda a, b: (a.astype("int32") @ b).astype("int8"))
    x, y = normal(3, 4, 5), normal(4, 5, 6)
    yield case("tensordot", x, y, expected=np.tensordot)
    yield case(
        "tensordot",
        x,
        y,
        axes=([2, 1], [1, 0]),
        expected=lambda x, y: np.tensordot(x, y, ([2, 1], [1, 0])),
    )
    yield case("tensordot", normal(3), normal(4), axes=0, expected=np.multiply.outer)
    for text, shapes in (
        ("ij,jk->ik", ((3, 4), (4, 5))),
        ("ij,jk", ((3, 4), (4, 5))),
        ("ii->i", ((4, 4),)),
        ("ii", ((4, 4),)),
        ("ij->ji", ((3, 4),)),
        ("...ij,...jk->...ik", ((2, 3, 4), (1, 4, 5))),
        ("bi,ij,bj->b", ((2, 3), (3, 4), (2, 4))),
        ("i,i,i->", ((5,), (5,), (5,))),
        ("...a->...", ((2, 3, 4),)),
        ("b i , i o -> b o", ((2, 3), (3, 4))),
    ):
        arrays = [normal(*s) for s in shapes]
        yield case("einsum", *arrays, build=lambda *t, e=text: topi.einsum(e, *t),
                   expected=np.asarray(np.einsum(text, *arrays)))  # fmt: skip


def transforms() -> Iterator[Case]:
    """Fourier transforms."""
    re, im = normal(2, 12), normal(2, 12)
    for inverse in (False, True):
        actual = (np.fft.ifft if inverse else np.fft.fft)(re + 1j * im)
        expected = actual.real.astype("float32"), actual.imag.astype("float32")
        yield case("dft", re, im, inverse=inverse, expected=expected, tolerance=1e-4)
    signal = normal(2, 40)
    for normalized, onesided, length in ((False, True, 8), (True, False, 6)):
        window = np.hanning(length).astype("float32")
        wide = np.pad(window, (8 - length) // 2)
        frames = np.lib.stride_tricks.sliding_window_view(signal, 8, 1)[:, ::3] * wide
        actual = np.fft.fft(frames)[..., : 5 if onesided else 8] / (np.sqrt(8) if normalized else 1)
        parts = np.stack([actual.real, actual.imag], -1).swapaxes(1, 2).astype("float32")
        yield case(
            "stft",
            signal,
            window,
            symbolic=(40,),
            expected=parts,
            tolerance=1e-4,
            build=lambda x, w, n=normalized, o=onesided, s=length: topi.stft(x, 8, 3, s, w, n, o),
        )


MASK = 2**64 - 1


def threefry(key: list[int], counter: list[int]) -> list[int]:
    """Threefry-4x64-20 in Python's integers."""
    rotations = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
    parity = 0x1BD11BDAA9FC1A22
    for word in key:
        parity ^= word
    keys = [*key, parity]
    x = [(c + k) & MASK for c, k in zip(counter, key, strict=True)]
    for r in range(20):
        pairs = ((0, 1), (2, 3)) if r % 2 == 0 else ((0, 3), (2, 1))
        for (a, b), by in zip(pairs, rotations[r % 8], strict=True):
            x[a] = (x[a] + x[b]) & MASK
            x[b] = (((x[b] << by) | (x[b] >> (64 - by))) & MASK) ^ x[a]
        if r % 4 == 3:
            x = [(w + keys[(r // 4 + 1 + n) % 5]) & MASK for n, w in enumerate(x)]
            x[3] = (x[3] + r // 4 + 1) & MASK
    return x


def generator(*words: int) -> Array:
    """The state of a random generator."""
    return np.array([*words, *[0] * (10 - len(words))], "uint64")


def randoms() -> Iterator[Case]:
    """Random words, and numbers made of them."""
    for gen in (generator(), generator(1, 2, 3, 4, 5), generator(7, 0, 0, 0, MASK)):
        key, start = [int(w) for w in gen[:4]], [int(w) for w in gen[4:8]]
        words: list[int] = []
        for block in range(3):
            low = start[0] + block
            words += threefry(key, [low & MASK, (start[1] + (low > MASK)) & MASK, *start[2:]])
        new = gen.copy()
        with np.errstate(over="ignore"):
            new[4] += np.uint64(3)
        new[5] += np.uint64(start[0] + 3 > MASK)
        bits = np.array(words[:10], "uint64").reshape(2, 5)
        yield case(
            "random.threefry_generate", gen, out_shape=(2, 5), symbolic=False, expected=(new, bits)
        )
        halves = [
            np.array(threefry(key, [*start[:3], start[3] ^ (2**63 + side)]) + [0] * 6, "uint64")
            for side in (0, 1)
        ]
        yield case("random.threefry_split", gen, symbolic=False, expected=halves)
        unit = (bits >> np.uint64(41)).astype("float32") * np.float32(2**-23)
        yield case("random.uniform", gen, low=-1.0, high=2.0, out_shape=(2, 5), symbolic=False,
                   expected=(new, unit * 3 - 1))  # fmt: skip
        double = (bits >> np.uint64(12)).astype("float64") * 2.0**-52
        yield case(
            "random.uniform",
            gen,
            np.asarray(1.0),
            np.asarray(3.0),
            out_shape=(2, 5),
            out_dtype="float64",
            symbolic=False,
            expected=(new, double * 2 + 1),
        )
        wave = np.sqrt(-2 * np.log(1 - unit[0])) * np.cos(unit[1] * np.float32(2 * np.pi))
        yield case("random.normal", gen, mean=3.0, scale=2.0, out_shape=(5,), symbolic=False,
                   expected=(new, (wave * 2 + 3).astype("float32")), tolerance=1e-4)  # fmt: skip
    gen, weights = generator(3), np.array([[1, 0, 3], [0, 2, 0]], "float32")
    draws = (
        np.array(threefry([3, 0, 0, 0], [0] * 4) + threefry([3, 0, 0, 0], [1, 0, 0, 0]), "uint64")
        >> np.uint64(41)
    ).astype("float32") * 2.0**-23
    sums = weights.cumsum(1)
    result = (
        (sums[:, None] <= (draws.reshape(2, 4) * sums[:, -1:])[..., None])
        .sum(-1)
        .clip(0, 2)
        .astype("int32")
    )
    new = generator(3, 0, 0, 0, 2)
    yield case(
        "random.multinomial", gen, weights, num_samples=4, symbolic=False, expected=(new, result)
    )


def compressed(dense: Array) -> tuple[Array, Array, Array]:
    """A matrix in compressed rows."""
    rows, columns = np.nonzero(dense)
    starts = np.concatenate([[0], np.cumsum((dense != 0).sum(1))])
    return dense[rows, columns], columns.astype("int32"), starts.astype("int32")


def sparse() -> Iterator[Case]:
    """Matrices of few elements."""
    matrix = normal(5, 7) * integers(0, 2, 5, 7)
    matrix[2] = 0
    matrix = matrix.astype("float32")
    rows = compressed(matrix)
    x, bias = normal(7, 4), normal(5, 4)
    yield case("sparse.csrmm", *rows, x, symbolic=False, expected=matrix @ x,
               build=lambda d, i, p, b: topi.sparse.csrmm((d, i, p), b))  # fmt: skip
    yield case("sparse.csrmm", *rows, x, bias, symbolic=False, expected=matrix @ x + bias,
               build=lambda d, i, p, b, c: topi.sparse.csrmm((d, i, p), b, c))  # fmt: skip
    yield case("sparse.csrmv", *rows, x[:, :1], symbolic=False, expected=matrix @ x[:, :1],
               build=lambda d, i, p, b: topi.sparse.csrmv((d, i, p), b))  # fmt: skip
    left = normal(3, 7)
    yield case("sparse.sparse_dense", left, *rows, symbolic=(3,), expected=left @ matrix.T)
    yield case(
        "sparse.sparse_dense",
        left,
        *rows,
        sparse_lhs=True,
        symbolic=False,
        expected=matrix @ left.T,
    )
    blocks = np.zeros((4, 9), "float32")
    data = normal(3, 2, 3)
    for value, (r, c) in zip(data, ((0, 1), (0, 2), (1, 0)), strict=True):
        blocks[2 * r : 2 * r + 2, 3 * c : 3 * c + 3] = value
    places, starts = np.array([1, 2, 0], "int32"), np.array([0, 2, 3], "int32")
    wide = normal(2, 9)
    yield case(
        "sparse.sparse_dense", wide, data, places, starts, symbolic=False, expected=wide @ blocks.T
    )
    square = matrix[:, :5].copy()
    yield case(
        "sparse.sparse_transpose",
        *compressed(square),
        symbolic=False,
        expected=compressed(square.T.copy()),
    )
    yield case(
        "sparse.sparse_add", normal(5, 7), *rows, symbolic=False, expected=lambda d, *_: d + matrix
    )
    at = np.stack(np.nonzero(matrix), 1)
    flat = np.ravel_multi_index(tuple(at.T), (5, 7))
    again = np.stack(np.unravel_index(flat, (7, 1, 5)), 1)
    yield case("sparse.sparse_reshape", at, prev_shape=(5, 7), new_shape=(7, 1, -1), symbolic=False,
               expected=(again, np.array([7, 1, 5])))  # fmt: skip
    yield case("sparse.sparse_reshape", at, np.array([5, 7]), new_shape=(7, 1, -1), symbolic=False,
               expected=(again, np.array([7, 1, 5])))  # fmt: skip
    coordinates, values = np.array([[0, 3], [2, 0], [2, 4]]), np.array([1, 2, 3], "float32")
    filled = np.full((7, 2), -1)
    filled[:5] = [[0, 3], [1, 0], [2, 0], [2, 4], [3, 0]]
    full = np.array([1, 9, 2, 3, 9, 0, 0], "float32")
    yield case(
        "sparse.sparse_fill_empty_rows",
        coordinates,
        values,
        np.asarray(9, "float32"),
        symbolic=False,
        build=lambda i, v, d: topi.sparse.sparse_fill_empty_rows(i, v, (4, 5), d),
        expected=(filled, full, np.array([False, True, False, True]), np.array([5], "int32")),
    )


def test_empty_rows_are_filled_in_one_walk() -> None:
    """Where all elements were looked at for each row, this took 10**10 steps."""
    rows = 100_000
    places = np.stack([2 * np.arange(rows), np.arange(rows) % 4], 1)
    values, fill = np.ones(rows, "float32"), np.array(9, "float32")
    inputs = [te.placeholder(a.shape, str(a.dtype), "x") for a in (places, values, fill)]
    result = topi.sparse.sparse_fill_empty_rows(inputs[0], inputs[1], (2 * rows, 5), inputs[2])
    outs = [np.zeros([d.value for d in t.shape], t.dtype) for t in result]
    module = ekiden.build(te.create_prim_func([*inputs, *result], "fill"))
    module["fill"](places, values, fill, *outs)
    assert np.array_equal(outs[0][: 2 * rows, 0], np.arange(2 * rows))
    assert np.array_equal(outs[1][: 2 * rows], np.tile(np.array([1, 9], "float32"), rows))
    assert np.array_equal(outs[2], np.tile([False, True], rows)) and outs[3] == 2 * rows


def walk(data: Array, root: int, nodes: tuple[Array, ...]) -> list[int]:
    """The leaves of one tree."""
    features, limits, children, missing = nodes
    result = []
    for row in data:
        at = root
        while children[at, 0] != at:
            value = row[features[at]]
            below = value <= limits[at] or (np.isnan(value) and missing[at])
            at = children[at, 0 if below else 1]
        result.append(at)
    return result


def chained(trees: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Trees of paths of 1 to 19 nodes, a leaf beside each: their roots and nodes."""
    rng = np.random.default_rng(trees)
    roots, children = [], [(0, 0)]
    for length in range(1, trees + 1):
        roots.append(len(children))
        for n in range(length):
            at = len(children)
            children += [(at + 1, at + 2) if n + 1 < length else (at + 1, at + 1), (at + 1, at + 1)]
    count = len(children)
    nodes = (
        rng.integers(0, 3, count).astype("int32"),
        (rng.normal(size=count) - 0.7).astype("float32"),  # mostly on along the path
        np.array(children, "int32"),
        rng.integers(0, 2, count).astype("int32"),
    )
    return np.array(roots, "int32"), nodes


def classical() -> Iterator[Case]:
    """Determinants, orders of rows, trees, classes from pairs."""
    for shape in ((3, 3), (2, 4, 4), (5, 1, 1)):
        yield case(
            "linalg.det", normal(*shape), symbolic=False, expected=np.linalg.det, tolerance=1e-4
        )
    rows = integers(0, 3, 13, 2)
    ranks = np.array([sum(tuple(b) < tuple(a) for b in rows) for a in rows], "int64")
    yield case("row_ranks", rows, symbolic=(13,), expected=ranks)
    nodes = (
        np.array([0, 1, 0, 2, 0, 0, 0], "int32"),
        np.array([0.1, -0.2, 0, 0.5, 0, 0, 0], "float32"),
        np.array([[1, 2], [4, 3], [2, 2], [5, 6], [4, 4], [5, 5], [6, 6]], "int32"),
        np.array([1, 0, 0, 1, 0, 0, 0], "int32"),
    )
    data = normal(9, 3)
    data[2, 0] = data[4, 1] = np.nan
    leaves = np.array([walk(data, 0, nodes), walk(data, 1, nodes)], "int32").T
    yield case("ml.tree_leaves", data, np.array([0, 1], "int32"), *nodes, symbolic=False,
               build=lambda x, r, *n: topi.ml.tree_leaves(x, r, n, 3), expected=leaves)  # fmt: skip
    for trees, rows in ((1, 1), (19, 15), (8, 16), (19, 37), (0, 3), (3, 0)):  # groups, and less
        roots, chains = chained(trees)
        data = normal(rows, 3)
        leaves = np.array([walk(data, int(r), chains) for r in roots], "int32")
        yield case("ml.tree_leaves", data, roots, *chains, symbolic=(rows,),
                   build=lambda x, r, *n: topi.ml.tree_leaves(x, r, n, 19),
                   expected=leaves.reshape(trees, rows).T)  # fmt: skip
    own = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    pairs = own[:, :, None] / (own[:, :, None] + own[:, None, :])
    yield case("ml.couple", pairs.astype("float32"), symbolic=False, tolerance=5e-3,
               expected=own.astype("float32"))  # fmt: skip


CASES: dict[str, list[Case]] = {
    f.__name__: list(f()) for f in (products, transforms, randoms, sparse, classical)
}

ELSEWHERE = {
    "nn.paged_attention": "tests/relay/op/nn_operator_cases.py",
    "nn.write_pages": "tests/relay/op/nn_operator_cases.py",
    "sampling.BUCKETS": "tests/llm/test_generate.py",
    "sampling.SETTINGS": "tests/llm/test_generate.py",
    "sampling.constrain_logits": "tests/llm/test_generate.py",
    "sampling.draw_token": "tests/llm/test_generate.py",
    "sparse.sparse_conv2d": "tests/relay/op/test_sparse.py",
    "nn.bitpack": "tests/relay/op/test_bitserial.py",
    **{f"linalg.{name}": "tests/relay/op/inventory_cases.py" for name in topi.linalg.__all__},
    "nn.winograd_conv2d": "tests/kernels/test_winograd.py",
    "nn.winograd_weight": "tests/kernels/test_winograd.py",
    "nn.recurrent": "tests/backend/test_recurrent_layers.py",
    "nn.pack_recurrent": "tests/backend/test_recurrent_layers.py",
    "nn.attention": "tests/backend/test_attention.py",
    "nn.dense_nibbles": "tests/relay/transform/test_int4_weights.py",
    "nn.dense_nibbles_pack": "tests/relay/transform/test_int4_weights.py",
    "nn.dense_blocks": "tests/relay/transform/test_block_quantization.py",
    "nn.dense_blocks_pack": "tests/relay/transform/test_block_quantization.py",
    "nn.take_blocks": "tests/relay/transform/test_block_quantization.py",
    "nn.take_blocks_pack": "tests/relay/transform/test_block_quantization.py",
    **{f"text.{name}": "tests/topi/test_text_kernels.py" for name in topi.text.__all__},
}
"""Operators whose kernels have test files of their own."""


@share(3)
@every_backend
@pytest.mark.parametrize("family", CASES)
def test_algebra_operators_match_numpy(family: str, backend: str) -> None:
    check(CASES[family], backend)


def test_every_operator_has_a_case() -> None:
    """Nothing is exported that nothing checks."""
    modules = (
        test_elementwise_operators, test_movement_operators, test_network_operators,
        test_detection_operators,
    )  # fmt: skip
    families = [CASES, *(m.CASES for m in modules)]
    named = {c.name for f in families for c in itertools.chain.from_iterable(f.values())}
    assert topi.operators().keys() - ELSEWHERE <= named
    assert all((ROOT / path).exists() for path in ELSEWHERE.values())


def test_known_answer_of_threefry() -> None:
    """From the reference implementation's test vectors (Random123: threefry4x64, 20 rounds)."""
    words = np.empty(4, "uint64")
    zero = generator()
    item = case(
        "random.threefry_generate", zero, out_shape=(4,), symbolic=False, expected=(zero, words)
    )
    BACKENDS["llvm"]([item])[0](zero, np.empty_like(zero), words)
    assert [f"{int(w):016x}" for w in words] == [
        "09218ebde6c85537", "55941f5266d86105", "4bd25e16282434dc", "ee29ec846bd2e40b",
    ]  # fmt: skip


def test_random_numbers_are_spread() -> None:
    gen, out = generator(11), np.empty(20000, "float32")
    for name, mean, deviation in (("uniform", 0.5, 12**-0.5), ("normal", 0.0, 1.0)):
        item = case(
            f"random.{name}",
            gen,
            build=lambda g, n=name: topi.operators()[f"random.{n}"](g, 0.0, 1.0, (20000,)),
            symbolic=False,
            expected=(gen, out),
        )
        BACKENDS["llvm"]([item])[0](gen, np.empty_like(gen), out)
        assert abs(out.mean() - mean) < 0.02
        assert abs(out.std() - deviation) < 0.02


def test_algebra_operators_refuse_invalid_arguments() -> None:
    a, b = te.placeholder((3, 4)), te.placeholder((5, 6))
    for make, message in (
        (lambda: topi.matmul(a, b), "matmul: 4 columns and 5 rows do not match"),
        (lambda: topi.tensordot(a, b, ([0], [0, 1])), "expected as many axes on both sides"),
        (lambda: topi.einsum("ij,jk->ik", a), "names 2 operands, got 1"),
        (lambda: topi.einsum("ijk->i", a), "'ijk' does not name the 2 axes of an operand"),
        (lambda: topi.einsum("ij,jk->ik", a, b), "axis 'j' has extents 4 and 5"),
        (lambda: topi.einsum("ij->ik", a), "no operand has the axis 'k' of the result"),
        (lambda: topi.random.threefry_split(a), "a generator is 10 words of uint64, got float32"),
        (
            lambda: topi.random.uniform(te.placeholder((10,), "uint64"), 0, 1, (3,), "int8"),
            "out_dtype must be one of",
        ),
        (
            lambda: topi.random.multinomial(
                te.placeholder((10,), "uint64"), te.placeholder((3,), "int8"), 2
            ),
            "must be floating point",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
