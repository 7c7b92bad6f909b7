"""Tuning for devices: tasks, every candidate of the search spaces, a run on OpenCL."""

from __future__ import annotations

import random

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.transform import InferType
from ekiden.runtime import Device
from ekiden.runtime.errors import InputError
from ekiden.target import Target
from ekiden.tune.candidate import Candidate
from ekiden.tune.task import module_tasks
from long_runs import LONG

ALONE = "opencl -thread_warp_size=1 -vector-bits=512 -max_num_threads=4096"
"""A device whose threads run one after the other, with vectors: PoCL on a processor."""
WARPS = "opencl -thread_warp_size=32 -max_num_threads=256 -max_shared_memory_per_block=32768"
TENSOR_CORES = "cuda -arch=sm_80 -max_num_threads=1024 -max_shared_memory_per_block=49152"


def network(dtype: str = "float32") -> IRModule:
    x = relay.var("x", shape=(64, 48), dtype=dtype)
    weight = relay.const(np.ones((40, 48), dtype))
    y = relay.nn.dense(x, weight, out_dtype="int32" if dtype == "int8" else dtype)
    return InferType()(IRModule.from_expr(relay.Function([x], y)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("target", [ALONE, TENSOR_CORES, WARPS])
def test_every_candidate_sets_every_knob(target: str, dtype: str) -> None:
    (task,) = module_tasks(network(dtype), Target(target)).tasks
    space, source = task.space, random.Random(0)
    names = {item.name for item in space.free}  # type: ignore[attr-defined]
    first, second = space.default, space.sample(source)
    for _ in range(40):
        first, second = second, space.mutate(space.cross(first, second, source), source)
        assert space.refusal(second) == ""
        if second != Candidate(space.default.rule):
            assert {part.partition("=")[0] for part in second.choice.split()} == names


def test_kernels_of_the_host_are_tasks_for_the_host() -> None:
    i, x = relay.var("i", "int32"), relay.var("x", shape=(64, 48))
    weight = relay.var("w", shape=(48, 48))
    go, again = relay.GlobalVar("go"), relay.nn.dense(x, weight)
    module = IRModule()
    module[go] = relay.Function(
        [i, x, weight],
        relay.If(relay.less(i, relay.const(1)), x,
                 relay.Call(go, (relay.subtract(i, relay.const(1)), again, weight))),
        relay.TensorType((64, 48), "float32"),
    )  # fmt: skip
    args = relay.var("x", shape=(64, 48)), relay.var("w", shape=(48, 48))
    module["main"] = relay.Function(list(args), relay.Call(go, (relay.const(3), *args)))
    result = module_tasks(InferType()(module), Target(WARPS))
    assert [task.target.kind.name for task in result.tasks] == [Target(WARPS).kind.name]
    assert ("fused_less", "'default' has no choices") in result.skipped


@LONG
def test_tuning_runs_on_opencl(opencl: Device) -> None:
    session = ekiden.tune(network(), "opencl", trials=2)
    assert [state.trials for state in session.states] == [2]


def test_missing_tuning_device_is_an_error() -> None:
    if ekiden.cuda(0).exist:
        pytest.skip("there is a device of CUDA")
    with pytest.raises(InputError, match=r"cannot be measured here: there is no cuda\(0\); remote"):
        ekiden.tune(network(), TENSOR_CORES, trials=1)
