"""Type relations: random shapes against NumPy, symbols, error messages."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekiden.relay.op as op
from ekiden.arith import evaluate
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, PrecisionPolicy
from ekiden.ir.prim import AnyDim, ExprLike, IntImm, SizeVar
from ekiden.ir.type import TensorType, TupleType, Type, tensor_type
from ekiden.relay import create_executor
from ekiden.relay.expr import Call, Function, Tuple, var
from ekiden.relay.type_infer import infer_expr_type
from ekiden.runtime.errors import TypeInferenceError
from ekiden.topi.dimensions import (
    are_equal_dims,
    known_int,
    slice_range,
    window_extent,
    window_extent_ceil,
)

pytestmark = pytest.mark.quick

X = var("x")
N, M = SizeVar("n"), SizeVar("m")
extents = st.integers(0, 6)


def infer(call: Call, *types: Type) -> Type:
    """The relation of a call's operator on given argument types."""
    arguments: tuple[Type, ...] = types
    if len(call.args) == 1 and isinstance(call.args[0], Tuple):
        arguments = (TupleType(types),)
    return OPS[call.op.name].relation(arguments, call.attrs)  # type: ignore[attr-defined]


def numbers(result: Type, values: dict[SizeVar, int]) -> tuple[int, ...]:
    """The shape of a tensor type at given values of its symbols."""
    assert isinstance(result, TensorType)
    return tuple(evaluate(d, dict(values)) for d in result.shape)


