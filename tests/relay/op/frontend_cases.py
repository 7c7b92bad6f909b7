"""Sample calls of the operators that frontends and passes make: on quantised tensors, texts,
sequences and trees, and those of parts of tensors. The fuzzer varies them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from operator_cases import Case, case, integers, normal

import ekiden.relay.op as op
from ekiden.ir.op import Array
from ekiden.ir.prim import IntImm
from ekiden.relay.expr import Expr, const
from ekiden.relay.qnn import op as qnn
from ekiden.runtime.string_tensors import encode_strings, sort_strings

UNARY = ("tanh", "exp", "sqrt", "rsqrt", "erf", "sigmoid", "log", "abs", "hardswish")
LONGEST_TEXT = 40
"""Parts that a text has room for: more than any text of the fuzzer has bytes."""
LETTERS = ("a", "B", " ", ",", "\u00e9", "\u00df", "1", "")
"""What texts are made of; the last one ends a text."""


def scale(*values: float) -> Expr:
    """Scales as a constant: a number, or a vector of several."""
    return const(np.float32(values[0]) if len(values) == 1 else np.array(values, np.float32))


def point(*values: int) -> Expr:
    """Zero points as a constant, in the same way."""
    return const(np.int32(values[0]) if len(values) == 1 else np.array(values, np.int32))


ONE_SIDE = scale(0.03), point(5), scale(0.05), point(1)
TWO_SIDES = scale(0.1), point(3), scale(0.03), point(-2), scale(0.2), point(5)


def levels(dtype: str, *shape: int) -> Array:
    """Any numbers of a dtype."""
    info = np.iinfo(dtype)
    return integers(int(info.min), int(info.max) + 1, *shape, dtype=dtype)


def rescaling() -> Iterator[Case]:
    """Quantisation and back, requantisation, with scales that are constants and that are data."""
    three = scale(0.01, 0.02, 0.05), point(-3, 0, 7)
    for dtype in ("int8", "uint8", "int16", "uint16", "int32"):
        x = normal(2, 3, 4) * 20
        yield case(lambda x, d=dtype: qnn.quantize(x, scale(0.1), point(1), out_dtype=d), x)
        yield case(lambda x, d=dtype: qnn.quantize(x, *three, 1, d), x)
        yield case(lambda x: qnn.dequantize(x, scale(0.1), point(3)), levels(dtype, 4, 5))
        yield case(lambda x: qnn.dequantize(x, *three, 0, "float16"), levels(dtype, 3, 5))
    for dtype in ("disable", "int8", "uint8", "int32"):
        x = normal(2, 3) * 20
        yield case(lambda x, d=dtype: qnn.simulated_quantize(x, *three, out_dtype=d), x)
        yield case(lambda x, d=dtype: qnn.simulated_dequantize(x, *three, in_dtype=d), x)
    its = np.float32(0.1), np.int32(-4)
    yield case(lambda x, s, z: qnn.quantize(x, s, z), normal(3, 4), *map(np.asarray, its))
    yield case(lambda x, s, z: qnn.dequantize(x, s, z), levels("int8", 7), *map(np.asarray, its))
    for dtype, to in (("int8", "uint8"), ("uint8", "int8"), ("int8", "int32")):
        for rounding in ("UPWARD", "TONEAREST"):
            for compute in ("int64", "float32", "float64"):
                options = {"rounding": rounding, "compute_dtype": compute, "out_dtype": to}
                yield case(
                    lambda x, options=options: qnn.requantize(
                        x, *three, scale(0.7), point(-9), 1, **options
                    ),
                    levels(dtype, 2, 3, 4),
                )


def quantised() -> Iterator[Case]:
    """The other operators of the dialect."""
    for dtype in ("int8", "uint8"):
        x, y = levels(dtype, 4, 1, 3), levels(dtype, 5, 3)
        for name in ("add", "subtract", "mul"):
            yield case(lambda a, b, n=name: getattr(qnn, n)(a, b, *TWO_SIDES), x, y)
        for name in UNARY:
            yield case(lambda x, n=name: getattr(qnn, n)(x, *ONE_SIDE), levels(dtype, 6, 7))
        yield case(lambda x: qnn.leaky_relu(x, 0.1, *ONE_SIDE), levels(dtype, 6, 7))
        its = scale(0.2), point(4), scale(1 / 256), point(-128 if dtype == "int8" else 0)
        yield case(lambda x, its=its: qnn.softmax(x, *its), levels(dtype, 3, 10))
        products = point(3), point(-7), scale(0.1), scale(0.2)
        kernel = const(levels("int8", 9, 33))
        yield case(
            lambda x, k=kernel, p=products: qnn.dense(x, k, *p, 9), levels(dtype, 5, 33),
            symbolic=(5,),
        )  # fmt: skip
        yield case(
            lambda x, w, p=products: qnn.dense(x, w, *p, None),
            levels(dtype, 5, 33), levels("int8", 8, 33),
        )  # fmt: skip
        yield case(
            lambda x, y, p=products: qnn.batch_matmul(x, y, *p),
            levels(dtype, 3, 4, 9), levels("int8", 3, 5, 9),
        )  # fmt: skip
        filters = const(levels("int8", 8, 4, 3, 2))
        yield case(
            lambda x, k=filters, p=products: qnn.conv2d(
                x, k, *p, (3, 2), 8, (2, 1), (1, 0, 1, 1), (1, 1), 1
            ),
            levels(dtype, 2, 4, 7, 6), symbolic=(2, 7, 6),
        )  # fmt: skip
        mirrored = const(levels("int8", 3, 2, 3, 3))
        yield case(
            lambda x, k=mirrored, p=products: qnn.conv2d_transpose(x, k, *p, (2, 2), (1, 1)),
            levels(dtype, 1, 3, 4, 5), symbolic=False,
        )  # fmt: skip
        scales = [scale(0.1), scale(0.3)], [point(3), point(0)]
        yield case(
            lambda a, b, s=scales: qnn.concatenate([a, b], *s, scale(0.1), point(3), 1),
            levels(dtype, 2, 3), levels(dtype, 2, 4),
        )  # fmt: skip
        yield case(
            lambda x: qnn.avg_pool2d(x, *ONE_SIDE, (3, 2), (2, 1), (1, 1), (1, 1)),
            levels(dtype, 1, 5, 6, 3),
        )


def words(count: int, width: int) -> Array:
    """Random bytes, of which `as_texts` makes texts."""
    return integers(0, 256, count, width, dtype="uint8")


def as_texts(data: Array) -> Array:
    """Texts in UTF-8 of the same shape, padded, by what stands in bytes."""
    width = data.shape[-1]
    if not data.size:
        return data
    result = []
    for row in data.reshape(-1, width):
        text = ""
        for byte in row:
            letter = LETTERS[int(byte) % len(LETTERS)]
            if not letter or len((text + letter).encode()) > width:
                break
            text += letter
        result.append(text)
    return encode_strings(result, width).reshape(data.shape)


def texts() -> Iterator[Case]:
    """Joining, finding, matching, changing and cutting."""
    keys = const(encode_strings(sort_strings(["a", "aB", "B", "1", "a a"])))
    moves = const(np.array([[1, 0], [1, 2], [2, 2]], np.int32))  # a run of "a", then something
    kinds = const(np.array([b != ord("a") for b in range(256)], np.int32))
    accepts = const(np.array([False, True, True]))
    changed = [("a", "A"), ("B", "b"), ("\u00df", "SS"), ("\u00e9", "\u00c9")]
    changed.sort(key=lambda pair: ord(pair[0]))
    table = (
        np.array([ord(old) for old, _ in changed], np.int32),
        np.array([len(new.encode()) for _, new in changed], np.int32),
        encode_strings([new for _, new in changed]),
    )
    slots = const(np.zeros(LONGEST_TEXT, np.int64))
    yield case(op.text.concat, words(5, 4), words(5, 7))
    yield case(lambda t: op.text.find(t, keys), words(5, 4), symbolic=(5,))
    yield case(lambda t: op.text.match(t, moves, kinds, accepts), words(5, 4))
    yield case(lambda t: op.text.change_case(t, *map(const, table)), words(5, 4), symbolic=(5,))
    numbers = encode_strings(["1", "-25", "300", "+7", "18446744073709551615"])
    floats = encode_strings(["1.25e3", "-0.5", ".25", "inf", "-nan", "12345678901234567890.5"])
    yield case(op.text.whole_number, numbers)
    yield case(op.text.number_parts, floats)
    parts = (np.array([1, -1, 1, 2, -2, 3]), np.array([125, 10, 0, 0, 0, 0], np.uint64),
             np.array([-2, 9, 0, 0, 0, 0]))  # fmt: skip
    for precision in (0, 8):
        yield case(lambda *t, p=precision: op.text.written(*t, precision=p), *parts)
    for delimiter, most in (("", -1), (",", -1), ("", 1), (",", 2), (" a", -1)):
        yield case(lambda t, d=delimiter, m=most: op.text.count_parts(t, d, m), words(5, 9))
        yield case(lambda t, d=delimiter, m=most: op.text.split(t, slots, d, m), words(5, 9))


def listed(*parts: Expr) -> Expr:
    """A sequence of tensors."""
    result: Expr = op.sequence.empty()
    for part in parts:
        result = op.sequence.append(result, part)
    return result


def sequences() -> Iterator[Case]:
    """Operators on lists of tensors, at positions that are data."""
    x, y, z = normal(3, 2), normal(3, 2), normal(3, 2)
    at, position = op.sequence, np.asarray(1)
    dims, like = const(np.array([3, 2])), const(np.float32(0))
    yield case(lambda *p: at.length(listed(*p)), x, y)
    yield case(lambda a, b, i: at.at(listed(a, b), i), x, y, position)
    yield case(lambda a, b, c, i: at.insert(listed(a, b), c, i), x, y, z, position)
    yield case(lambda a, b, i: at.erase(listed(a, b), i), x, y, position)
    for reverse in (False, True):
        yield case(lambda *p, r=reverse: at.stack(listed(*p), dims, like, None, r), x, y, z)
    for axis in (0, 1, -1):
        yield case(lambda *p, a=axis: at.concat(listed(*p), a), x, y, z)
    yield case(lambda x, n: at.split(x, n, 0), normal(5, 2), np.array([2, 3]))
    yield case(lambda x, n: at.split(x, n, 1, False), normal(5, 3), np.array([1, 1, 1]))


def trees() -> Iterator[Case]:
    """Walks through trees, probabilities of pairs."""
    nodes = 7
    children = integers(0, nodes, nodes, 2, dtype="int32")
    yield case(
        lambda x, *rest: op.ml.tree_leaves(x, *rest, 3), normal(5, 4), np.zeros(2, "int32"),
        integers(0, 4, nodes, dtype="int32"), normal(nodes), children,
        integers(0, 2, nodes, dtype="int32"), symbolic=(5,),
    )  # fmt: skip
    yield case(op.ml.couple, np.abs(normal(5, 3, 3)), symbolic=(5,))


def parts() -> Iterator[Case]:
    """What passes make: the first elements of a tensor, a tensor as the first of another's; sizes
    as dimensions, and a product of numbers of four bits as it is packed."""
    yield case(lambda x: op.vm.prefix(x, _dims(2, 3)), normal(4, 5))
    yield case(lambda x: op.vm.part(x, _dims(4, 9)), normal(4, 5), symbolic=False)
    yield case(op.annotation.stop_fusion, normal(4, 5))
    yield case(op.extents, np.array([3, 0, 2]), symbolic=False)
    size = np.array([5, 3])
    for method in ("nearest_neighbor", "linear", "cubic"):
        yield case(
            lambda x, s, m=method: op.image.resize2d(x, s, method=m), normal(1, 2, 4, 5), size,
            symbolic=False,
        )  # fmt: skip
    for method, mode in (("nearest_neighbor", "asymmetric"), ("trilinear", "align_corners")):
        yield case(
            lambda x, s, k=method, m=mode: op.nn.upsampling3d(x, s, 2.0, s, "NDHWC", k, m),
            normal(1, 2, 3, 2, 2), np.float32(1.5), symbolic=False, tolerance=1e-5,
        )  # fmt: skip
    data, scales = levels("int8", 3, 64), np.abs(normal(1, 2, 64))
    yield case(
        lambda *args: op.nn.contrib_dense_nibbles_pack(*args, 40), data, np.abs(normal(3, 2)),
        sums_of_blocks(data, (3, 2)), levels("int32", 1, 2, 4, 64), scales,
        integers(0, 16, 1, 2, 64, dtype="uint8"), symbolic=False,
    )  # fmt: skip


def sums_of_blocks(data: Array, shape: Sequence[int]) -> Array:
    """The sums of blocks of rows."""
    if not data.size:
        return np.zeros(shape, np.int32)
    return np.asarray(data.reshape(*shape, -1).astype(np.int32).sum(-1, dtype=np.int32))


def _dims(*extents: int) -> tuple[IntImm, ...]:
    return tuple(map(IntImm, extents))


CASES = [*rescaling(), *quantised(), *texts(), *sequences(), *trees(), *parts()]
