"""Data movement, selection, sorting and scatter operators against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ekiden import te, topi
from ekiden.ir.prim import SizeVar
from ekiden.ir.prim_visitor import children, post_order
from long_runs import share
from topi_cases import Array, Case, case, check, every_backend, integers, normal


def transforms() -> Iterator[Case]:
    """Shapes and orders of axes."""
    x = normal(2, 3, 4)
    for axes in (None, (1, 0, 2), (-1, 0, 1)):
        yield case("transpose", x, axes=axes, expected=lambda x, a=axes: x.transpose(a))
    for shape in ((4, 6), (-1,), (0, 12), (2, 3, 4, 1)):
        expected = [d or x.shape[n] for n, d in enumerate(shape)]
        yield case(
            "reshape", x, newshape=shape, symbolic=shape == (-1,), expected=x.reshape(expected)
        )
    yield case("reshape", normal(0, 3), newshape=(-1,), expected=lambda x: x.reshape(-1))
    for axis in (0, 1, -1):
        parts = normal(2, 3, 4), normal(2, 3, 4)
        yield case("concatenate", *parts, build=lambda *t, a=axis: topi.concatenate(t, a),
                   expected=lambda *t, a=axis: np.concatenate(t, a))  # fmt: skip
        yield case("stack", *parts, build=lambda *t, a=axis: topi.stack(t, a),
                   expected=lambda *t, a=axis: np.stack(t, a))  # fmt: skip
        yield case("flip", x, axis=axis, expected=lambda x, a=axis: np.flip(x, a))
        yield case("repeat", x, repeats=3, axis=axis, expected=lambda x, a=axis: x.repeat(3, a))
        yield case("expand_dims", x, axis=axis, num_newaxis=2,
                   expected=lambda x, a=axis: np.expand_dims(np.expand_dims(x, a), a))  # fmt: skip
    yield case("flip", x, axis=(0, 2), expected=lambda x: np.flip(x, (0, 2)))
    for reps in ((2,), (2, 1, 3), (3, 1, 1, 2)):
        yield case("tile", x, reps=reps, expected=lambda x, r=reps: np.tile(x, r))
    yield case("squeeze", normal(1, 3, 1), expected=np.squeeze)
    yield case("squeeze", normal(1, 3, 1), axis=-1, expected=lambda x: x[..., 0])
    like = normal(2, 5, 3)
    yield case(
        "expand_like",
        normal(2, 3),
        like,
        axis=1,
        expected=lambda x, y: np.broadcast_to(x[:, None], y.shape),
    )
    lengths = np.array([1, 3], "int32")
    reversed_rows = x.copy()
    for n, count in enumerate(lengths):
        reversed_rows[n, :count] = x[n, :count][::-1]
    yield case("reverse_sequence", x, lengths, expected=reversed_rows)
    for layout, axes in (("NHWC", (0, 2, 3, 1)), ("HWCN", (2, 3, 1, 0))):
        yield case("layout_transform", normal(2, 4, 3, 5), src_layout="NCHW", dst_layout=layout,
                   expected=lambda x, a=axes: x.transpose(a))  # fmt: skip
    yield case(
        "layout_transform",
        normal(2, 8, 3, 5),
        src_layout="NCHW",
        dst_layout="NCHW4c",
        symbolic=False,
        expected=lambda x: x.reshape(2, 2, 4, 3, 5).transpose(0, 1, 3, 4, 2),
    )
    for k in (-1, 0, 2):
        yield case("trilu", x, k=k, upper=True, expected=lambda x, k=k: np.triu(x, k))
        yield case("trilu", x, np.asarray(k), build=lambda x, k: topi.trilu(x, k, False),
                   expected=lambda x, k: np.tril(x, int(k)))  # fmt: skip
    order = np.array([3, 0, 2, 1], "int32")
    yield case("invert_permutation", order, expected=np.argsort(order).astype("int32"))
    flat = integers(0, 24, 5, dtype="int32")
    coordinates = np.stack(np.unravel_index(flat, (2, 3, 4))).astype("int32")
    yield case("unravel_index", flat, shape=(2, 3, 4), symbolic=False, expected=coordinates)
    yield case("unravel_index", flat, np.array([2, 3, 4]), symbolic=False, expected=coordinates)


def diagonals() -> Iterator[Case]:
    """Matrices with diagonals set."""
    x = normal(2, 4, 5)
    for k in (0, 1, -2):
        expected = x.copy()
        count = np.diagonal(x, k, 1, 2).shape[1]
        values = normal(2, count)
        for n in range(count):
            expected[:, n + max(-k, 0), n + max(k, 0)] = values[:, n]
        yield case("matrix_set_diag", x, values, k=k, symbolic=False, expected=expected)
    for align in ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT"):
        low, high = -1, 2
        values, expected = normal(2, 4, 4), x.copy()
        for row, k in enumerate(range(high, low - 1, -1)):
            count = np.diagonal(x, k, 1, 2).shape[1]
            right = align.split("_")[k < 0] == "RIGHT"
            start = 4 - count if right else 0
            for n in range(count):
                expected[:, n + max(-k, 0), n + max(k, 0)] = values[:, row, start + n]
        yield case(
            "matrix_set_diag",
            x,
            values,
            k=(low, high),
            align=align,
            symbolic=False,
            expected=expected,
        )


def slices() -> Iterator[Case]:
    """Parts of tensors."""
    x = normal(6, 5, 4)
    for begin, end, strides in (
        ((1, 0, 2), (4, 3, 4), None),
        ((0,), (6,), (2,)),
        ((5, 4), (0, -6), (-2, -1)),
        ((-3, 1), (2**31 - 1, 2), (1, 1)),
        ((3,), (3,), (1,)),
    ):
        steps = strides or (1,) * len(begin)
        cut = tuple(
            slice(b, None if e == -6 else e, s) for b, e, s in zip(begin, end, steps, strict=True)
        )
        yield case("strided_slice", x, begin=begin, end=end, strides=strides, expected=x[cut])
        if end[-1] < 2**30:
            value = normal(*x[cut].shape)
            expected = x.copy()
            expected[cut] = value
            bounds = [
                np.array(v, "int64") for v in (begin, [e if e != -6 else -99 for e in end], steps)
            ]
            yield case("strided_set", x, value, *bounds, symbolic=False, expected=expected)
    for bounds, cut in (  # what a list of bounds lacks is the end of its axis
        (((1, 1), (3,), (1,)), np.s_[1:3, 1:]),
        (((2,), (-9, -9), (-1, -1)), np.s_[2::-1, ::-1]),
    ):
        few = [np.array(bound, "int32") for bound in bounds]
        value, expected = normal(*x[cut].shape), x.copy()
        expected[cut] = value
        yield case("strided_set", x, value, *few, symbolic=False, expected=expected)
    yield case(
        "strided_slice",
        x,
        begin=(1, 2),
        end=(2, -1),
        axes=(1, 0),
        slice_mode="size",
        expected=x[2:, 1:3],
    )
    begin, end, steps = (np.array(v, "int64") for v in ((4, 1), (0, 5), (-2, 2)))
    yield case(
        "dynamic_strided_slice",
        x,
        begin,
        end,
        steps,
        symbolic=False,
        expected=x[4:0:-2, 1:5:2],
        build=lambda *t: topi.dynamic_strided_slice(*t, (2, 2, 4)),
    )
    yield case("split", x, indices_or_sections=3, symbolic=False, expected=np.split(x, 3))
    yield case("split", x, indices_or_sections=3, axis=0, symbolic=(6,), expected=np.split(x, 3))
    yield case("split", x, indices_or_sections=(1, 4), axis=1, expected=np.split(x, (1, 4), 1))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 2), (1, 2))[:, ::2]
    yield case("sliding_window", x, axis=1, window_shape=(3, 2), strides=(2, 1), expected=windows)
    yield case("slice_like", x, normal(3, 9, 2), axes=(0, -1), expected=x[:3, :, :2])


def indexing() -> Iterator[Case]:
    """Elements at positions that are data."""
    x, at = normal(5, 3, 4), integers(0, 3, 2, 6)
    for axis in (0, 1, -1):
        yield case("take", x, at, axis=axis, expected=lambda x, i, a=axis: x.take(i, a))
        wild = integers(-9, 9, 7, dtype="int32")
        for mode in ("clip", "wrap"):
            yield case("take", x, wild, axis=axis, mode=mode,
                       expected=lambda x, i, a=axis, m=mode: x.take(i, a, mode=m))  # fmt: skip
    yield case("take", x, at, expected=lambda x, i: x.take(i))
    batched = integers(0, 4, 5, 2)
    yield case(
        "take",
        x,
        batched,
        axis=2,
        batch_dims=1,
        expected=np.stack([x[n][:, batched[n]] for n in range(5)]),
    )
    for axis in (0, 2):
        result = integers(-3, 3, 5, 3, 4)
        yield case("gather", x, result, build=lambda x, i, a=axis: topi.gather(x, a, i),
                   expected=lambda x, i, a=axis: np.take_along_axis(x, i, a))  # fmt: skip
    pairs = integers(-3, 3, 2, 6)
    yield case("gather_nd", x, pairs, symbolic=False, expected=lambda x, i: x[i[0], i[1]])
    per_batch = integers(0, 3, 1, 5, 6)
    yield case("gather_nd", x, per_batch, batch_dims=1, symbolic=False,
               expected=np.stack([x[n][per_batch[0, n]] for n in range(5)]))  # fmt: skip
    i, j = integers(0, 5, 2, 1), integers(0, 3, 4)
    yield case(
        "adv_index",
        x,
        i,
        j,
        build=lambda x, *t: topi.adv_index(x, t),
        expected=lambda x, i, j: x[i, j],
    )
    marks = integers(0, 6, 3, 2)
    for axis in (-1, 0, 1):
        hot = np.where(
            np.expand_dims(marks, axis)
            == np.arange(6).reshape([6 if n == axis % 3 else 1 for n in range(3)]),
            2.5,
            -1,
        )
        yield case(
            "one_hot",
            marks,
            on_value=2.5,
            off_value=-1.0,
            depth=6,
            axis=axis,
            dtype="float32",
            expected=hot.astype("float32"),
        )
    lengths = np.array([2, 0, 5], "int32")
    for axis in (0, 1):
        data = normal(5, 3, 2) if axis == 0 else normal(3, 5, 2)
        inside = np.arange(5)[:, None] < lengths if axis == 0 else np.arange(5) < lengths[:, None]
        yield case("sequence_mask", data, lengths, mask_value=-2.0, axis=axis,
                   expected=np.where(inside[..., None], data, np.float32(-2)))  # fmt: skip


def scans() -> Iterator[Case]:
    """Running sums and products."""
    for shape in ((7,), (3, 5), (2, 3, 4), (0, 3), (3, 0), (2, 1, 33)):
        for axis in (*range(len(shape)), None):
            x = normal(*shape)
            yield case("cumsum", x, axis=axis, expected=lambda x, a=axis: x.cumsum(a))
            yield case("cumprod", x, axis=axis, expected=lambda x, a=axis: x.cumprod(a))
            for name, function in (("cummax", np.maximum), ("cummin", np.minimum)):
                row = x.reshape(-1) if axis is None else x
                yield case(name, x, axis=axis, expected=function.accumulate(row, axis or 0))
    x = normal(3, 5)
    yield case("cumsum", x, axis=1, exclusive=True, expected=lambda x: x.cumsum(1) - x)
    yield case(
        "cumprod",
        x,
        axis=0,
        exclusive=True,
        expected=np.concatenate([np.ones((1, 5), "float32"), x.cumprod(0)[:-1]]),
    )
    yield case(
        "cumsum", normal(9, dtype="bool"), dtype="int32", expected=lambda x: x.cumsum(dtype="int32")
    )
    yield case("scanop", x, binop=te.max, identity_value=0, op_name="cummax", axis=1,
               expected=lambda x: np.maximum.accumulate(x, 1))  # fmt: skip


def ordering() -> Iterator[Case]:
    """Sorting and searching."""
    for shape in ((1,), (17,), (3, 8), (2, 5, 3), (0, 4), (4, 0)):
        for axis in range(len(shape)):
            x = np.round(normal(*shape) * 2)  # with ties
            yield case("sort", x, axis=axis, expected=lambda x, a=axis: np.sort(x, a))
            yield case(
                "argsort",
                x,
                axis=axis,
                dtype="int32",
                expected=lambda x, a=axis: np.argsort(x, a, "stable").astype("int32"),
            )
            yield case("argsort", x, axis=axis, is_ascend=False, dtype="int64",
                       expected=lambda x, a=axis: np.argsort(-x, a, "stable"))  # fmt: skip
    special = np.array([1, np.nan, -np.inf, 3, np.nan, np.inf, -1], "float32")
    yield case("sort", special, expected=np.sort)
    yield case("sort", special, is_ascend=False, expected=np.sort(special)[::-1])
    for dtype in ("int8", "uint8", "int64", "float64"):
        yield case("sort", normal(3, 40, dtype=dtype), expected=np.sort)
    x, valid = normal(2, 6), np.array([4, 0], "int32")
    partly = np.stack([[*np.argsort(x[0, :4]), 4, 5], range(6)]).astype("int32")
    yield case(
        "argsort", x, valid, build=lambda x, v: topi.argsort(x, v, dtype="int32"), expected=partly
    )
    x = np.round(normal(3, 9) * 2)
    largest = np.argsort(-x, 1, "stable")[:, :4]
    values = np.take_along_axis(x, largest, 1)
    yield case("topk", x, k=4, expected=(values, largest))
    yield case("topk", x, k=4, ret_type="values", expected=values)
    yield case("topk", x, k=4, ret_type="indices", dtype="int32", expected=largest.astype("int32"))
    yield case(
        "topk", x, k=0, axis=0, is_ascend=True, expected=(np.sort(x, 0), np.argsort(x, 0, "stable"))
    )
    x = np.round(normal(2, 41) * 2)  # few of many are selected, equal ones by position
    x[1, ::7] = np.nan
    first = {
        True: np.argsort(x, 1, "stable"),
        False: np.argsort(-np.nan_to_num(x, nan=99), 1, "stable"),
    }
    for ascending, order in first.items():
        for k in (1, 2, 5, 10, 11):
            values = np.take_along_axis(x, order[:, :k], 1)
            yield case("topk", x, k=k, is_ascend=ascending, expected=(values, order[:, :k]))
    row, expected = np.sort(np.round(normal(9) * 2)), np.round(normal(4, 3) * 2)
    for right in (False, True):
        side = "right" if right else "left"
        yield case(
            "searchsorted",
            row,
            expected,
            right=right,
            expected=lambda r, w, s=side: r.searchsorted(w, s),
        )
        rows = np.sort(np.round(normal(4, 9) * 2), 1)
        item = np.stack([r.searchsorted(w, side) for r, w in zip(rows, expected, strict=True)])
        yield case(
            "searchsorted",
            rows,
            expected,
            right=right,
            out_dtype="int32",
            expected=item.astype("int32"),
        )
    yield case("searchsorted", np.zeros(0, "float32"), expected, expected=np.zeros((4, 3), "int64"))


def padded(values: Array, size: int, fill: int = 0) -> Array:
    """Values followed by filling."""
    result = np.full((size, *values.shape[1:]), fill, values.dtype)
    result[: len(values)] = values
    return result


def bounded() -> Iterator[Case]:
    """Results whose size is data: padded, with their count."""
    for x in (
        np.array([4, 5, 1, 2, 3, 3, 4, 5], "int32"),
        np.round(normal(20) * 2),
        np.zeros(0, "float32"),
    ):
        values, first, inverse, counts = np.unique(x, True, True, True)
        number = np.array([len(values)], "int32")
        size = len(x)
        ordered = [
            padded(values, size),
            padded(first.astype("int32"), size),
            inverse.astype("int32"),
            number,
        ]
        yield case("unique", x, expected=ordered)
        yield case(
            "unique",
            x,
            return_counts=True,
            expected=[*ordered, padded(counts.astype("int32"), size)],
        )
        occurrence = np.argsort(first)
        rank = np.argsort(occurrence)
        yield case("unique", x, is_sorted=False, expected=[
            padded(values[occurrence], size), padded(first[occurrence].astype("int32"), size),
            rank[inverse].astype("int32"), number,
        ])  # fmt: skip
    for shape in ((7,), (3, 4), (2, 3, 2), (0, 3)):
        x = integers(0, 2, *shape, dtype="float32")
        places = np.argwhere(x).astype("int32")
        expected = padded(places, x.size), np.array([len(places)], "int32")
        yield case("argwhere", x, expected=expected)
        yield case("argwhere", x != 0, expected=expected)


def placing() -> Iterator[Case]:
    """Writing at positions that are data, some of them twice."""
    operations: dict[str, Callable[[float, float], float]] = {
        "update": lambda old, new: new, "add": lambda old, new: old + new,
        "mul": lambda old, new: old * new, "min": min, "max": max,
        "mean": lambda old, new: (old + new) / 2,
    }  # fmt: skip
    for axis in (0, 1):
        for name, operation in operations.items():
            x, at, updates = normal(4, 5), integers(-4, 4, 3, 5), normal(3, 5)
            if axis == 1:
                x, at, updates = normal(5, 4), integers(-4, 4, 5, 3), normal(5, 3)
            expected = x.copy()
            for place in np.ndindex(*at.shape):
                position = list(place)
                position[axis] = at[place]
                expected[tuple(position)] = operation(expected[tuple(position)], updates[place])
            yield case(
                "scatter_elements", x, at, updates, axis=axis, reduction=name, expected=expected
            )
            if name in ("update", "add"):
                yield case(
                    "scatter" if name == "update" else "scatter_add",
                    x,
                    at,
                    updates,
                    axis=axis,
                    expected=expected,
                )
    for name in ("update", "add", "max"):
        x, at, updates = normal(4, 5, 3), integers(-4, 4, 2, 6), normal(6, 3)
        expected = x.copy()
        for n in range(6):
            old = expected[at[0, n], at[1, n]]
            new = updates[n]
            expected[at[0, n], at[1, n]] = {
                "update": new,
                "add": old + new,
                "max": np.maximum(old, new),
            }[name]
        yield case("scatter_nd", x, at, updates, mode=name, symbolic=(4, 5, 6), expected=expected)
    yield case(
        "scatter_elements",
        normal(3, 4),
        np.zeros((0, 4), "int64"),
        normal(0, 4),
        expected=lambda x, i, u: x,
    )
    for shape, count, axis in (
        ((6, 75), 9, 0),
        ((2, 4, 33), 7, 1),
    ):  # more columns than go together
        wide = (*shape[:axis], count, *shape[axis + 1 :])
        x, at, updates = normal(*shape), integers(-shape[axis], shape[axis], *wide), normal(*wide)
        expected = x.copy()
        for place in np.ndindex(*wide):
            expected[(*place[:axis], at[place], *place[axis + 1 :])] += updates[place]
        yield case(
            "scatter_elements", x, at, updates, axis=axis, reduction="add", expected=expected
        )
    dense = np.zeros((3, 4), "float32")
    coordinates, values = (
        np.array([[0, 1], [2, 3], [1, 0]], "int32"),
        np.array([1, 2, 3], "float32"),
    )
    dense[tuple(coordinates.T)] = values
    yield case("sparse_to_dense", coordinates, values, symbolic=False, expected=dense,
               build=lambda i, v: topi.sparse_to_dense(i, (3, 4), v))  # fmt: skip
    line = np.full(7, 9, "float32")
    line[[1, 4]] = 5
    yield case(
        "sparse_to_dense",
        np.array([1, 4]),
        np.asarray(5, "float32"),
        np.asarray(9, "float32"),
        build=lambda i, v, d: topi.sparse_to_dense(i, (7,), v, d),
        expected=line,
    )


CASES: dict[str, list[Case]] = {
    f.__name__: list(f())
    for f in (transforms, diagonals, slices, indexing, scans, ordering, bounded, placing)
}


@share(3)
@every_backend
@pytest.mark.parametrize("family", CASES)
def test_movement_operators_match_numpy(family: str, backend: str) -> None:
    check(CASES[family], backend)


def test_rows_sort_in_parallel() -> None:
    x = te.placeholder((SizeVar("rows"), 8))
    text = str(te.create_prim_func([x, topi.sort(x)]).body)
    assert "T.parallel(rows)" in text


def test_movement_operators_refuse_invalid_arguments() -> None:
    x, v = te.placeholder((3, 4)), te.placeholder((SizeVar("n"),), "int64")
    for make, message in (
        (lambda: topi.transpose(x, (0, 0)), r"transpose: expected a permutation of 2 axes"),
        (lambda: topi.reshape(x, (5, 2)), "12 elements cannot become 10"),
        (lambda: topi.squeeze(x, 0), "squeeze: axis 0 has extent 3, not 1"),
        (lambda: topi.split(x, 2), "does not divide into 2 equal parts"),
        (lambda: topi.strided_slice(x, (0,), (2,), (0,)), "a stride must not be 0"),
        (lambda: topi.sliding_window(x, 0, (2,), (1,)), "expected a window of 2 axes"),
        (lambda: topi.take(x, x, 0, 1), "batch_dims 1 must not exceed the axis 0"),
        (lambda: topi.gather_nd(x, v), "the number of coordinates must be known"),
        (lambda: topi.scatter_elements(x, x, x, 0, "or"), "expected one of update, add, mul"),
        (lambda: topi.topk(x, 5), "k must be at most the extent of the axis, 4, got 5"),
        (lambda: topi.topk(x, 1, ret_type="all"), "ret_type must be one of values, indices, both"),
        (lambda: topi.searchsorted(x, v), "expected a vector or 1 axes, got 2"),
        (lambda: topi.sequence_mask(x, v, axis=2), "axis must be 0 or 1 of at least 2 axes"),
        (lambda: topi.expand_like(x, x, 0), "2 axes and 1 new ones do not make 2"),
        (lambda: topi.unravel_index(v, v), "the rank of the shape must be known"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize("join", [topi.concatenate, topi.stack])
def test_what_joins_a_thousand_is_not_as_deep(join: Callable[..., te.Tensor]) -> None:
    """Code generators go down into an expression: of 400 tensors they met Python's limit."""
    result = join([te.placeholder((2, 3), name=f"x{n}") for n in range(1000)], 1).op
    assert isinstance(result, te.ComputeOp)
    depth: dict[int, int] = {}
    for item in post_order(*result.body):
        depth[id(item)] = 1 + max((depth[id(e)] for e in children(item)), default=0)
    assert max(depth.values()) < 40
