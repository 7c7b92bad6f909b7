"""ConvertLayout to desired layouts, and AlterOpLayout by user rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS
from ekiden.relay.expr import Expr
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.testing import count_ops
from ekiden.relay.transform.infer_layout_utils import InferCorrectLayoutOutput
from ekiden.runtime.errors import CompileError

X = relay.var("x", shape=(2, 4, 7, 6))
W = relay.var("w", shape=(8, 4, 3, 3))


def conv(data: Expr = X, weight: Expr = W, **options: Any) -> Expr:  # noqa: ANN401
    return relay.nn.conv2d(data, weight, padding=1, **options)


def converted(expr: Expr, desired: dict[str, list[str]]) -> relay.Function:
    module = relay.transform.ConvertLayout(desired)(IRModule.from_expr(expr))
    result = relay.transform.InferType()(module)["main"]
    assert isinstance(result, relay.Function)
    return result


def check(expr: Expr, desired: dict[str, list[str]]) -> dict[str, int]:
    """The results stay; gives the operators of the converted program."""
    before = relay.transform.InferType()(IRModule.from_expr(expr))["main"]
    after = converted(expr, desired)
    assert before.checked_type == after.checked_type
    rng = np.random.default_rng(0)
    args = [rng.normal(size=p.checked_type.concrete_shape).astype("float32") for p in before.params]
    expected, actual = (Interpreter().evaluate(f, *args) for f in (before, after))
    flat = (
        [(expected, actual)]
        if isinstance(expected, np.ndarray)
        else zip(expected, actual, strict=True)
    )  # type: ignore[arg-type]
    for one, other in flat:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    return dict(count_ops(after))


NHWC = {"nn.conv2d": ["NHWC", "default"]}
FOLLOW: dict[str, Callable[[Expr], Expr]] = {
    "relu": relay.nn.relu,
    "bias": lambda y: relay.nn.bias_add(y, relay.var("b", shape=(8,))),
    "vector": lambda y: relay.add(y, relay.var("b", shape=(8, 1, 1))),
    "scalar": lambda y: relay.multiply(relay.const(2.0), y),
    "pool": lambda y: relay.nn.max_pool2d(y, pool_size=(2, 2)),
    "global pool": relay.nn.global_avg_pool2d,
    "mean": lambda y: relay.mean(y, axis=[2, 3]),
    "mean of others": lambda y: relay.sum(y, axis=[1], exclude=True, keepdims=True),
    "place": lambda y: relay.argmax(y, axis=[1]),
    "place in windows": lambda y: relay.argmax(y, axis=[2, 3]),
    "place in all": lambda y: relay.argmax(y),
    "place in a volume": lambda y: relay.argmin(y, axis=[1, 2, 3], keepdims=True),
    "concatenate": lambda y: relay.concatenate([y, relay.exp(y)], axis=1),
    "split": lambda y: relay.split(y, 2, axis=1)[1],
    "slice": lambda y: relay.strided_slice(y, [0, 1, 2], [2, 7, 5], [1, 2, 1]),
    "slice of axes": lambda y: relay.strided_slice(y, [1], [3], axes=[3]),
    "pad": lambda y: relay.nn.pad(y, ((0, 0), (1, 2), (0, 0), (3, 0))),
    "transpose": lambda y: relay.transpose(y, (0, 3, 1, 2)),
    "squeeze": lambda y: relay.squeeze(relay.nn.global_max_pool2d(y), axis=[2, 3]),
    "prelu": lambda y: relay.nn.prelu(y, relay.var("a", shape=(8,))),
    "lrn": lambda y: relay.nn.lrn(y, size=3),
    "resize": lambda y: relay.image.resize2d(y, (4, 9)),
    "upsampling": lambda y: relay.nn.upsampling(y, 2.0, 2.0),
    "flatten": relay.nn.batch_flatten,
    "softmax": lambda y: relay.nn.softmax(y, axis=1),
    "dense": lambda y: relay.nn.dense(relay.nn.batch_flatten(y), relay.var("d", shape=(3, 336))),
}


@pytest.mark.parametrize("name", FOLLOW)
def test_following_operators_take_the_layout(name: str) -> None:
    ops = check(FOLLOW[name](conv()), NHWC)
    assert ops["layout_transform"] >= 2


def test_consecutive_convolutions_share_one_transpose() -> None:
    second = relay.var("v", shape=(8, 8, 1, 1))
    body = relay.nn.conv2d(relay.nn.relu(conv()), second)
    ops = check(relay.add(body, conv(weight=relay.var("u", shape=(8, 4, 3, 3)))), NHWC)
    assert ops["layout_transform"] == 5  # data, three weights, and back


def test_named_weights_and_depthwise() -> None:
    function = converted(conv(), {"nn.conv2d": ["NHWC", "OHWI"]})
    assert 'kernel_layout="OHWI"' in str(function)
    depthwise = conv(weight=relay.var("w", shape=(4, 1, 3, 3)), groups=4)
    assert 'kernel_layout="HWOI"' in str(converted(depthwise, NHWC))
    check(depthwise, NHWC)


def test_pool_layouts_are_requested_separately() -> None:
    body = relay.nn.max_pool2d(conv(), pool_size=(2, 2))
    function = converted(body, {**NHWC, "nn.max_pool2d": ["NCHW"]})
    assert 'layout="NHWC"' not in str(function).split("nn.max_pool2d")[1].split("\n")[0]
    check(body, {**NHWC, "nn.max_pool2d": ["NCHW"]})


def test_weightless_operators_accept_desired_layouts() -> None:
    resized = relay.image.resize2d(X, (4, 9))
    assert 'layout="NHWC"' in str(converted(resized, {"image.resize2d": ["NHWC"]}))
    assert check(resized, {"image.resize2d": ["NHWC"]})["layout_transform"] == 2
    last = relay.image.resize2d(X, (4, 9), layout="NHWC")
    assert check(last, {"image.resize2d": ["NCHW"]})["layout_transform"] == 2


def test_argmax_indices_need_no_layout_conversion() -> None:
    body = relay.argmax(conv(), axis=[2, 3])
    assert check(body, NHWC)["layout_transform"] == 2
    assert check(relay.argmax(conv(), axis=[1, 2]), NHWC)["layout_transform"] == 3


def test_full_reductions_are_unchanged() -> None:
    assert "axis" not in str(converted(relay.sum(conv()), NHWC)).split("sum(")[1].split("\n")[0]


def test_indivisible_channels_are_not_blocked() -> None:
    second = relay.nn.conv2d(relay.nn.relu(conv()), relay.var("v", shape=(16, 8, 1, 1)))
    desired = {"nn.conv2d": ["NCHW8c", "OIHW8i8o"]}
    result = str(converted(second, desired))
    assert result.count('data_layout="NCHW8c"') == 1 and result.count("layout_transform") == 3
    check(second, desired)
    n = relay.SizeVar("n")
    open_ = conv(relay.var("x", shape=(1, n, 7, 6)), relay.var("w", shape=(8, n, 3, 3)))
    assert "NCHW8c" not in str(converted(open_, desired))
    many = conv(relay.var("x", shape=(n, 8, 7, 6)), relay.var("w", shape=(8, 8, 3, 3)))
    assert "NCHW8c" in str(converted(many, desired))


def test_wrong_layouts_are_told() -> None:
    with pytest.raises(CompileError, match="nn.conv2d: expected layouts of data and weight"):
        converted(conv(), {"nn.conv2d": ["NHWC"]})
    with pytest.raises(CompileError, match="the default weight layout is known for NCHW"):
        converted(conv(), {"nn.conv2d": ["NWHC", "default"]})
    with pytest.raises(CompileError, match="exp has no layout"):
        converted(relay.exp(X), {"exp": ["NHWC"]})


def test_selected_layers_keep_their_layout() -> None:
    body = relay.nn.conv2d(conv(), relay.var("v", shape=(8, 8, 1, 1)))
    with relay.transform.LayoutConfig(skip_layers=[0]) as config:
        function = converted(body, NHWC)
    assert config.skip_counter == 2 and str(function).count('data_layout="NHWC"') == 1


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a test; what modules register when they are first imported stays."""
    for attribute in ("FTVMAlterOpLayout", "FInferCorrectLayout"):
        monkeypatch.setitem(OP_ATTRS, attribute, dict(OP_ATTRS.get(attribute, {})))


def test_users_alteration(rules: None) -> None:
    @relay.op.register_alter_op_layout("nn.conv2d")
    def alter(attrs: Any, inputs: Sequence[Expr], infos: Sequence[Any], kind: object) -> Expr:  # noqa: ANN401
        assert [int(d) for d in infos[1].shape] == [8, 4, 3, 3]
        changed = {**attrs, "data_layout": "NHWC", "kernel_layout": "HWIO"}
        return relay.nn.conv2d(*inputs, **changed)

    body = relay.nn.relu(conv())
    module = relay.transform.AlterOpLayout()(IRModule.from_expr(body))
    ops = count_ops(relay.transform.InferType()(module)["main"])
    assert ops == {"layout_transform": 3, "nn.conv2d": 1, "nn.relu": 1}


def test_users_rule_for_what_follows(rules: None) -> None:
    def stays(attrs: Any, new: Any, old: Any, types: Any) -> InferCorrectLayoutOutput:  # noqa: ANN401
        return InferCorrectLayoutOutput(["NCHW"], ["NCHW"], attrs)

    relay.op.register_infer_correct_layout("nn.relu", stays)
    text = str(converted(relay.nn.relu(conv()), NHWC))
    assert text.index("nn.relu") > text.rindex("layout_transform")
