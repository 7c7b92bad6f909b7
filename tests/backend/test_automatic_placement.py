"""Cost-based device placement: minimum cut, copies counted once, operators bound to the host."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ekiden
from ekiden import relay
from ekiden.backend.vm.min_cut_placement import DeviceCosts, PlaceByCost
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import PLACEMENT_COSTS_OPTION, with_options
from ekiden.relay.analysis.minimum_cut import FlowNetwork
from ekiden.relay.expr import Call, RelayExpr
from ekiden.relay.op.annotation import OnDeviceAttrs
from ekiden.relay.visitor import post_order
from ekiden.target.virtual_device import compilation_config

HERE, THERE = 1, 4
"""DLPack's numbers of processors and of OpenCL."""
EQUAL = DeviceCosts((1e11, 1e11), (1e10, 1e10), (1e-6, 1e-6), (0, 0), 1e10, 1e10, 1e-5)
"""Both alike, so that a copy is never worth it."""
SLOW_HOST = replace(EQUAL, flops=(1e9, 1e12))
"""Products of any size are worth one."""


def places(body: RelayExpr, *params: relay.Var, costs: DeviceCosts) -> list[tuple[str, int]]:
    """The operators of a program in order, with the kind of device of each."""
    module = relay.transform.InferType()(IRModule.from_expr(relay.Function(params, body)))
    with with_options({PLACEMENT_COSTS_OPTION: asdict(costs)}):
        transformed = PlaceByCost(compilation_config({"cpu": "llvm", "opencl": "opencl"}))(module)
    result = []
    for item in post_order(transformed["main"].body, into_functions=True):
        if isinstance(item, Call) and isinstance(item.attrs, OnDeviceAttrs):
            result.append((item.args[0].op.name, item.attrs.virtual_device.device_type_int))
    return result


def weight(*shape: int) -> relay.Constant:
    return relay.const(np.ones(shape, "float32"))


X = relay.var("x", shape=(256, 256))


def test_operators_move_to_device_if_savings_exceed_copies() -> None:
    """Three products in a row are there, with what lies between them; the last sum comes back."""
    y = relay.nn.relu(relay.nn.dense(X, weight(256, 256)))
    y = relay.nn.dense(relay.tanh(relay.nn.dense(y, weight(256, 256))), weight(256, 256))
    result = dict(places(relay.sum(y), X, costs=SLOW_HOST))
    assert result["nn.dense"] == result["nn.relu"] == result["tanh"] == THERE
    assert {n for _, n in places(relay.sum(y), X, costs=EQUAL)} == {HERE}


def test_operators_stay_if_copies_cost_more() -> None:
    """A sum of few elements, whose copy costs more than the host takes for it."""
    small = relay.var("s", shape=(4,))
    result = places(relay.exp(small), small, costs=SLOW_HOST)
    assert result == [("exp", HERE)]


def test_value_is_copied_once_for_all_that_use_it() -> None:
    """Each of the three products alone would not pay for a copy of what it takes."""
    one = 2 * 256 * 256 * 16 / 1e9  # seconds of one product here
    costs = replace(
        SLOW_HOST, latency=0.0, copy_to_device=4 * 256 * 256 / (2.5 * one), copy_to_host=1e15
    )
    users = [relay.nn.dense(X, weight(16, 256)) for _ in range(3)]
    both = relay.concatenate([relay.sum(u, keepdims=True) for u in users], 0)
    assert [n for name, n in places(both, X, costs=costs) if name == "nn.dense"] == [THERE] * 3
    alone = relay.sum(users[0])
    assert [n for name, n in places(alone, X, costs=costs) if name == "nn.dense"] == [HERE]


def test_measured_operator_times_are_used() -> None:
    """A device that took a thousand times as long as its figures say has nothing to do."""
    y = relay.nn.dense(X, weight(256, 256))
    assert dict(places(y, X, costs=SLOW_HOST))["nn.dense"] == THERE
    slow = replace(SLOW_HOST, program=(1e-2, 1.0))
    assert dict(places(y, X, costs=slow))["nn.dense"] == HERE


def test_conditions_run_on_the_host() -> None:
    y = relay.nn.dense(X, weight(256, 256))
    chosen = relay.If(relay.sum(y) > relay.const(0.0), y, relay.negative(y))
    result = dict(places(chosen, X, costs=SLOW_HOST))
    assert result["nn.dense"] == THERE and result["greater"] in (HERE, THERE)


def test_program_placed_by_cost_computes_the_same(opencl_device: ekiden.Device) -> None:
    rng = np.random.default_rng(2)
    w = relay.const(rng.standard_normal((8, 64)).astype("float32"))
    x = relay.var("x", shape=(16, 64))
    y = relay.nn.relu(relay.nn.dense(x, w))
    module = IRModule.from_expr(relay.Function([x], y))
    given = rng.standard_normal((16, 64)).astype("float32")
    expected = ekiden.compile(module)(given).numpy()
    free = replace(SLOW_HOST, copy_to_device=1e12, copy_to_host=1e12, latency=0.0)
    with with_options({PLACEMENT_COSTS_OPTION: asdict(free)}):
        exe = ekiden.compile(module, [ekiden.cpu(0), opencl_device])
    np.testing.assert_allclose(exe(given).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert exe.raw.devices == [ekiden.cpu(0), opencl_device]


@pytest.fixture
def opencl_device() -> ekiden.Device:
    """The first OpenCL device."""
    result = ekiden.device("opencl", 0)
    if not result.exist:
        pytest.skip("needs an OpenCL driver: apt-get install pocl-opencl-icd")
    return result


@given(st.data())
def test_placement_is_the_minimum_cut(data: st.DataObject) -> None:
    """Against all ways to part up to six nodes."""
    count = data.draw(st.integers(0, 6))
    nodes = st.integers(0, count + 1)
    edges = data.draw(st.lists(st.tuples(nodes, nodes, st.integers(0, 9)), max_size=24))
    network = FlowNetwork()
    for _ in range(count):
        network.add_node()
    for start, end, cost in edges:
        network.add_edge(start, end, cost)

    def price(source: set[int]) -> int:
        return sum(c for a, b, c in edges if a in source and b not in source)

    ways = product((False, True), repeat=count)
    all_of_them = [{0, *(n + 2 for n, w in enumerate(way) if w)} for way in ways]
    assert price(network.source_side()) == min(map(price, all_of_them))
