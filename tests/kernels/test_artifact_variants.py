"""Code of an artifact for another architecture, run in an emulator."""

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.codegen.llvm import compile_ir, link_image, parse_image
from ekiden.compiler.build import compile_to_bytes
from ekiden.ir.module import IRModule
from ekiden.runtime.artifact.container_format import read_sections
from ekiden.runtime.binding.layout import Section
from ekiden.target import Target
from emulator import Emulator


@pytest.mark.parametrize(
    ("target", "cpu"),
    [
        ("llvm -mcpu=cortex-a72 -cores=1", "cortex-a72"),
        ("llvm -mtriple=riscv64-linux-gnu -cores=1", "generic-rv64"),
        ("llvm -mtriple=armv7-linux-gnueabihf -cores=1", "cortex-a9"),
    ],
)
@pytest.mark.skipif(Target.host().architecture == "aarch64", reason="runs there without emulator")
def test_variant_for_another_architecture_computes_the_same(target: str, cpu: str) -> None:
    x, y = relay.var("x", shape=(8, 32)), relay.var("y", shape=(24, 32))
    module = IRModule.from_expr(relay.Function([x, y], relay.tanh(relay.nn.dense(x, y))))
    exe = ekiden.compile(module, [target, "llvm"])
    images = [p for kind, _, p in read_sections(exe.raw.to_bytes()) if kind is Section.IMAGE]
    assert parse_image(bytes(images[0])).required_cpu_flags == (cpu,)
    assert parse_image(bytes(images[1])).required_cpu_flags == (
        Target.host().cpu,
        *Target.host().needs,
    )
    emulator = Emulator(bytes(images[0]))
    (kernel,) = [name for name in emulator.info.exports if name.startswith("fused_")]
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype("float32") for s in ((8, 32), (24, 32)))
    there, here = np.zeros((8, 24), "float32"), exe(a, b)
    assert emulator.call(kernel, a, b, there) == 0
    assert isinstance(here, runtime.Tensor)
    np.testing.assert_allclose(there, here.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(there, np.tanh(a @ b.T), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("triple", ["riscv64-linux-gnu", "armv7-linux-gnueabihf"])
def test_jump_and_constant_tables_are_linked(triple: str) -> None:
    """On RISC-V by addresses of two halves, of which the second names the first, and differences of
    labels."""
    cases = "\n".join(f"    i32 {i}, label %c{i}" for i in range(12))
    bodies = "\n".join(
        f"c{i}:\n  %v{i} = load i32, ptr getelementptr (i32, ptr @t, i64 {i * 7 % 12})\n"
        f"  %w{i} = add i32 %v{i}, {i * 1000}\n  ret i32 %w{i}"
        for i in range(12)
    )
    numbers = ", ".join(f"i32 {i * i}" for i in range(12))
    text = f"""
@t = private constant [12 x i32] [{numbers}]
define i32 @f(ptr %self, ptr %args, i32 %n, ptr %ret) {{
  switch i32 %n, label %rest [
{cases}
  ]
{bodies}
rest:
  ret i32 77
}}
"""
    code = compile_ir(text, Target(f"llvm -mtriple={triple}"))
    emulator = Emulator(link_image([code], ["f"]))
    for n in range(14):
        result = emulator.call("f", *[np.zeros(1, "float32")] * n)
        assert result == ((n * 7 % 12) ** 2 + n * 1000 if n < 12 else 77)


ELSEWHERE = (
    ("llvm -mtriple=riscv64 -mattr=+v", ("generic-rv64", "v")),
    ("llvm -mtriple=armv7 -mcpu=cortex-a7", ("cortex-a7", "idiva", "vfpv4")),
)


@pytest.mark.parametrize(("target", "needs"), ELSEWHERE)
def test_aot_code_runs_in_emulator(target: str, needs: tuple[str, ...]) -> None:
    x = relay.var("x", shape=(4,))
    module = IRModule.from_expr(relay.Function([x], relay.tanh(x)))
    result = compile_to_bytes(module, target, executor="aot")
    (image,) = [p for kind, _, p in read_sections(memoryview(result)) if kind is Section.IMAGE]
    info = parse_image(bytes(image))
    assert info.required_cpu_flags == needs and "vm2:main" in info.exports
