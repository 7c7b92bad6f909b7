"""Networks of `relay.testing`, and what importers give: built, printed, read back, run."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden as tvm
from ekiden import relay
from ekiden.ir import assert_structural_equal
from ekiden.relay import testing
from ekiden.relay.testing import init

SMALL = {
    "mlp": (testing.mlp, (2,), {}),
    "resnet": (testing.resnet, (1, 10, 8, (3, 16, 16)), {}),
    "resnet of bottlenecks": (testing.resnet, (1, 10, 50, (3, 64, 64)), {}),
    "resnet in NHWC": (testing.resnet, (1, 10, 8, (16, 16, 3), "float32", "NHWC"), {}),
    "inception v3": (testing.inception_v3, (1, 10, (3, 75, 75)), {}),
    "mobilenet in NHWC": (testing.mobilenet, (1, 10, (32, 32, 3), "float32", "NHWC"), {}),
    "mobilenet": (testing.mobilenet, (1, 10, (3, 32, 32)), {}),
    "dqn": (testing.dqn, (1,), {}),
    "squeezenet 1.0": (testing.squeezenet, (1, 10, "1.0", (3, 64, 64)), {}),
    "squeezenet 1.1": (testing.squeezenet, (1, 10, "1.1", (3, 64, 64)), {}),
    "densenet": (testing.densenet, (121, 10, 1, (3, 32, 32)), {}),
    "lstm": (testing.lstm, (1, 4), {}),
}


@pytest.mark.parametrize("name", SMALL)
def test_network_reads_back(name: str) -> None:
    home, args, named = SMALL[name]
    module, params = home.get_workload(*args, **named)
    assert_structural_equal(relay.parse(module.astext()), module)
    names = {p.name_hint for p in module["main"].params}
    assert names - set(params) == {"data"}
    assert all(p.numpy().dtype == "float32" for p in params.values())


@pytest.mark.parametrize("name", ["mlp", "dqn", "lstm"])
def test_network_runs_alike_in_both_executors(name: str) -> None:
    home, args, _ = SMALL[name]
    module, params = home.get_workload(*args)
    (data,) = (p for p in module["main"].params if p.name_hint == "data")
    x = np.random.default_rng(1).standard_normal(data.type_annotation.concrete_shape)
    results = [
        relay.create_executor(kind, module, params=params).evaluate()(data=x.astype("float32"))
        for kind in ("debug", "vm")
    ]
    np.testing.assert_allclose(results[0].numpy(), results[1].numpy(), rtol=1e-4, atol=1e-5)


def _in_nhwc(name: str, value: np.ndarray) -> np.ndarray:
    """Return a value of an NCHW network as its NHWC network takes it."""
    if value.ndim != 4:
        return value
    if name == "data":
        return value.transpose(0, 2, 3, 1)
    is_depthwise = "depthwise" in name
    return value.transpose(2, 3, 0, 1) if is_depthwise else value.transpose(2, 3, 1, 0)


@pytest.mark.parametrize(
    ("home", "args", "shape"),
    [(testing.resnet, (1, 10, 8), (3, 16, 16)), (testing.mobilenet, (1, 10), (3, 32, 32))],
    ids=["resnet", "mobilenet"],
)
def test_network_computes_the_same_in_both_layouts(
    home: object, args: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    module, params = home.get_workload(*args, shape)
    other, other_params = home.get_workload(*args, (*shape[1:], shape[0]), layout="NHWC")
    feed = {name: param.numpy() for name, param in params.items()}
    feed["data"] = np.random.default_rng(1).standard_normal((1, *shape)).astype("float32")
    moved = {name: np.ascontiguousarray(_in_nhwc(name, value)) for name, value in feed.items()}
    shapes = {name: value.shape for name, value in moved.items() if name != "data"}
    assert shapes == {name: param.shape for name, param in other_params.items()}
    run = relay.create_executor("debug", module).evaluate()
    run_other = relay.create_executor("debug", other).evaluate()
    np.testing.assert_allclose(run_other(**moved).numpy(), run(**feed).numpy(), rtol=1e-4)


def test_inception_v3_has_its_layers() -> None:
    counts = testing.count_ops(testing.inception_v3.get_net(1, 1000, (3, 299, 299), "float32"))
    assert counts["nn.conv2d"] == 94 and counts["concatenate"] == 11
    # Its published size: 23.8 million parameters; here the scales of normalisations count too.
    _, params = testing.inception_v3.get_workload()
    assert 23.8e6 < sum(param.numpy().size for param in params.values()) < 23.9e6


def test_vgg_has_its_layers() -> None:
    net = testing.vgg.get_net(1, num_layers=16, batch_norm=True)
    counts = testing.count_ops(net)
    assert counts["nn.conv2d"] == 13 and counts["nn.dense"] == 3 and counts["nn.batch_norm"] == 13


REFUSED = [
    (
        lambda: testing.resnet.get_net(1, num_layers=19),
        "resnet: no network of 19 layers; there are",
    ),
    (
        lambda: testing.resnet.get_net(1, 10, 9, (3, 28, 28)),
        "small images take 6n \\+ 2 layers, got 9",
    ),
    (lambda: testing.vgg.get_net(1, num_layers=12), "vgg: no network of 12 layers"),
    (lambda: testing.densenet.get_net(122), "densenet: no network of 122 layers"),
    (
        lambda: testing.squeezenet.get_net(1, version="2"),
        "squeezenet: no version '2'; there are 1.0",
    ),
    (lambda: init.Xavier("normal"), "Xavier: no such kind: 'normal', 'avg'"),
    (lambda: init.Xavier()("w_weight", np.zeros(3)), "Xavier: 'w_weight' must have 2 dimensions"),
    (lambda: init.Xavier()("w", np.zeros(3)), "expected a name that ends with weight, bias"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_unsupported_network_arguments_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_parameters_come_from_the_seed() -> None:
    first, second = (testing.mlp.get_workload(1)[1]["fc1_weight"].numpy() for _ in range(2))
    np.testing.assert_equal(first, second)
    bound = np.sqrt(3 / ((784 + 128) / 2))
    assert np.abs(first).max() <= bound and np.abs(first).max() > 0.9 * bound
    net = testing.mlp.get_net(1)
    params = testing.create_workload(net, init.Constant())[1]
    np.testing.assert_allclose(params["fc2_weight"].numpy(), 1 / (64 * 128))


def test_testing_helpers_work() -> None:
    x = relay.var("x", shape=(2,))
    assert testing.run_infer_type(relay.exp(x)).checked_type == relay.TensorType((2,))
    typed = testing.run_opt_pass(relay.Function([x], x), relay.transform.InferType())
    assert isinstance(typed, relay.Function) and typed.ret_type == relay.TensorType((2,))
    assert testing.rand("float16", 2, 3).numpy().shape == (2, 3)


def test_gradients_are_compared_with_differences() -> None:
    x = relay.var("x", shape=(2,), dtype="float64")
    testing.check_grad(relay.Function([x], relay.exp(x) * x))
    y = relay.var("y", shape=(), dtype="float64")
    far = [np.array(0.3), np.array(0.7)]
    testing.check_grad(relay.Function([y, relay.var("z", "float64")], y * y), far, far[:1])
    with pytest.raises(AssertionError):
        testing.check_grad(relay.Function([y], relay.abs(y)), [np.array(1e-9)], eps=1e-3)
    for kind in ("debug", "vm"):
        devices = [("llvm", tvm.cpu())]
        testing.check_grad(
            relay.Function([x], relay.exp(x)), executor_kind=kind, target_devices=devices
        )


def test_logsumexp_of_large_and_infinite_numbers() -> None:
    x = relay.var("x", shape=(2, 3))
    rows = np.array([[1000, 1000, -np.inf], [-np.inf, -np.inf, -np.inf]], "float32")
    for call, expected in (
        (relay.logsumexp(x, 1), [1000 + np.log(2), -np.inf]),
        (relay.logsumexp(x, axis=[0, 1]), 1000 + np.log(2)),
        (relay.logsumexp(x, keepdims=True), [[1000 + np.log(2)]]),
    ):
        run = relay.create_executor("vm", tvm.IRModule.from_expr(relay.Function([x], call)))
        np.testing.assert_allclose(run.evaluate()(rows).numpy(), expected, rtol=1e-6)


def test_operator_attributes_round_trip() -> None:
    operator = relay.op.get("nn.relu")
    assert operator.has_attr("TOpPattern") and not operator.has_attr("mine")
    operator.set_attr("mine", 3)
    assert operator.has_attr("mine") and operator.get_attr("mine") == 3
    operator.reset_attr("mine")
    operator.reset_attr("mine")
    assert operator.get_attr("mine") is None


def test_spans_of_the_printed_text() -> None:
    module = relay.parse("def @main(%x: float32) { add(%x, 1f) }")
    body = relay.transform.AnnotateSpans()(module)["main"].body
    assert (body.span.line, body.span.column) == (3, 3)
    assert (body.args[1].span.line, body.args[1].span.column) == (3, 11)
    assert relay.transform.InferTypeLocal(body) == relay.scalar_type("float32")


def test_cells_of_a_chain_have_inputs_of_their_own() -> None:
    module, params = testing.lstm.get_workload(iterations=3, num_hidden=4)
    names = [p.name_hint for p in module["main"].params]
    inputs = {"data", "data1", "data2"}
    assert set(names) == inputs | set(params) and len(set(names)) == len(names)
    arguments = {name: np.full((1, 4), i, np.float32) for i, name in enumerate(sorted(inputs))}
    run = relay.create_executor("vm", module).evaluate()
    assert run(**arguments, **params).shape == (1, 4)
