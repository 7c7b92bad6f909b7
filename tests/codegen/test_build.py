"""`ekiden.build`: loop programs to modules, by every code generator, through the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import te
from ekiden.codegen import c, llvm, parallel
from ekiden.codegen.build import build
from ekiden.codegen.cache import KernelCache
from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar, cast, const
from ekiden.runtime import Module
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir import PrimFunc
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, BufferStore, seq

pytestmark = pytest.mark.quick

NO_CACHE = KernelCache(None)
TARGETS = ("llvm", "c")


def scaled(factor: float, name: str = "scale") -> PrimFunc:
    """y[n, 4] = x * factor"""
    x = te.placeholder((SizeVar("n"), 4), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] * factor, name="y")
    return te.create_prim_func([x, y], name)


def run(module: Module, name: str) -> np.ndarray:
    x, y = np.arange(12, dtype="float32").reshape(3, 4), np.zeros((3, 4), "float32")
    module[name](x, y)
    return y / np.maximum(x, 1)


@pytest.mark.parametrize("target", TARGETS)
def test_function_becomes_a_module(target: str) -> None:
    module = build(scaled(2.0), target, cache=NO_CACHE)
    assert isinstance(module, Module) and module.names() == ["scale"]
    assert run(module, "scale").max() == 2.0
    x, y = np.ones((1, 4), "float32"), np.zeros((1, 4), "float32")
    module(x, y)
    assert (y == 2.0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_assertion_shows_values(target: str) -> None:
    n, m = SizeVar("n"), SizeVar("m")
    x, y, out = (Buffer(name, (d,)) for name, d in (("x", n), ("y", m), ("out", const(1))))
    message, values = "100% must {{fit}}; n is {}, 100% of m is {}", (n, cast(m, "int32"))
    check = AssertStmt(n.equal(m), message, "ValueError", values)
    body = seq(check, BufferStore(out, const(1.0), (const(0),)))
    module = build(PrimFunc((x, y, out), body, {"global_symbol": "f"}), target, cache=NO_CACHE)
    a, b, result = (np.zeros(size, "float32") for size in (3, 4, 1))
    with pytest.raises(ValueError, match=r"^100% must {fit}; n is 3, 100% of m is 4$"):
        module["f"](a, b, result)
    assert result.tolist() == [0.0]
    module["f"](a, a, result)
    assert result.tolist() == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_module_becomes_a_module(target: str) -> None:
    funcs = {f"f{i}": scaled(float(i), f"f{i}") for i in range(1, 6)}
    module = build(IRModule(funcs), target, cache=NO_CACHE)
    assert sorted(module.names()) == sorted(funcs)
    for i in range(1, 6):
        assert run(module, f"f{i}").max() == i


def test_name_replaces_that_of_the_function() -> None:
    assert build(scaled(2.0), name="other", cache=NO_CACHE).names() == ["other"]


def test_sources_show_the_code() -> None:
    module = build(scaled(2.0), "llvm", cache=NO_CACHE)
    assert 'define i32 @"scale"(' in module.get_source()
    assert module.get_source("ll") == module.get_source()
    assert "scale:" in module.get_source("asm")
    shown = build(scaled(2.0), "c", cache=NO_CACHE).get_source()
    assert "int scale_compute(float *x, float *y, int64_t n) {" in shown
    assert "y[base + j] = x[base + j] * 2.0f;" in shown
    with pytest.raises(ValueError, match="no source 'cuda'; there are ll, asm"):
        module.get_source("cuda")


@pytest.mark.parametrize("target", TARGETS)
def test_cached_module_is_not_recompiled(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KernelCache(tmp_path)
    build(scaled(2.0), target, cache=cache)
    monkeypatch.setattr(parallel, "_compile_in_process", lambda task: pytest.fail("compiled again"))
    assert run(build(scaled(2.0), target, cache=cache), "scale").max() == 2.0


def test_targets_and_names_are_part_of_the_key(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    for target in TARGETS:
        build(scaled(2.0), target, cache=cache)
    build(scaled(2.0), "llvm", name="other", cache=cache)
    build(scaled(2.0), replace(Target.host(), cores=Target.host().cores + 1), cache=cache)
    assert len(list(tmp_path.rglob("*.o"))) == 4


def test_only_loop_programs_are_built() -> None:
    with pytest.raises(CompileError) as caught:
        build(IRModule({"main": BaseFunc()}))
    assert str(caught.value) == (
        "build: expected a module of PrimFuncs, got main; ekiden.compile takes Relay functions"
    )
    with pytest.raises(CompileError, match="expected a PrimFunc or an IRModule, got list"):
        build([scaled(1.0)])  # type: ignore[arg-type]
    with pytest.raises(
        CompileError, match="target: unknown kind in 'hls'; there are llvm, c, cuda"
    ):
        build(scaled(1.0), "hls")


def test_ekiden_build_is_public() -> None:
    assert run(ekiden.build(IRModule({"scale": scaled(2.0)})), "scale").max() == 2.0
    lowered = ekiden.lower(IRModule({"scale": scaled(2.0)}))
    assert "T.block" not in lowered["scale"].script()  # type: ignore[attr-defined]
    assert run(build(lowered, cache=NO_CACHE), "scale").max() == 2.0


def test_object_of_c_links_beside_one_of_llvm() -> None:
    target = Target.host()
    one, two = (ekiden.tir.transform.lower(scaled(f, n)) for f, n in ((2.0, "a"), (3.0, "b")))
    objects = [llvm.compile_object([one], target), c.compile_c(c.emit(two, target), target)]
    module = ekiden.runtime.load_image(llvm.link_image(objects, ["a", "b"]))
    assert (run(module, "a").max(), run(module, "b").max()) == (2.0, 3.0)


@pytest.mark.parametrize("name", ["floor", "sqrt", "memcpy", "double", "self"])
def test_names_of_c_are_free_for_buffers(name: str) -> None:
    x = te.placeholder((20,), "float64", name="x")
    y = te.compute((20,), lambda i: te.floor(te.sqrt(x[i])), name=name)
    module = ekiden.build(te.create_prim_func([x, y]), "c")
    data, out = np.linspace(0, 9, 20), np.zeros(20)
    module["main"](data, out)
    np.testing.assert_array_equal(out, np.floor(np.sqrt(data)))


@pytest.mark.slow
def test_c_keywords_are_escaped() -> None:
    x = te.placeholder((SizeVar("n"), 4), name="NAN")
    y = te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="INT64_MIN")
    for name in ("double", "for", "exp", "M_PI"):
        module = build(te.create_prim_func([x, y], name), "c", cache=NO_CACHE)
        assert module.names() == [name] and run(module, name).max() == 2.0


def test_two_functions_of_one_symbol_are_refused() -> None:
    module = IRModule({"double": scaled(2.0, "main"), "triple": scaled(3.0, "main")})
    message = "'double' and 'triple' are both exported as 'main', by their attribute"
    with pytest.raises(CompileError, match=message):
        build(module, "llvm", cache=NO_CACHE)


def test_programs_of_several_targets_are_one_module() -> None:
    programs = {"llvm": IRModule({"a": scaled(2.0, "a")}), Target("c"): scaled(3.0, "b")}
    module = ekiden.build(programs, cache=NO_CACHE)
    assert (run(module, "a").max(), run(module, "b").max()) == (2.0, 3.0)
    with pytest.raises(CompileError, match="expected programs by their targets, got none"):
        ekiden.build({})
