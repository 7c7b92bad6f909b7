"""The code of an artifact for another architecture, run in an emulator."""

import numpy as np
import pytest
from emulator import Emulator

import ekiden
from ekiden import relay, runtime
from ekiden.codegen.llvm import inspect
from ekiden.ir.module import IRModule
from ekiden.runtime.artifact import Section, read_sections
from ekiden.target import Target


@pytest.mark.skipif(Target.host().architecture == "aarch64", reason="runs there without emulator")
def test_the_variant_for_aarch64_computes_the_same() -> None:
    x, y = relay.var("x", shape=(8, 32)), relay.var("y", shape=(24, 32))
    module = IRModule.from_expr(relay.Function([x, y], relay.tanh(relay.nn.dense(x, y))))
    exe = ekiden.compile(module, ["llvm -mcpu=cortex-a72 -cores=1", "llvm"])
    images = [p for kind, _, p in read_sections(exe.raw.to_bytes()) if kind is Section.IMAGE]
    assert inspect(bytes(images[0])).needs == ("cortex-a72",)
    assert inspect(bytes(images[1])).needs == (Target.host().cpu, *Target.host().needs)
    emulator = Emulator(bytes(images[0]))
    (kernel,) = [name for name in emulator.info.exports if name.startswith("fused_")]
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype("float32") for s in ((8, 32), (24, 32)))
    there, here = np.zeros((8, 24), "float32"), exe(a, b)
    assert emulator.call(kernel, a, b, there) == 0
    assert isinstance(here, runtime.Tensor)
    np.testing.assert_allclose(there, here.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(there, np.tanh(a @ b.T), rtol=1e-5, atol=1e-6)