@st.composite
def broadcast_pair(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast."""
    shape = draw(st.lists(extents, max_size=4))
    sides = []
    for _ in range(2):
        kept = shape[draw(st.integers(0, len(shape))) :]
        sides.append(tuple(1 if draw(st.booleans()) else d for d in kept))
    return sides[0], sides[1]


@pytest.mark.slow
@given(broadcast_pair())
def test_broadcast_is_numpys(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Numbers alone."""
    result = infer(op.add(X, X), tensor_type(pair[0]), tensor_type(pair[1]))
    assert numbers(result, {}) == np.broadcast_shapes(*pair)


@pytest.mark.slow
@given(broadcast_pair())
def test_broadcast_of_unrelated_symbols_decides_at_run_time(
    pair: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """Every dimension its own symbol, each of which may turn out to be 1."""
    sides = [[SizeVar(f"s{k}{i}") for i in range(len(s))] for k, s in enumerate(pair)]
    values = {v: d for vs, s in zip(sides, pair, strict=True) for v, d in zip(vs, s, strict=True)}
    result = infer(op.add(X, X), tensor_type(sides[0]), tensor_type(sides[1]))
    assert numbers(result, values) == np.broadcast_shapes(*pair)


bound = st.integers(-9, 9)


@pytest.mark.slow
@given(extents, bound, bound, st.sampled_from([-3, -2, -1, 1, 2, 3]))
@settings(max_examples=300)
def test_slices_are_pythons(size: int, begin: int, end: int, stride: int) -> None:
    """Numbers, a symbolic extent, and symbolic bounds give the elements Python gives."""
    b, e = SizeVar("b"), SizeVar("e")
    values = {N: size}
    symbolic = slice_range(b, e, stride, N), {**values, b: max(begin, 0), e: max(end, 0)}
    for (first, count), at, positions in (
        (slice_range(begin, end, stride, IntImm(size)), {}, range(size)[begin:end:stride]),
        (slice_range(begin, end, stride, N), values, range(size)[begin:end:stride]),
        (*symbolic, range(size)[max(begin, 0) : max(end, 0) : stride]),
    ):
        assert evaluate(count, dict(at)) == len(positions)
        if positions:
            assert evaluate(first, dict(at)) == positions[0]


@pytest.mark.slow
@given(extents, st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
def test_window_extents_count_windows(
    size: int, kernel: int, stride: int, before: int, after: int
) -> None:
    """Starts at which a window fits, and those at which it begins inside data or padding before."""
    length = size + before + after
    if length < kernel or before >= kernel or after >= kernel:
        return
    fits = [s for s in range(0, length, stride) if s + kernel <= length]
    assert evaluate(window_extent(N, kernel, stride, before, after), {N: size}) == len(fits)
    last = fits[-1] + stride
    rounded_up = len(fits) + (fits[-1] + kernel < length and last < size + before)
    assert evaluate(window_extent_ceil(N, kernel, stride, before, after), {N: size}) == rounded_up


@pytest.mark.parametrize("kind", ["debug", "vm"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_several_axes_at_a_place_that_is_data(kind: str, axis: int) -> None:
    """They are where the same number as an attribute puts them."""
    at, x = var("at", shape=(), dtype="int32"), var("x", shape=(2, 3))
    data = np.zeros((2, 3), "float32")
    module = IRModule.from_expr(Function([x, at], op.expand_dims(x, at, num_newaxis=2)))
    actual = create_executor(kind, module, target="llvm").evaluate()(data, np.int32(axis))
    expected = infer_expr_type(op.expand_dims(var("x", shape=(2, 3)), axis, num_newaxis=2))
    assert actual.shape == expected.concrete_shape


@pytest.mark.slow
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_reshape_to_an_unknown_dimension(shape: list[int], data: st.DataObject) -> None:
    """One -1 takes what is left, also of symbols."""
    at = data.draw(st.integers(0, len(shape) - 1))
    symbols = [SizeVar(f"d{i}") for i in range(len(shape))]
    newshape: list[ExprLike] = [-1 if i == at else d for i, d in enumerate(symbols)]
    result = infer(op.reshape(X, newshape), tensor_type(symbols))  # type: ignore[arg-type]
    assert isinstance(result, TensorType)
    assert are_equal_dims(result.shape[at], symbols[at])


def test_symbols_stay_symbols() -> None:
    """Equal symbols are known equal; products cancel."""
    data = tensor_type((N, M, 768))
    heads = infer(op.reshape(X, (N, M, 12, -1)), data)
    assert isinstance(heads, TensorType)
    assert heads.shape[0] is N and heads.shape[1] is M
    assert numbers(heads, {N: 2, M: 3}) == (2, 3, 12, 64)
    flat = infer(op.reshape(X, (-1, 768)), data)
    assert isinstance(flat, TensorType)
    assert are_equal_dims(flat.shape[0], N * M)


def test_unknown_dimensions_take_what_is_known() -> None:
    """Any against a number gives the number, against 1 or Any stays unknown."""
    unknown = TensorType((AnyDim(), AnyDim(), AnyDim()))
    result = infer(op.add(X, X), unknown, tensor_type((5, 1, N)))
    assert isinstance(result, TensorType)
    assert known_int(result.shape[0]) == 5
    assert isinstance(result.shape[1], AnyDim)


F32, SCALAR, BOOL = tensor_type((2, 3)), tensor_type(()), tensor_type((2,), "bool")
IMAGE, WEIGHT = tensor_type((1, 3, 8, 8)), tensor_type((4, 3, 3, 3))
VOLUME = tensor_type((1, 2, 3, 3, 3))
REFUSED = [
    (op.add(X, X), (F32, tensor_type((4,))), "add: shapes (2, 3) and (4,) do not broadcast"),
    (op.add(X, X), (F32, tensor_type((3,), "int32")),
     "add: arguments must have one dtype, got float32, int32"),
    (op.exp(X), (tensor_type((2,), "int32"),), "exp: 'data' must be floating point, got int32"),
    (op.bitwise_and(X, X), (F32, F32),
     "bitwise_and: 'lhs' must be integers or bools, got float32"),
    (op.bitwise_not(X), (F32,), "bitwise_not: 'data' must be integers or bools, got float32"),
    (op.left_shift(X, X), (BOOL, BOOL), "left_shift: 'lhs' must be integers, got bool"),
    (op.subtract(X, X), (BOOL, BOOL), "subtract: 'lhs' must be a number, got bool"),
    (op.negative(X), (BOOL,), "negative: 'data' must be a number, got bool"),
    (op.invert_permutation(X), (F32,), "invert_permutation: 'data' must be integers, got float32"),
    (op.nn.cross_entropy(X, X), (BOOL, BOOL),
     "nn.cross_entropy: 'predictions' must be floating point, got bool"),
    (op.sum(X, 2), (F32,), "sum: axis must be in [-2, 2), got 2"),
    (op.reshape(X, (4, 2)), (F32,), "reshape: (2, 3) to (4, 2): 6 elements cannot become 8"),
    (op.reshape(X, (4, -1)), (F32,), "reshape: (2, 3) to (4, -1): 6 elements do not divide by 4"),
    (op.reshape(X, (0, 0, 0, -1)), (F32,),
     "reshape: (2, 3) to (0, 0, 0, -1): 0 at axis 2 copies a dimension that an input of rank 2"
     " lacks"),
    (op.reshape(X, (-1, -3)), (F32,),
     "reshape: (2, 3) to (-1, -3): -3 at axis 1 joins two dimensions that an input of rank 2"
     " lacks"),
    (op.reshape(X, (0, -4, 2, 2)), (F32,),
     "reshape: (2, 3) to (0, -4, 2, 2): -4 at axis 1 splits a dimension: 3 cannot become 2"
     " times 2"),
    (op.reshape(X, (0, -4, -1, -1)), (F32,),
     "reshape: (2, 3) to (0, -4, -1, -1): -4 at axis 1 splits a dimension: one of its parts must"
     " be a number, got [-1, -1]"),
    (op.reshape(X, (0, -4, 3)), (F32,),
     "reshape: (2, 3) to (0, -4, 3): -4 at axis 1 splits a dimension: two parts must follow, of"
     " which one may be -1, got [3]"),
    (op.reshape(X, (2, -5)), (F32,),
     "reshape: (2, 3) to (2, -5): a dimension must be at least -4, got -5"),
    (op.squeeze(X, 0), (F32,), "squeeze: axis 0 must have extent 1, got (2, 3)"),
    (op.transpose(X, (0, 0)), (F32,),
     "transpose: axes must be a permutation of 2 axes, got (0, 0)"),
    (op.concatenate((X, X), 0), (F32, tensor_type((2, 4))),
     "concatenate: extents of axis 1 must agree, got 3 and 4"),
    (op.split(X, 2, 1), (F32,), "split: an axis of extent 3 does not divide into 2 equal parts"),
    (op.split(X, -2, 1), (F32,), "split: an axis is cut into 1 to 65536 parts, got -2"),
    (op.split(X, 0, 1), (F32,), "split: an axis is cut into 1 to 65536 parts, got 0"),
    (op.strided_slice(X, (0,), (2,), (0,)), (F32,), "strided_slice: a stride must not be 0"),
    (op.strided_slice(X, (0,), (2,), slice_mode="by"), (F32,),
     "strided_slice: slice_mode must be 'end' or 'size', got 'by'"),
    (op.strided_slice(X, (0, 0, 0), (1, 1)), (F32,),
     "strided_slice: 3 bounds for an input of rank 2"),
    (op.strided_slice(X, (0, 0), (1, 1), (2,), axes=(0, 1)), (F32,),
     "strided_slice: begin, end, strides and axes must have one length, got 2, 2, 1 and 2"),
    (op.strided_slice(X, (0, 0), (1, 1), axes=(0, -2)), (F32,),
     "strided_slice: axes must be distinct, got (0, -2)"),
    (op.broadcast_to(X, (2, 4)), (F32,), "broadcast_to: (2, 3) does not broadcast to (2, 4)"),
    (op.take(X, X, 0), (F32, F32), "take: 'indices' must be integers, got float32"),
    (op.scatter_nd(X, X, X), (F32, tensor_type((2, N), "int64"), tensor_type((2, N))),
     "scatter_nd: 'updates' must have 1 dimensions, got 2: (2, n)"),
    (op.scatter_nd(X, X, X), (F32, tensor_type((3, 5), "int64"), tensor_type((5,))),
     "scatter_nd: 1 to 2 coordinates expected, got 3"),
    (op.scatter_nd(X, X, X), (F32, tensor_type((), "int64"), F32),
     "scatter_nd: 1 to 2 coordinates expected, got 0"),
    (op.scatter_elements(X, X, X), (F32, tensor_type((2,), "int64"), tensor_type((2,))),
     "scatter_elements: 'indices' must have 2 dimensions, got 1: (2,)"),
    (op.sparse_to_dense(X, (4, 4), X), (tensor_type((3,), "int32"), tensor_type((3,)), SCALAR),
     "sparse_to_dense: 'sparse_indices' has positions of 1 numbers, the result has 2 dimensions"),
    (op.sparse_to_dense(X, (4,), X), (tensor_type((), "int32"), tensor_type((3,)), SCALAR),
     "sparse_to_dense: one position cannot take several values"),
    (op.nn.conv2d(X, X), (F32, WEIGHT), "nn.conv2d: 'data' must have 4 dimensions, got 2: (2, 3)"),
    (op.nn.conv2d(X, X, groups=2), (IMAGE, WEIGHT),
     "nn.conv2d: channels of 'data' and 'weight' must agree, got 3 and 6"),
    (op.nn.dense(X, X), (F32, F32.with_fields(shape=tensor_type((4, 5)).shape)),
     "nn.dense: the last dimensions of 'data' and 'weight' must agree, got 3 and 5"),
    (op.nn.pad(X, ((1, 1),)), (F32, tensor_type(())),
     "nn.pad: pad_width must have 2 pairs, got ((1, 1),)"),
    (op.nn.conv2d_transpose(X, X, kernel_size=(2, 2)), (IMAGE, tensor_type((3, 4, 3, 3))),
     "nn.conv2d_transpose: attribute 'kernel_size' and 'weight' must agree, got 2 and 3"),
    (op.nn.conv3d(X, X, channels=5), (VOLUME, tensor_type((4, 2, 1, 1, 1))),
     "nn.conv3d: attribute 'channels' and output channels of 'weight' must agree, got 5 and 4"),
    (op.nn.conv1d_transpose(X, X, channels=4), (tensor_type((1, 2, 5)), tensor_type((2, 2, 1))),
     "nn.conv1d_transpose: attribute 'channels' and output channels of 'weight' must agree,"
     " got 4 and 2"),
    (op.nn.deformable_conv2d(X, X, X, data_layout="NHWC"), (IMAGE, IMAGE, WEIGHT),
     "nn.deformable_conv2d: the layout must be ('NCHW', 'OIHW', 'NCHW') or"
     " ('NHWC', 'HWIO', 'NHWC'), got ('NHWC', 'OIHW', 'NHWC')"),
    (op.nn.matmul(X, X, units=4), (F32, tensor_type((3, 5))),
     "nn.matmul: attribute 'units' and 'tensor_b' must agree, got 4 and 5"),
    (op.nn.global_avg_pool2d(X, out_layout="NHWC"), (IMAGE,),
     "nn.global_avg_pool2d: out_layout must be that of the data, 'NCHW', got 'NHWC'"),
    (op.nn.correlation(X, X, 1, 1, 1, 1, 0, True, "NHWC"), (IMAGE, IMAGE),
     "nn.correlation: the layout must be NCHW, got NHWC"),
    (op.vision.roi_pool(X, X, (2, 2), 1.0, "NHWC"), (IMAGE, tensor_type((1, 5))),
     "vision.roi_pool: the layout must be NCHW, got NHWC"),
    (op.image.dilation2d(X, X, kernel_layout="HWI"), (IMAGE, tensor_type((3, 3, 3))),
     "image.dilation2d: the layout must be ('NCHW', 'IHW') or ('NHWC', 'HWI'), got"
     " ('NCHW', 'HWI')"),
    (op.arange(0, 5, 0), (), "arange: step must be a number other than 0, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "types", "message"), REFUSED, ids=[m[:40] for _, _, m in REFUSED])
def test_relation_errors_give_the_reason(call: Call, types: tuple[Type, ...], message: str) -> None:
    """What was being done, what was expected, what came."""
    with pytest.raises(TypeInferenceError, match=f"^{re.escape(message)}$"):
        infer(call, *types)


def test_sibling_operators_share_properties() -> None:
    """What passes read of an operator holds for those of another rank or kind too."""
    pools = {n: row.precision for n, row in OPS.items() if re.fullmatch(r"nn\.\w+_pool\dd", n)}
    windows = {p for n, p in pools.items() if re.fullmatch(r"nn\.(max|avg)_pool\dd", n)}
    assert windows == {PrecisionPolicy.FOLLOW}
    always = {n for n, row in OPS.items() if row.precision is PrecisionPolicy.ALWAYS}
    assert {f"nn.conv{n}d{t}" for n in (1, 2, 3) for t in ("", "_transpose")} <= always
    assert all(OPS[n].macs for n in always)
