"""Operators on images, boxes and regions, against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from ekiden import te, topi
from long_runs import share
from topi_cases import Array, Case, case, check, every_backend, integers, normal


def weights(x: float, size: int, method: str, mode: str, alpha: float = -0.5) -> Array:
    """How much each pixel of an axis counts at place x; places outside show the border."""
    result = np.zeros(size)
    base = int(np.floor(x))
    if method == "nearest_neighbor":
        nearest = np.floor(x + 0.5 if mode == "align_corners" else x + 1e-9)
        result[int(np.clip(nearest, 0, size - 1))] = 1
        return result
    for n in range(-1, 3) if method == "cubic" else range(2):
        d = abs(x - base - n)
        w = 1 - d
        if method == "cubic":
            near, far = (
                (alpha + 2) * d**3 - (alpha + 3) * d**2 + 1,
                alpha * (d**3 - 5 * d**2 + 8 * d - 4),
            )
            w = near if d <= 1 else far
        result[min(max(base + n, 0), size - 1)] += w
    return result


def place(n: int, size: int, extent: int, mode: str) -> float:
    """Where a result pixel lies."""
    if mode == "align_corners":
        return n * (size - 1) / max(extent - 1, 1)
    return n * size / extent if mode == "asymmetric" else (n + 0.5) * size / extent - 0.5


def resized(x: Array, size: tuple[int, ...], method: str, mode: str) -> Array:
    """[N, C, ...] resized axis by axis."""
    for axis, extent in enumerate(size, 2):
        n = x.shape[axis]
        matrix = np.stack(
            [weights(place(i, n, extent, mode), n, method, mode) for i in range(extent)]
        )
        x = np.moveaxis(np.tensordot(x, matrix, (axis, 1)), -1, axis)
    return x.astype("float32")


def resizes() -> Iterator[Case]:
    """Every method and coordinate mode, over one to three axes."""
    data = {1: normal(2, 3, 7), 2: normal(2, 3, 5, 7), 3: normal(1, 2, 3, 4, 5)}
    sizes = {1: (11,), 2: (8, 4), 3: (5, 3, 7)}
    for rank, method, mode in itertools.product(
        (1, 2, 3),
        ("nearest_neighbor", "linear", "cubic"),
        ("half_pixel", "align_corners", "asymmetric"),
    ):
        if rank == 3 and method == "cubic" and mode != "half_pixel":
            continue
        x = data[rank]
        yield case(
            f"image.resize{rank}d",
            x,
            roi=None,
            size=sizes[rank],
            method=method,
            symbolic=False,
            coordinate_transformation_mode=mode,
            expected=resized(x, sizes[rank], method, mode),
        )
    x = data[2]
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    yield case(
        "image.resize2d",
        last,
        roi=None,
        size=(10, 14),
        layout="NHWC",
        symbolic=(5, 7),
        expected=resized(x, (10, 14), "linear", "half_pixel").transpose(0, 2, 3, 1),
    )
    part = resized(x[:, :, 1:4, 2:5], (5, 5), "linear", "align_corners")
    yield case("image.resize2d", x, roi=(0.25, 2 / 6, 0.75, 4 / 6), size=(5, 5), symbolic=False,
               coordinate_transformation_mode="tf_crop_and_resize", expected=part)  # fmt: skip
    small = integers(0, 255, 1, 1, 4, 4, dtype="uint8")
    yield case("image.resize2d", small, roi=None, size=8, method="nearest_neighbor", symbolic=False,
               coordinate_transformation_mode="asymmetric", rounding_method="floor",
               expected=small.repeat(2, 2).repeat(2, 3))  # fmt: skip


def sampled(x: Array, y: float, z: float, method: str, padding: str, align: bool) -> Array:
    """[C, H, W] at one place, in pixels."""
    h, w = x.shape[1:]

    def bring(v: float, n: int) -> float:
        if padding == "border":
            return min(max(v, 0), n - 1)
        if padding == "reflection":
            low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
            turns, rest = divmod(abs(v - low), span)
            return min(max((rest if turns % 2 == 0 else span - rest) + low, 0), n - 1)
        return v

    def pixel(i: float, j: float) -> Array:
        return x[:, int(i), int(j)] if 0 <= i < h and 0 <= j < w else np.zeros(len(x))

    if method == "bicubic":
        total = np.zeros(len(x))
        for a, b in itertools.product(range(-1, 3), repeat=2):
            i, j = np.floor(y) + a, np.floor(z) + b
            weight = 1.0
            for v, at in ((y, i), (z, j)):
                d = abs(v - at)
                near = 1.25 * d**3 - 2.25 * d**2 + 1
                weight *= near if d <= 1 else -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
            total += pixel(bring(i, h), bring(j, w)) * weight
        return total
    y, z = bring(y, h), bring(z, w)
    if method == "nearest":
        return pixel(np.round(y), np.round(z))
    i, j = np.floor(y), np.floor(z)
    dy, dz = y - i, z - j
    return (pixel(i, j) * (1 - dz) + pixel(i, j + 1) * dz) * (1 - dy) + (
        pixel(i + 1, j) * (1 - dz) + pixel(i + 1, j + 1) * dz
    ) * dy


def sampling() -> Iterator[Case]:
    """Places that are data."""
    x = normal(2, 3, 5, 6)
    grid = (normal(2, 2, 4, 3) * 0.9).astype("float32")
    for method, padding, align in itertools.product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (True, False)
    ):
        expected = np.zeros((2, 3, 4, 3))
        for n, i, j in np.ndindex(2, 4, 3):
            gx, gy = grid[n, :, i, j]
            if align:
                gx, gy = (gx + 1) * 2.5, (gy + 1) * 2
            else:
                gx, gy = ((gx + 1) * 6 - 1) / 2, ((gy + 1) * 5 - 1) / 2
            expected[n, :, i, j] = sampled(x[n], gy, gx, method, padding, align)
        yield case(
            "image.grid_sample",
            x,
            grid,
            method=method,
            padding_mode=padding,
            align_corners=align,
            symbolic=(5, 6) if align and padding == "zeros" else False,
            expected=expected.astype("float32"),
            tolerance=1e-4,
        )
    volume, still = normal(1, 2, 3, 4, 3), np.zeros((1, 3, 3, 4, 3), "float32")
    still[0] = np.stack(
        np.meshgrid(
            np.linspace(-1, 1, 3), np.linspace(-1, 1, 4), np.linspace(-1, 1, 3), indexing="ij"
        )
    )[::-1]
    yield case(
        "image.grid_sample",
        volume,
        still,
        layout="NCDHW",
        symbolic=False,
        expected=volume,
        tolerance=1e-4,
    )
    maps = normal(2, 2, 3)
    ys, xs = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5), indexing="ij")
    homogeneous = np.stack([xs, ys, np.ones_like(xs)]).astype("float32")
    yield case("image.affine_grid", maps, target_shape=(4, 5), symbolic=False,
               expected=np.einsum("nij,jhw->nihw", maps, homogeneous))  # fmt: skip
    boxes = np.array([[0, 0, 1, 1], [0.25, 0.5, 0.75, 1.5], [1, 1, 0, 0]], "float32")
    which = np.array([0, 1, 1], "int32")
    for method in ("bilinear", "nearest_neighbor"):
        cut = np.full((3, 3, 4, 3), 2.5)
        for b, i, j in np.ndindex(3, 4, 3):
            y1, x1, y2, x2 = boxes[b]
            y, z = y1 * 4 + i * (y2 - y1) * 4 / 3, x1 * 5 + j * (x2 - x1) * 5 / 2
            if 0 <= y <= 4 and 0 <= z <= 5:
                kind = "bilinear" if method == "bilinear" else "nearest"
                cut[b, :, i, j] = sampled(x[which[b]], y, z, kind, "border", True)
        yield case(
            "image.crop_and_resize",
            x,
            boxes,
            which,
            crop_size=(4, 3),
            method=method,
            extrapolation_value=2.5,
            symbolic=False,
            expected=cut.astype("float32"),
        )
    filters = normal(3, 2, 3)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), (2, 3))[:, :, ::2]
    grown = (windows + filters[:, None, None]).max((-1, -2)).astype("float32")
    options = {"stride": (2, 1), "padding": (1, 1, 0, 1), "dilations": 1}
    yield case("image.dilation2d_nchw", x, filters, **options, symbolic=(5, 6), expected=grown)
    yield case("image.dilation2d_nhwc", x.transpose(0, 2, 3, 1), filters.transpose(1, 2, 0),
               **options, symbolic=(5, 6), expected=grown.transpose(0, 2, 3, 1))  # fmt: skip


def iou(a: Array, b: Array) -> float:
    """Of boxes whose corners may come in any order."""
    low_a, high_a = np.minimum(a[:2], a[2:]), np.maximum(a[:2], a[2:])
    low_b, high_b = np.minimum(b[:2], b[2:]), np.maximum(b[:2], b[2:])
    shared = np.maximum(np.minimum(high_a, high_b) - np.maximum(low_a, low_b), 0).prod()
    union = (high_a - low_a).prod() + (high_b - low_b).prod() - shared
    return float(shared / union) if union > 0 else 0.0


def greedy(
    boxes: Array, scores: Array, limit: float, most: int, same: Array | None = None
) -> list[int]:
    """The boxes that stay, from highest score."""
    kept: list[int] = []
    for n in np.argsort(-scores, kind="stable"):
        rivals = [k for k in kept if same is None or same[k] == same[n]]
        if len(kept) < most and all(iou(boxes[n], boxes[k]) <= limit for k in rivals):
            kept.append(int(n))
    return kept


def random_boxes(*shape: int) -> Array:
    """Boxes that often overlap."""
    corner = np.random.default_rng(5).uniform(0, 6, (*shape, 2))
    size = np.random.default_rng(6).uniform(1, 5, (*shape, 2))
    return np.concatenate([corner, corner + size], -1).astype("float32")


def suppression() -> Iterator[Case]:
    """Which boxes stay."""
    data = np.concatenate(
        [integers(-1, 3, 2, 9, 1, dtype="float32"), np.abs(normal(2, 9, 1)), random_boxes(2, 9)], -1
    )
    counted, moved, places = (
        np.zeros(2, "int32"),
        np.full_like(data, -1),
        np.full((2, 9), -1, "int32"),
    )
    for b in range(2):
        keep = np.flatnonzero((data[b, :, 1] > 0.3) & (data[b, :, 0] >= 0))
        counted[b], moved[b, : len(keep)], places[b, : len(keep)] = len(keep), data[b, keep], keep
    yield case(
        "vision.get_valid_counts", data, score_threshold=0.3, expected=(counted, moved, places)
    )
    yield case(
        "vision.get_valid_counts",
        data,
        np.asarray(0.3, "float32"),
        expected=(counted, moved, places),
    )
    for force, most, top in ((False, -1, -1), (True, 3, -1), (True, -1, 4)):
        chosen, number, rows = (
            np.full((2, 9), -1, "int32"),
            np.zeros((2, 1), "int32"),
            np.full_like(data, -1),
        )
        gaps = np.full_like(data, -1)
        for b in range(2):
            valid = moved[b, : counted[b]]
            order = np.argsort(-valid[:, 1], kind="stable")
            order = order[:top] if top > 0 else order
            result = greedy(valid[order, 2:], valid[order, 1], 0.3, most if most > 0 else 99,
                           None if force else valid[order, 0])  # fmt: skip
            number[b] = len(result)
            chosen[b, : len(result)] = places[b, order[result]]
            rows[b, : len(result)] = valid[order[result]]
            gaps[b, result] = valid[order[result]]
        options = {
            "max_output_size": most,
            "iou_threshold": 0.3,
            "force_suppress": force,
            "top_k": top,
        }
        inputs = moved, counted, places
        yield case("vision.non_max_suppression", *inputs, **options, expected=(chosen, number))
        yield case(
            "vision.non_max_suppression",
            *inputs,
            **options,
            return_indices=False,
            invalid_to_bottom=True,
            expected=rows,
        )
        yield case(
            "vision.non_max_suppression", *inputs, **options, return_indices=False, expected=gaps
        )
    boxes, scores = random_boxes(2, 7), np.abs(normal(2, 3, 7))
    rows, pairs = [], []
    for b in range(2):
        actual = []
        for c in range(3):
            able = np.flatnonzero(scores[b, c] > 0.2)
            result = able[greedy(boxes[b, able], scores[b, c, able], 0.4, 4)]
            rows += [(b, c, n) for n in result]
            actual += [(float(scores[b, c, n]), c, n) for n in result]
        pairs.append(actual)
    padded_rows = np.zeros((42, 3), "int64")
    padded_rows[: len(rows)] = rows
    limits = {"max_output_boxes_per_class": 4, "iou_threshold": 0.4, "score_threshold": 0.2}
    onnx = padded_rows, np.array([len(rows)])
    yield case("vision.all_class_non_max_suppression", boxes, scores, **limits, expected=onnx)
    bounds = np.array([4]), np.array([0.4], "float32"), np.array([0.2], "float32")
    yield case("vision.all_class_non_max_suppression", boxes, scores, *bounds, expected=onnx)
    places_of, score_of, many = (
        np.zeros((2, 21, 2), "int64"),
        np.zeros((2, 21), "float32"),
        np.zeros(2, "int64"),
    )
    for b, actual in enumerate(pairs):
        many[b] = len(actual)
        for n, (score, c, box) in enumerate(actual):
            places_of[b, n], score_of[b, n] = (c, box), score
    yield case(
        "vision.all_class_non_max_suppression",
        boxes,
        scores,
        **limits,
        output_format="tensorflow",
        expected=(places_of, score_of, many),
    )


def anchors() -> Iterator[Case]:
    """Anchor boxes and detections."""
    x = normal(1, 2, 3, 4)
    sizes, ratios = (0.5, 0.25), (4.0, 2.0)  # the first ratio stands for the squares
    prior = np.zeros((1, 3, 4, 3, 4))
    for y, z in np.ndindex(3, 4):
        for k, (size, ratio) in enumerate([(0.5, 1.0), (0.25, 1.0), (0.5, 2.0)]):
            cx, cy = (z + 0.5) / 4, (y + 0.5) / 3
            half_w, half_h = size * 3 / 4 * np.sqrt(ratio) / 2, size / np.sqrt(ratio) / 2
            prior[0, y, z, k] = cx - half_w, cy - half_h, cx + half_w, cy + half_h
    flat = prior.reshape(1, 36, 4).astype("float32")
    yield case(
        "vision.multibox_prior", x, sizes=sizes, ratios=ratios, symbolic=(3, 4), expected=flat
    )
    yield case(
        "vision.multibox_prior",
        x,
        sizes=sizes,
        ratios=ratios,
        clip=True,
        symbolic=False,
        expected=flat.clip(0, 1),
    )
    probability = np.abs(normal(2, 3, 36)).astype("float32")
    probability /= probability.sum(1, keepdims=True)
    moves = (normal(2, 144) * 0.5).astype("float32")
    valid, rows = np.zeros(2, "int32"), np.full((2, 36, 6), -1, "float32")
    for b in range(2):
        for n in range(36):
            best = 1 + int(probability[b, 1:, n].argmax())
            if probability[b, best, n] < 0.5:
                continue
            left, top, right, bottom = flat[0, n]
            m = moves[b, 4 * n : 4 * n + 4]
            cx = m[0] * 0.1 * (right - left) + (left + right) / 2
            cy = m[1] * 0.1 * (bottom - top) + (top + bottom) / 2
            w, h = np.exp(m[2] * 0.2) * (right - left) / 2, np.exp(m[3] * 0.2) * (bottom - top) / 2
            box = np.clip([cx - w, cy - h, cx + w, cy + h], 0, 1)
            rows[b, valid[b]] = best - 1, probability[b, best, n], *box
            valid[b] += 1
    inputs = probability, moves, flat
    yield case(
        "vision.multibox_transform_loc",
        *inputs,
        threshold=0.5,
        symbolic=False,
        expected=(rows, valid),
    )
    kept = np.full_like(rows, -1)
    for b in range(2):
        actual = rows[b, : valid[b]]
        order = np.argsort(-actual[:, 1], kind="stable")
        result = greedy(actual[order, 2:], actual[order, 1], 0.4, 99, actual[order, 0])
        kept[b, result] = actual[order[result]]
    yield case(
        "vision.multibox_detection",
        *inputs,
        threshold=0.5,
        nms_threshold=0.4,
        symbolic=False,
        expected=kept,
    )
    yield from proposals()


def proposals() -> Iterator[Case]:
    """Regions of a region proposal network: two anchors of one ratio on 3 x 4 pixels; all of the
    image, and one that ends before the last column and whose boxes are mostly too small.
    """
    yield proposal_case(64, 12, 1)
    yield proposal_case(50, 10, 2.5)


def proposal_case(width: int, least: int, scale: float) -> Case:
    """Of an image of 48 rows; boxes must have sides of `least` times `scale` pixels."""
    score, move = np.abs(normal(1, 4, 3, 4)), (normal(1, 8, 3, 4) * 0.2).astype("float32")
    info = np.array([[48, width, scale]], "float32")
    boxes, marks = [], []
    least_side = least * scale
    for y, x, k in np.ndindex(3, 4, 2):
        side = 16 * (1, 2)[k]
        left, top = 7.5 - (side - 1) / 2 + x * 16, 7.5 - (side - 1) / 2 + y * 16
        dx, dy, dw, dh = move[0, 4 * k : 4 * k + 4, y, x]
        cx, cy = left + (side - 1) / 2 + dx * side, top + (side - 1) / 2 + dy * side
        w, h = (np.exp(dw) * side - 1) / 2, (np.exp(dh) * side - 1) / 2
        box = np.clip([cx - w, cy - h, cx + w, cy + h], 0, [width - 1, 47, width - 1, 47])
        small = min(box[2] - box[0], box[3] - box[1]) + 1 < least_side
        boxes.append(box + np.array([-1, -1, 1, 1]) * small * least_side / 2)
        marks.append(-1.0 if small or x >= width // 16 else score[0, 2 + k, y, x])
    extents = np.add(boxes, (0, 0, 1, 1))
    result = greedy(extents, np.array(marks), 0.5, 6)
    rows = np.array([[0, *boxes[result[n % len(result)]]] for n in range(6)], "float32")
    return case(
        "vision.proposal",
        score,
        move,
        info,
        scales=(1, 2),
        ratios=(1.0,),
        feature_stride=16,
        threshold=0.5,
        rpn_pre_nms_top_n=24,
        rpn_post_nms_top_n=6,
        rpn_min_size=least,
        iou_loss=False,
        symbolic=False,
        expected=rows,
        tolerance=1e-4,
    )


def regions() -> Iterator[Case]:
    """Regions pooled to one size."""
    x = normal(2, 3, 8, 9)
    rois = np.array([[0, 1, 1, 6, 7], [1, 0.5, 2, 4.25, 3], [1, -2, -2, 12, 12]], "float32")
    for mode, ratio, aligned in (
        ("avg", 2, False),
        ("avg", -1, False),
        ("max", 2, False),
        ("avg", 2, True),
    ):
        expected = np.zeros((3, 3, 2, 3))
        for r, c, i, j in np.ndindex(3, 3, 2, 3):
            image, *edges = rois[r]
            left, top, right, bottom = np.array(edges) * 0.5 - (0.5 if aligned else 0)
            w, h = right - left, bottom - top
            if not aligned:
                w, h = max(w, 1), max(h, 1)
            rows = ratio if ratio > 0 else int(np.ceil(h / 2))
            columns = ratio if ratio > 0 else int(np.ceil(w / 3))
            values = []
            for a, b in np.ndindex(rows, columns):
                y, z = (
                    top + h / 2 * (i + (a + 0.5) / rows),
                    left + w / 3 * (j + (b + 0.5) / columns),
                )
                inside = -1 <= y <= 8 and -1 <= z <= 9
                one = sampled(
                    x[int(image), c : c + 1],
                    min(max(y, 0), 7),
                    min(max(z, 0), 8),
                    "bilinear",
                    "border",
                    True,
                )
                values.append(float(one[0]) if inside else 0.0)
            expected[r, c, i, j] = np.mean(values) if mode == "avg" else np.max(values)
        options = {
            "pooled_size": (2, 3),
            "spatial_scale": 0.5,
            "mode": mode,
            "sample_ratio": ratio,
            "aligned": aligned,
        }
        actual = expected.astype("float32")
        yield case("vision.roi_align_nchw", x, rois, **options, symbolic=(8, 9), expected=actual)
        yield case("vision.roi_align_nhwc", x.transpose(0, 2, 3, 1), rois, **options,
                   symbolic=False, expected=actual.transpose(0, 2, 3, 1))  # fmt: skip
    pooled = np.zeros((3, 3, 2, 2), "float32")
    for r, i, j in np.ndindex(3, 2, 2):
        image = int(rois[r, 0])
        x0, y0, x1, y1 = np.sign(rois[r, 1:]) * np.floor(np.abs(rois[r, 1:]) + 0.5)
        h, w = max(y1 - y0 + 1, 1) / 2, max(x1 - x0 + 1, 1) / 2
        top, bottom = np.clip([y0 + np.floor(i * h), y0 + np.ceil((i + 1) * h)], 0, 8).astype(int)
        left, right = np.clip([x0 + np.floor(j * w), x0 + np.ceil((j + 1) * w)], 0, 9).astype(int)
        part = x[image, :, top:bottom, left:right]
        pooled[r, :, i, j] = part.max((1, 2)) if part.size else 0
    yield case(
        "vision.roi_pool_nchw",
        x,
        rois,
        pooled_size=2,
        spatial_scale=1.0,
        symbolic=(8, 9),
        expected=pooled,
    )
    image = normal(1, 4, 4, 6)
    flat, actual = image.ravel(), np.zeros(96, "float32")
    for n, (k, j, i) in enumerate(np.ndindex(4, 4, 6)):
        actual[n] = flat[i * 2 + k % 2 + 12 * (j * 2 + k // 2)]
    yield case(
        "vision.reorg", image, stride=2, symbolic=False, expected=actual.reshape(1, 16, 2, 3)
    )


CASES: dict[str, list[Case]] = {
    f.__name__: list(f()) for f in (resizes, sampling, suppression, anchors, regions)
}


@share(3)
@every_backend
@pytest.mark.parametrize("family", CASES)
def test_detection_operators_match_numpy(family: str, backend: str) -> None:
    check(CASES[family], backend)


def test_detection_operators_refuse_invalid_arguments() -> None:
    x = te.placeholder((1, 2, 3, 4))
    for make, message in (
        (lambda: topi.image.resize2d(x, None, (1, 2, 3)), "resize2d: expected 2 spatial axes"),
        (
            lambda: topi.image.resize2d(x, None, 4, method="lanczos"),
            "method must be one of nearest_neighbor",
        ),
        (
            lambda: topi.image.resize2d(
                x, None, 4, coordinate_transformation_mode="tf_crop_and_resize"
            ),
            "needs 4 numbers in roi",
        ),
        (
            lambda: topi.image.grid_sample(x, x, "cubic"),
            "expected a method of nearest, bilinear, bicubic",
        ),
        (
            lambda: topi.image.grid_sample(x, x, "bicubic", "NCDHW"),
            "no bicubic sampling for layout 'NCDHW'",
        ),
        (
            lambda: topi.image.crop_and_resize(x, x, x, (1, 1), method="x"),
            "method must be one of bilinear",
        ),
        (
            lambda: topi.vision.roi_align_nchw(x, x, 2, 1.0, "sum"),
            "mode must be avg, max or max_tap, got 'sum'",
        ),
        (
            lambda: topi.vision.all_class_non_max_suppression(x, x, 1, 0.5, 0.5, "torch"),
            "must be onnx or tensorflow",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
