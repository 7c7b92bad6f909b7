"""Sample calls of the operators that are one computation of topi (tests/topi checks those against
NumPy, on every backend)."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from operator_cases import Case, all_of, case, integers, normal, positive

import ekiden.relay.op as op
from ekiden.relay.expr import const


def elementwise() -> Iterator[Case]:
    """Functions of one and two arguments."""
    for shape in ((), (0,), (3, 33)):
        x = np.tanh(normal(*shape)).astype("float32")
        for f in (op.tan, op.asin, op.acos, op.atan, op.sinh, op.cosh, op.asinh, op.atanh):
            yield case(f, x, tolerance=1e-5)
        for f in (op.log2, op.log10):
            yield case(f, positive(*shape), tolerance=1e-5)
        yield case(op.acosh, positive(*shape) + 1, tolerance=1e-5)
        yield from (case(f, normal(*shape)) for f in (op.trunc, op.isfinite))
    for dtype in ("int8", "uint8", "int32", "bool"):
        yield case(op.bitwise_not, normal(3, 5, dtype=dtype))
    yield case(op.isfinite, np.array([0, np.nan, np.inf, -np.inf], "float32"))
    for dtype in ("int32", "int64"):
        x, y = normal(5, 7, dtype=dtype), integers(1, 5, 7, dtype=dtype)
        for f in (op.trunc_divide, op.trunc_mod, op.left_shift, op.right_shift):
            yield case(f, x, y)
    x, y = (integers(-(2**31), 2**31, *shape, dtype="int32") for shape in ((5, 7), (7,)))
    yield case(op.widening_multiply, x, y)
    yield case(op.trunc_divide, normal(3, 4), positive(4) + 0.5)
    yield case(op.trunc_mod, normal(3, 4), positive(4) + 0.5)
    x = integers(-(2**20), 2**20, 4, 6, dtype="int32")
    yield case(lambda x: op.fixed_point_multiply(x, 1395864371, 3), x)
    shifts = [np.array([item, 0], "int32") for item in (1, 3)]
    yield case(lambda x, y, left, right: op.fixed_point_multiply_per_axis(
        x, y, left, right, True, True, (0,)
    ), np.array([[1 << 30, -7, 9], [5, -(1 << 31), 3]], "int32"),
        np.array([1395864371, (1 << 31) - 1], "int32"), *shifts, symbolic=False)  # fmt: skip


def movement() -> Iterator[Case]:
    """Shapes, masks, scans."""
    x = normal(3, 4, 5)
    yield case(lambda x: op.cumprod(x, 1), x, tolerance=1e-5)
    yield case(lambda x: op.cumprod(x, 0, exclusive=True), x, tolerance=1e-5)
    yield case(lambda x: op.cumprod(x), normal(4, 3), tolerance=1e-5)
    for function in (op.cummax, op.cummin):
        yield case(lambda x, f=function: f(x, 1), x)
        yield case(lambda x, f=function: f(x, 0, exclusive=True), x)
        yield case(lambda x, f=function: f(x), np.array([[3, -(1 << 31)], [7, 5]], "int32"))
        yield case(lambda x, f=function: f(x, 0), np.array([1, np.nan, 3], "float32"))
        yield case(lambda x, f=function: f(x, 0), np.array([True, False, True]))
    yield case(op.sequence_mask, x, np.array([2, 0, 4, 1], "int32"))
    yield case(lambda x, n: op.reverse_sequence(x, n), x, np.array([1, 4, 2], "int32"))
    yield case(lambda x, n: op.reverse_sequence(x, n, 0, 2), x, np.array([1, 3, 2, 0, 1], "int32"))
    yield case(lambda a, b: op.meshgrid((a, b)), normal(3), normal(4))
    yield case(lambda a, b: op.meshgrid((a, b), "xy"), normal(3), normal(4))
    yield case(op.full_like, x, np.asarray(2.5, "float32"))
    yield case(lambda a, b: op.slice_like(a, b, (1, 2)), x, normal(9, 2, 3),
               expected=lambda a, b: a[:, :2, :3])  # fmt: skip
    yield case(op.broadcast_to_like, normal(4, 1), x)
    yield case(op.cast_like, x, normal(2, dtype="int32"))
    yield case(lambda a, b: op.reshape_like(a, b, 1), x, normal(20), symbolic=False)
    yield case(lambda x: op.reverse_reshape(x, (-1, 0)), x, symbolic=False)
    yield case(lambda x: op.sliding_window(x, 1, (2, 3), (1, 2)), x, symbolic=False)
    yield case(op.collapse_sum_like, x, normal(4, 1), tolerance=1e-5, symbolic=False)
    yield case(lambda x: op.collapse_sum_to(x, (4, 1)), x, tolerance=1e-5, symbolic=(3, 5))
    for axis in (None, 1, (0, -1)):
        yield case(lambda x, a=axis: op.variance(x, a, True), x, tolerance=1e-5)
    yield case(lambda x: op.variance(x, 1, unbiased=True), x, tolerance=1e-5)
    for upper in (True, False):
        yield case(lambda x, k, u=upper: op.trilu(x, k, u), x, np.asarray(1))
    for k in (0, -1):
        yield case(
            lambda x, d, k=k: op.matrix_set_diag(x, d, k), x, normal(3, 4 + k), symbolic=False
        )
    yield case(
        lambda x, d: op.matrix_set_diag(x, d, (-1, 1), "LEFT_LEFT"),
        x,
        normal(3, 3, 4),
        symbolic=False,
    )
    order = np.array([3, 0, 2, 1], "int32")
    yield case(op.invert_permutation, order)
    yield case(
        op.unravel_index,
        integers(0, 60, 7, dtype="int32"),
        np.array([3, 4, 5], "int32"),
        symbolic=False,
    )
    yield case(lambda *t: op.adv_index(t), x, integers(0, 3, 2, 1), integers(0, 4, 6))
    value, begin, end, steps = (
        normal(2, 2, 5),
        np.array([0, 3]),
        np.array([3, -9]),
        np.array([2, -2]),
    )
    yield case(op.strided_set, x, value, begin, end, steps, symbolic=False)


def ordering() -> Iterator[Case]:
    """Sorting, searching, placing."""
    x = np.round(normal(3, 8) * 2).astype("float32")
    for axis, ascending in ((0, True), (-1, False)):
        yield case(lambda x, a=axis, u=ascending: op.sort(x, a, u), x)
        yield case(lambda x, a=axis, u=ascending: op.argsort(x, a, u), x)
        yield case(lambda x, a=axis, u=ascending: op.topk(x, 2, a, is_ascend=u), x)
    yield case(lambda x: op.topk(x, 0, dtype="int64"), x)
    yield case(lambda x: op.topk(x, 3, ret_type="values"), x)
    yield case(op.argwhere_padded, integers(-1, 2, 3, 4))
    for ordered in (True, False):
        yield case(lambda x, s=ordered: op.unique(x, s), integers(-2, 3, 9))
    yield case(lambda x: op.unique(x, True, True), integers(-2, 3, 9))
    row, rows = np.sort(normal(9)), np.sort(normal(3, 9), 1)
    yield case(op.searchsorted, row, normal(4, 3))
    yield case(lambda r, v: op.searchsorted(r, v, True, "int64"), rows, normal(3, 5))
    data, at, updates = normal(4, 5), integers(-4, 4, 3, 5), normal(3, 5)
    for reduction in ("update", "add", "max"):
        yield case(
            lambda *t, r=reduction: op.scatter_elements(*t, 0, r),
            data,
            at,
            updates,
            symbolic=(4, 5),
        )
        yield case(
            lambda *t, r=reduction: op.scatter_nd(*t, r),
            data,
            integers(0, 4, 2, 6),
            normal(6),
            symbolic=False,
        )
    places = np.array([[0, 1], [2, 3]], "int32")
    yield case(lambda i, v: op.sparse_to_dense(i, (3, 4), v), places, normal(2), symbolic=False)
    yield case(
        lambda i, v: op.sparse_to_dense(i, (5,), v, const(7.0)),
        np.array(1, "int32"),
        normal(),
        expected=lambda i, v: np.where(np.arange(5) == i, v, np.float32(7)),
    )
    yield case(
        lambda i, v: op.sparse_to_dense(i, (5,), v),
        np.array([4, 0], "int32"),
        normal(),
        expected=lambda i, v: np.isin(np.arange(5), i) * v,
    )


def sparse() -> Iterator[Case]:
    """Matrices of few elements: compressed rows, and blocks of them."""
    rows = normal(4), np.array([0, 2, 1, 2], "int32"), np.array([0, 2, 2, 4], "int32")
    blocks = normal(2, 1, 2), np.array([1, 0], "int32"), np.array([0, 1, 1, 2], "int32")
    for parts, columns in ((rows, 3), (blocks, 4)):
        dense = normal(5, columns)
        yield case(lambda x, *p: op.nn.sparse_dense(x, p), dense, *parts, symbolic=False)
    yield case(lambda x, *p: op.nn.sparse_dense(x, p, True), normal(5, 3), *rows, symbolic=False)
    yield case(lambda x, *p: op.nn.sparse_add(x, p), normal(3, 3), *rows, symbolic=False)
    yield case(lambda *p: op.nn.sparse_transpose(p).astuple(), *rows, symbolic=False)
    image = normal(1, 4, 5, 3)
    yield case(lambda x, *p: op.nn.sparse_conv2d(x, p), image, *rows, symbolic=False)


def algebra() -> Iterator[Case]:
    """Sums of products and transforms."""
    x, y = normal(3, 4), normal(4, 5)
    yield case(lambda a, b: op.einsum((a, b), "ij,jk->ik"), x, y, tolerance=1e-5)
    yield case(lambda a: op.einsum((a,), "ij->j"), x, tolerance=1e-5)
    for inverse in (False, True):
        yield case(
            lambda a, b, i=inverse: op.dft(a, b, i), normal(2, 8), normal(2, 8), tolerance=1e-4
        )
    yield case(
        lambda x, w: op.stft(x, 8, 4, 8, w),
        normal(2, 20),
        positive(8),
        tolerance=1e-4,
        symbolic=(20,),
    )


def randoms() -> Iterator[Case]:
    """Random numbers."""
    key = np.array([5, *[0] * 9], "uint64")
    yield case(lambda k: op.random.threefry_generate(k, (3, 5)), key, symbolic=False)
    yield case(op.random.threefry_split, key, symbolic=False)
    yield case(lambda k: op.random.uniform(k, (7,), low=-1.0, high=2.0), key, symbolic=False)
    yield case(lambda k: op.random.normal(k, (7,)), key, symbolic=False, tolerance=1e-5)
    yield case(lambda k, p: op.random.multinomial(k, p, 4), key, positive(2, 3), symbolic=False)
    weights = positive(3, 40)
    settings = [[1, 5, 1, 0], [0, 0, 1, 0], [0.5, 0, 0.7, 0.1]]
    yield case(
        op.random.contrib_draw, weights / weights.max(1, keepdims=True),
        np.array(settings, "float32"), integers(0, 9, 3), integers(0, 9, 3, dtype="int32"),
        symbolic=False,
    )  # fmt: skip
    yield case(
        op.random.contrib_constrain, normal(3, 7), integers(-1, 9, 2, 6, dtype="int32"),
        *(np.array(x, "int32") for x in ([0, 1, 0], [6, 0, 3])),
        np.array([1.5, 2, 1], "float32"), integers(-1, 2, 2, 7, dtype="int32"),
        np.array([0, 1, -1], "int32"), symbolic=(7, 6),
    )  # fmt: skip


def matrices() -> Iterator[Case]:
    """Decompositions; of one batch and of several, square and not, of small floats too."""
    near = functools.partial(case, symbolic=False, tolerance=1e-5)
    x, tall, wide = normal(2, 4, 4), normal(5, 3), normal(3, 17)
    yield from (near(op.linalg.lu_factor, item) for item in (x, tall, wide))
    yield from (near(op.linalg.geqrf, item) for item in (tall, wide))
    yield near(op.linalg.cholesky, x @ x.swapaxes(1, 2) + np.eye(4, dtype="float32"))
    lower = np.tril(x) + 3 * np.eye(4, dtype="float32")
    yield near(op.linalg.solve_triangular, lower, normal(2, 4, 17))
    yield near(lambda a, b: op.linalg.solve_triangular(a, b, False, True), x, normal(2, 4, 1))
    yield near(op.linalg.householder_product, tall, positive(2))
    yield near(op.linalg.eigh, x)
    yield near(op.linalg.matrix_exp, x.astype("float64"))
    yield near(op.linalg.svd, tall)
    yield near(lambda x: op.linalg.svd(x, False), wide.astype("float64"))
    yield case(op.linalg.lu_factor, x.astype("float16"), symbolic=False, tolerance=1e-2)
    info = np.zeros(3, "int32")
    yield case(lambda x, i: op.linalg.checked(x, i, "pivot", "is 0"), normal(3, 2, 2), info)


def networks() -> Iterator[Case]:
    """Convolutions, pooling, blocks of pixels, losses."""
    volume, cube = normal(1, 4, 5, 4, 6), normal(6, 2, 2, 3, 3)
    yield case(
        lambda x, w: op.nn.conv3d(x, w, (1, 2, 1), (1, 0, 1), groups=2),
        volume,
        cube,
        tolerance=1e-5,
        symbolic=(5, 6),
    )
    yield case(
        lambda x, w: op.nn.conv3d(x, w, data_layout="NDHWC"),
        volume,
        normal(2, 2, 2, 6, 3),
        tolerance=1e-5,
        symbolic=False,
    )
    yield case(
        lambda x, w: op.nn.conv1d_transpose(x, w, 2, 1),
        normal(2, 4, 5),
        normal(4, 3, 4),
        tolerance=1e-5,
        symbolic=(5,),
    )
    yield case(
        lambda x, w: op.nn.conv3d_transpose(x, w, 2, 1),
        normal(1, 2, 3, 2, 3),
        normal(2, 2, 2, 3, 2),
        tolerance=1e-5,
        symbolic=False,
    )
    yield case(lambda x: op.nn.max_pool3d(x, 2, 2, padding=1), volume, symbolic=(5, 6))
    yield case(
        lambda x: op.nn.avg_pool3d(x, 2, 2, padding=1, count_include_pad=True),
        volume,
        tolerance=1e-5,
    )
    image, line = normal(1, 4, 6, 5), normal(2, 3, 7)
    for f in (op.nn.adaptive_avg_pool1d, op.nn.adaptive_max_pool1d):
        yield case(lambda x, f=f: f(x, 3), line, tolerance=1e-5, symbolic=False)
    yield case(lambda x: op.nn.adaptive_max_pool2d(x, (3, 2)), image, symbolic=False)
    for f in (op.nn.adaptive_avg_pool3d, op.nn.adaptive_max_pool3d):
        yield case(lambda x, f=f: f(x, 2), volume, tolerance=1e-5, symbolic=False)
    offset, weight = normal(1, 36, 6, 5), normal(2, 2, 3, 3)
    yield case(
        lambda x, o, w: op.nn.deformable_conv2d(x, o, w, padding=1, deformable_groups=2, groups=2),
        image,
        offset,
        weight,
        tolerance=1e-5,
        symbolic=False,
    )
    yield case(
        lambda x, o, w, m: op.nn.deformable_conv2d(
            x, o, w, padding=1, deformable_groups=2, groups=2, mask=m
        ),
        image,
        offset,
        weight,
        normal(1, 18, 6, 5),
        tolerance=1e-5,
        symbolic=False,
    )
    yield case(
        lambda a, b: op.nn.correlation(a, b, 1, 1, 1, 1, 1, True),
        image,
        normal(1, 4, 6, 5),
        tolerance=1e-5,
        symbolic=False,
    )
    blocks = normal(2, 8, 3, 5)
    for mode in ("DCR", "CRD"):
        yield case(lambda x, m=mode: op.nn.depth_to_space(x, 2, mode=m), blocks, symbolic=(3, 5))
    yield case(lambda x: op.nn.space_to_depth(x, 2), normal(2, 3, 4, 6), symbolic=False)
    yield case(
        lambda x: op.nn.space_to_batch_nd(x, (2, 3), ((0, 0), (1, 2))),
        normal(2, 4, 6, 3),
        symbolic=False,
    )
    yield case(
        lambda x: op.nn.batch_to_space_nd(x, (2, 3), ((0, 0), (1, 2))),
        normal(12, 2, 3, 3),
        symbolic=False,
    )
    yield case(lambda x: op.nn.dilate(x, (1, 2, 3), -1.0), line)
    few = (np.arange(96) * 37 % 64 - 32).astype("int32").reshape(2, 16, 3)
    yield case(lambda x: op.nn.bitpack(x, 3, 1, 2, "uint8"), few, symbolic=False)
    yield case(
        lambda a, b: op.nn.fifo_buffer(a, b, 1), normal(2, 2, 4), normal(2, 5, 4), symbolic=False
    )
    for mode in ("SYMMETRIC", "REFLECT"):
        yield case(lambda x, m=mode: op.nn.mirror_pad(x, ((0, 1), (2, 1), (2, 3)), m), line)
    yield case(lambda x: op.nn.l2_normalize(x, 1e-6, (1,)), line, tolerance=1e-5)
    yield case(
        lambda x: op.nn.upsampling3d(x, 2, 2, 2, coordinate_transformation_mode="asymmetric"),
        normal(1, 2, 2, 3, 2),
    )
    p, y, at = positive(4, 5), positive(4, 5), integers(0, 5, 4, dtype="int32")
    yield case(op.nn.cross_entropy, p, y, tolerance=1e-5)
    yield case(op.nn.cross_entropy_with_logits, p, y, tolerance=1e-5)
    for reduction in ("none", "mean"):
        yield case(
            lambda x, t, w, r=reduction: op.nn.nll_loss(x, t, w, r),
            p,
            at,
            positive(5),
            tolerance=1e-5,
        )


def images() -> Iterator[Case]:
    """Resizing and sampling."""
    x = normal(1, 2, 5, 6)
    yield case(lambda x: op.image.resize1d(x, 9), normal(2, 3, 5), tolerance=1e-4, symbolic=(5,))
    yield case(
        lambda x: op.image.resize3d(x, (3, 5, 2)),
        normal(1, 2, 2, 3, 4),
        tolerance=1e-4,
        symbolic=False,
    )
    boxes, which = np.array([[0, 0, 1, 1], [0.2, 0.5, 0.7, 1.5]], "float32"), np.zeros(2, "int32")
    yield case(
        lambda x, b, i: op.image.crop_and_resize(x, b, i, (3, 4)),
        x,
        boxes,
        which,
        tolerance=1e-5,
        symbolic=False,
    )
    for method in ("bilinear", "bicubic"):
        yield case(
            lambda x, g, m=method: op.image.grid_sample(x, g, m),
            x,
            np.tanh(normal(1, 2, 4, 3)).astype("float32"),
            tolerance=1e-4,
            symbolic=(5, 6),
        )
    yield case(
        lambda x: op.image.affine_grid(x, (4, 5)), normal(2, 2, 3), tolerance=1e-5, symbolic=False
    )
    yield case(
        lambda x, w: op.image.dilation2d(x, w, padding=(1, 1)),
        x,
        normal(2, 3, 3),
        tolerance=1e-5,
        symbolic=(5, 6),
    )


def detection() -> Iterator[Case]:
    """Boxes."""
    corner = positive(2, 6, 2)
    rows = np.concatenate(
        [
            integers(-1, 2, 2, 6, 1, dtype="float32"),
            positive(2, 6, 1),
            corner,
            corner + positive(2, 6, 2),
        ],
        -1,
    )
    counts, places = np.array([5, 3], "int32"), np.tile(np.arange(6, dtype="int32"), (2, 1))
    v = op.vision
    yield case(lambda x: v.get_valid_counts(x, const(0.5, "float32")), rows)
    yield case(lambda x, n, i: v.non_max_suppression(x, n, i, 4, 0.3), rows, counts, places)
    yield case(
        lambda x, n, i: v.non_max_suppression(x, n, i, return_indices=False), rows, counts, places
    )
    boxes, scores = rows[..., 2:], positive(2, 3, 6)
    for form in ("onnx", "tensorflow"):
        yield case(
            lambda b, s, f=form: v.all_class_non_max_suppression(b, s, 3, 0.3, 0.1, f),
            boxes,
            scores,
        )
    yield case(
        lambda x: v.multibox_prior(x, (0.5, 0.2), (1, 2)), normal(1, 2, 3, 4), tolerance=1e-5
    )
    probability, anchor = positive(2, 3, 5), positive(1, 5, 4)
    yield case(
        v.multibox_transform_loc, probability, normal(2, 20), anchor, tolerance=1e-4, symbolic=False
    )
    x, rois = normal(2, 3, 8, 9), np.array([[0, 1, 1, 6, 7], [1, 0.5, 2, 4.25, 3]], "float32")
    for layout, data in (("NCHW", x), ("NHWC", x.transpose(0, 2, 3, 1).copy())):
        yield case(
            lambda x, r, y=layout: v.roi_align(x, r, (2, 3), 0.5, 2, y),
            data,
            rois,
            tolerance=1e-5,
            symbolic=False,
        )
    yield case(lambda x, r: v.roi_pool(x, r, (2, 2), 1.0), x, rois, symbolic=(8, 9))
    info = np.array([[48, 64, 1]], "float32")
    yield case(
        lambda s, m, i: v.proposal(s, m, i, (1, 2), (1.0,), 16, 0.5, 24, 6, 12, False),
        positive(1, 4, 3, 4),
        normal(1, 8, 3, 4) * np.float32(0.2),
        info,
        tolerance=1e-4,
        symbolic=False,
    )
    yield case(lambda x: v.yolo_reorg(x, 2), normal(1, 4, 4, 6), symbolic=False)


CASES = all_of(
    (
        elementwise,
        movement,
        ordering,
        sparse,
        algebra,
        matrices,
        randoms,
        networks,
        images,
        detection,
    )
)
