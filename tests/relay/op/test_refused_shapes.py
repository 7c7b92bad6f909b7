"""Arguments whose kernels would read outside of a buffer: each was found by the fuzzer of
operators, and is a type error now, or an error of the run where dimensions are symbols.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.relay.transform import InferType
from ekiden.runtime.errors import IndexRangeError, InputError, RunError, TypeInferenceError

pytestmark = pytest.mark.quick
Build = Callable[..., Expr]
KEY = "uint64"

# fmt: off
ROWS: list[tuple[Build, list[tuple[tuple[int, ...], str]], str]] = [
    (lambda x, o, w: op.nn.deformable_conv2d(x, o, w, padding=(1, 1), deformable_groups=2, groups=2,
                                             channels=2, kernel_size=(3, 3)),
     [((1, 4, 6, 5), "float32"), ((1, 18, 6, 5), "float32"), ((2, 2, 3, 3), "float32")],
     "nn.deformable_conv2d: 'offset' must have shape (1, 36, 6, 5)"),
    (lambda x, g: op.image.grid_sample(x, g),
     [((1, 1, 2, 3), "float32"), ((1, 1, 4, 3), "float32")],
     "'grid' must have shape (1, 2, ?, ?), got (1, 1, 4, 3)"),
    (lambda x: op.image.affine_grid(x, (5, 5)), [((1, 1, 3), "float32")],
     "'data' must have shape (?, 2, 3), got (1, 1, 3)"),
    (lambda k: op.random.threefry_generate(k, (3, 5)), [((7,), KEY)],
     "'key' must have shape (10), got (7,)"),
    (lambda d, b: op.nn.fifo_buffer(d, b, 2), [((3, 3, 4), "float32"), ((3, 5, 4), "float32")],
     "'data' must have shape (3, 5, 4), got (3, 3, 4)"),
    (lambda a, b: op.slice_like(a, b, (1,)), [((5, 3), "float32"), ((9, 4), "float32")],
     "'data' must have at least 4 elements along axis 1, got 3"),
    (lambda x, r: op.vision.roi_pool(x, r, (2, 2), 1.0),
     [((2, 3, 8, 5), "float32"), ((2, 2), "float32")],
     "'rois' must have shape (?, 5), got (2, 2)"),
    (lambda x: op.vision.yolo_reorg(x, 2), [((8, 3, 3, 6), "float32")],
     "'data' must have shape (0, 0, 0), got (3, 1, 0)"),
    (lambda x: op.image.resize2d(x, (3, 5)), [((1, 1, 0, 3), "float32")],
     "'data' must have at least 1 elements along axis 2, got 0"),
    (lambda x: op.argmax(x, 1), [((3, 0), "float32")],
     "argmax: 'data' must have at least 1 elements along axis 1, got 0"),
    (lambda x: op.nn.max_pool2d(x, (9, 9)), [((1, 1, 3, 3), "float32")],
     "a window that reaches over 9 elements does not fit an axis of 3 with its padding"),
    (lambda x, w: op.nn.group_norm(x, w, w, 0), [((2, 4), "float32"), ((4,), "float32")],
     "4 channels on axis 1 do not form 0 groups"),
    (lambda x: op.squeeze(x, (2, 2)), [((1, 3, 1), "float32")], "an axis is there twice"),
    (lambda x: op.nn.dilate(x, (1, 0)), [((2, 3), "float32")], "'strides' must be positive, got 0"),
    (lambda x: op.nn.batch_to_space_nd(x, (2, 3), ((-1, -255), (1, 2))),
     [((12, 2, 3, 3), "float32")], "'crops' must not be negative, got -1"),
    (lambda x: op.nn.space_to_batch_nd(x, (2, 2), ((-1, 0), (1, 0))),
     [((2, 4, 4), "float32")], "'paddings' must not be negative, got -1"),
    (lambda x: op.nn.space_to_batch_nd(x, (-1, -1), ((0, 0), (0, 0))),
     [((2, 4, 4), "float32")], "'block_shape' must be positive, got -1"),
    (lambda x: op.nn.batch_to_space_nd(x, (2, 2), ((0, 0),)),
     [((4, 4, 4), "float32")], "2 crops expected, got 1"),
    (lambda x: op.cast(x, ""), [((2,), "float32")], "the result cannot have dtype ''"),
]
# fmt: on


@pytest.mark.parametrize(("build", "types", "message"), ROWS)
def test_mismatched_shapes_are_type_errors(
    build: Build, types: list[tuple[tuple[int, ...], str]], message: str
) -> None:
    params = [relay.var(f"x{n}", shape=s, dtype=t) for n, (s, t) in enumerate(types)]
    with pytest.raises(TypeInferenceError) as error:
        InferType()(ekiden.IRModule.from_expr(relay.Function(params, build(*params))))
    assert message in str(error.value)


def test_assumed_sizes_are_checked_at_run_time() -> None:
    n = te.size_var("n")
    x, like = relay.var("x", shape=(n,)), relay.var("y", shape=(4,))
    exe = ekiden.compile(
        ekiden.IRModule.from_expr(relay.Function([x, like], op.slice_like(x, like)))
    )
    data = np.arange(6, dtype="float32")
    np.testing.assert_array_equal(np.asarray(exe(data, data[:4])), data[:4])
    with pytest.raises(InputError, match=r"needs 4 <= n; n is 3|needs n >= 4; n is 3"):
        exe(data[:3], data[:4])


def test_narrow_panels_of_a_weight_get_the_default_rule() -> None:
    """With AVX-512 the kernel of convolutions reads vectors of at least 8 elements."""
    x, w = relay.var("x", shape=(1, 4, 4, 3)), relay.var("w", shape=(2, 1, 1, 3, 4))
    body = op.nn.conv2d(x, w, channels=6, kernel_size=(1, 1), data_layout="NHWC",
                        kernel_layout="OHWI4o")  # fmt: skip
    module = ekiden.IRModule.from_expr(relay.Function([x, w], body))
    exe = ekiden.compile(module, bounds="check")
    rng = np.random.default_rng(0)
    data, weight = (rng.random(s, dtype=np.float32) for s in ((1, 4, 4, 3), (2, 1, 1, 3, 4)))
    plain = weight.transpose(0, 4, 1, 2, 3).reshape(8, 3)[:6]
    np.testing.assert_allclose(np.asarray(exe(data, weight)), data @ plain.T, rtol=1e-5)


@pytest.mark.parametrize("kind", ["debug", "vm"])
def test_positions_of_other_operators_are_checked(kind: str) -> None:
    i = relay.var("i", shape=(3,), dtype="int64")
    shape = relay.var("s", shape=(2,), dtype="int64")
    flat, permuted = op.unravel_index(i, shape), op.invert_permutation(i)
    for params, body, argument, message in (
        ([i, shape], flat, ([0, 5, 6], [2, 3]),
         "unravel_index: position 6 at position 2 is out of range for 6 elements"
         " ([0, 5] are valid)"),
        ([i], permuted, ([0, 3, 1],),
         "invert_permutation: position 3 at position 1 is out of range ([0, 2] are valid)"),
    ):  # fmt: skip
        module = ekiden.IRModule.from_expr(relay.Function(params, body))
        run = relay.create_executor(kind, module).evaluate()
        with pytest.raises(IndexRangeError) as error:
            run(*(np.array(g, np.int64) for g in argument))  # type: ignore[operator]
        assert str(error.value) == message


def test_output_channels_are_a_multiple_of_groups() -> None:
    x, w = relay.var("x", shape=(2, 4, 11)), relay.var("w", shape=(7, 2, 3))
    module = ekiden.IRModule.from_expr(relay.Function([x, w], op.nn.conv1d(x, w, groups=2)))
    with pytest.raises(TypeInferenceError) as error:
        relay.transform.InferType()(module)
    message = "nn.conv1d: output channels must be a multiple of groups, got 7 and 2"
    assert str(error.value).startswith(message)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["debug", "vm"])
def test_convolutions_without_channels_are_refused(kind: str) -> None:
    x = relay.var("x", shape=(5, 0, 5))
    for weight, build, size in (
        ((0, 0, 0), op.nn.conv1d_transpose, 4),
        ((0, 2, 3), op.nn.conv1d_transpose, 7),
        ((2, 0, 3), op.nn.conv1d, 3),
    ):
        w = relay.var("w", shape=weight)
        module = ekiden.IRModule.from_expr(relay.Function([x, w], build(x, w)))
        run = relay.create_executor(kind, module).evaluate()
        result = run(np.zeros((5, 0, 5), np.float32), np.zeros(weight, np.float32)).numpy()
        out = weight[1] if build is op.nn.conv1d_transpose else weight[0]
        assert result.shape == (5, out, size)
        assert not result.any()


def test_interpreter_refuses_shapes_that_do_not_fit_as_a_run_does() -> None:
    """Of an operator that is interpreted as loops, and of one that NumPy computes."""
    x = relay.var("x", shape=(te.size_var("n"), te.size_var("k")))
    indices = relay.var("i", shape=(3, 1), dtype="int64")
    updates = relay.var("u", shape=(3, 1))
    positions = np.zeros((3, 1), "int64")
    ones = np.ones((3, 1), "float32")
    for call, data, message in (
        (op.scatter_elements(x, indices, updates, axis=1), ones[:1], "must not be longer"),
        (op.gather(x, 0, indices), ones[:, :0], "out of bounds"),
    ):
        params = [x, indices, updates]
        module = ekiden.IRModule.from_expr(relay.Function(params, call))
        run = relay.create_executor("debug", module).evaluate()
        with pytest.raises(RunError, match=message):
            run(data, positions, ones)
