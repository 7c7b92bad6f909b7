"""Artifacts with code for several targets: which variant is run, what they share, what is said
where none can run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.cli import main
from ekiden.codegen import llvm
from ekiden.compiler.build import compile_to_bytes
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.runtime import cpu
from ekiden.runtime.artifact import late_bound
from ekiden.runtime.artifact.container_format import read_sections
from ekiden.runtime.binding.layout import Section
from ekiden.target import Target, host_detection
from ekiden.target.features import FEATURE_TABLE, unused_features
from ekiden.target.virtual_device import compilation_config
from onnx_files import arguments, expected, model

HERE = Target.host().architecture
LEVELS = {
    "x86-64": ("x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64"),
    "aarch64": ("neoverse-n1", "cortex-a72"),
}
OTHER = "llvm -mcpu=x86-64" if HERE == "aarch64" else "llvm -mcpu=neoverse-n1"
"""Code for it runs on no machine of this architecture."""
OLDEST = LEVELS[HERE][-1]


def target(cpu_name: str) -> str:
    return f"llvm -mcpu={cpu_name} -cores=2"


def runnable() -> list[str]:
    """The processors of this architecture whose code runs here, the best first."""
    host = set(Target.host().needs)
    return [c for c in LEVELS[HERE] if set(Target.parse(target(c)).needs) <= host]


def weights_model() -> IRModule:
    """Two layers, with weights that are packed for each vector width, and one that is not."""
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(relay.Any(), 48))
    first, second = (relay.const(rng.normal(size=(48, 48)).astype("float32")) for _ in range(2))
    bias = relay.const(rng.normal(size=(48,)).astype("float32"))
    hidden = relay.nn.relu(relay.add(relay.nn.dense(x, first), bias))
    return IRModule.from_expr(relay.Function([x], relay.nn.dense(hidden, second)))


X = np.random.default_rng(1).normal(size=(7, 48)).astype("float32")


def result(exe: ekiden.Executable, *args: object) -> Array:
    actual = exe(*args)
    assert isinstance(actual, runtime.Tensor)
    return actual.numpy()


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_first_supported_variant_runs(executor: str, tmp_path: Path) -> None:
    exe = ekiden.compile(model(), [OTHER, "llvm", target(OLDEST)], executor=executor)
    assert Target.parse(exe.target) == Target.host()
    assert [Target.parse(t).cpu for t in exe.variants][1:] == [Target.host().cpu, OLDEST]
    exe.save(tmp_path / "model.eki")
    loaded = ekiden.load(tmp_path / "model.eki")
    assert loaded.raw.to_bytes() == exe.raw.to_bytes()
    for n in (1, 5):
        feed = arguments(n)
        np.testing.assert_allclose(result(loaded, *feed.values()), expected(**feed), rtol=1e-5)


@pytest.mark.parametrize("level", runnable())
def test_variants_compute_the_same_as_single_targets(level: str) -> None:
    alone = ekiden.compile(weights_model(), target(level))
    beside = ekiden.compile(weights_model(), [OTHER, target(level)])
    assert Target.parse(beside.target).cpu == level
    assert (result(beside, X) == result(alone, X)).all()
    assert beside.primitive_ops == alone.primitive_ops
    assert beside.bytecode == alone.bytecode or len(beside.raw.constants) > len(alone.raw.constants)


def test_equal_sections_are_stored_once() -> None:
    targets = [target(c) for c in (*LEVELS[HERE][:1], OLDEST)]
    apart = [compile_to_bytes(weights_model(), t) for t in targets]
    both = compile_to_bytes(weights_model(), targets)
    actual = [(kind, variant) for kind, variant, _ in read_sections(both)]
    own = (Section.PRIMITIVES, Section.CODE, Section.IMAGE, Section.METADATA)
    assert actual == [(Section.GLOBALS, 0), (Section.CONSTANTS, 0), (Section.TYPES, 0),
                     *((k, v) for v in (1, 2) for k in own)]  # fmt: skip
    sizes = [next(len(p) for k, _, p in read_sections(d) if k is Section.CONSTANTS) for d in apart]
    union = next(len(p) for k, _, p in read_sections(both) if k is Section.CONSTANTS)
    assert max(sizes) < union < sum(sizes)
    assert both == compile_to_bytes(weights_model(), targets)


def test_duplicate_targets_are_merged() -> None:
    assert compile_to_bytes(model(), ["llvm", "llvm"]) == compile_to_bytes(model(), "llvm")


def test_without_native_code_one_program_serves_all() -> None:
    x = relay.var("x", shape=(3,))
    identity = IRModule.from_expr(relay.Function([x], x))
    exe = ekiden.compile(identity, [OTHER, "llvm"])
    assert all(variant == 0 for _, variant, _ in read_sections(exe.raw.to_bytes()))
    assert (result(exe, np.arange(3, dtype="float32")) == [0, 1, 2]).all()


def test_code_that_this_machine_cannot_run_is_refused_by_name(tmp_path: Path) -> None:
    foreign = {"aarch64": "x86-64 (x86-64)", "x86-64": "AArch64 (neoverse-n1)"}[HERE]
    lacks = "IMAGE: this machine lacks what its code needs"
    with pytest.raises(ekiden.LoadError) as caught:
        ekiden.compile(model(), OTHER)
    assert str(caught.value) == f"load executable: {lacks}: {foreign}"
    path = tmp_path / "model.eki"
    there = cpu_flags()
    local = [
        f
        for f in FEATURE_TABLE.values()
        if f.architecture == HERE and f.name not in unused_features(HERE)
    ]
    missing = [f.name for f in local if f.flag and f.flag not in there]
    if HERE == "x86-64" and missing:
        newest = f"llvm -mcpu=x86-64-v4 -mattr={missing[0]}"
        path.write_bytes(compile_to_bytes(model(), [newest, OTHER]))
        with pytest.raises(ekiden.LoadError) as caught:
            runtime.Executable.load(path)
        actual = " ".join(f for f in Target.parse(newest).needs if f not in cpu_flags())
        assert str(caught.value) == f"load '{path}': {lacks}: {actual} (x86-64-v4), {foreign}"


def cpu_flags() -> set[str]:
    """What the machine itself has, whatever the tests take it for."""
    text = Path("/proc/cpuinfo").read_text()
    return set(host_detection.read_cpuinfo(text).get("flags", "").split())


@pytest.mark.skipif(HERE != "x86-64", reason="of x86-64")
def test_runtime_detects_all_cpu_features() -> None:
    """What compiled code asks for and the system has loads; what it has not does not."""
    flags = cpu_flags()
    for flag in sorted(f.flag for f in FEATURE_TABLE.values() if f.architecture == HERE and f.flag):
        image = bytearray(llvm.link_image([], []))
        text = f"one {flag}".encode()
        image[48 : 48 + len(text)] = text
        if flag in flags:
            runtime.load_image(bytes(image))
        else:
            with pytest.raises(ekiden.LoadError, match=f"needs: {flag} \\(one\\)$"):
                runtime.load_image(bytes(image))


def test_bytecode_alone_is_that_of_the_chosen_variant() -> None:
    exe = ekiden.compile(weights_model(), [OTHER, "llvm"])
    code, library = exe.save()
    assert all(variant == 0 for _, variant, _ in read_sections(bytes(code)))
    machine = runtime.vm.VirtualMachine(runtime.vm.Executable.load_exec(code, library), cpu(0))
    assert (machine.invoke("main", X).numpy() == result(exe, X)).all()


def test_variants_accept_late_bound_weights() -> None:
    exe = ekiden.compile(weights_model(), [OTHER, "llvm", target(OLDEST)])
    want, whole = result(exe, X), exe.raw.to_bytes()
    moved = exe.get_late_bound_consts(1000)
    assert len(exe.raw.to_bytes()) < len(whole)
    exe.load_late_bound_consts_from_map(moved)
    assert (result(exe, X) == want).all()
    assert late_bound.complete_artifact_bytes(exe.raw) == whole


def test_profiles_are_of_the_chosen_variant() -> None:
    exe = ekiden.compile(weights_model(), [OTHER, "llvm"])
    kernels = {call.name for call in exe.profile(X, peak=False).calls}
    assert kernels <= {*exe.primitive_ops, *exe.globals} and len(kernels) >= 2


def test_several_devices() -> None:
    x = relay.var("x", shape=(4, 48))
    weight = relay.const(np.random.default_rng(2).normal(size=(48, 48)).astype("float32"))
    there = relay.annotation.on_device(relay.nn.dense(x, weight), cpu(1), constrain_result=True)
    module = IRModule.from_expr(relay.Function([x], relay.nn.relu(there)))
    want = result(ekiden.compile(module, {cpu(0): "llvm", cpu(1): "llvm"}), X[:4])
    inputs = [OTHER, "llvm"]
    for targets in ({cpu(0): inputs, cpu(1): inputs}, [cpu(0), cpu(1), *inputs]):
        exe = ekiden.compile(module, targets)
        assert Target.parse(exe.target) == Target.host() and exe.raw.devices == [cpu(0), cpu(1)]
        assert (result(exe, X[:4]) == want).all()


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_exported_libraries_choose_too(tmp_path: Path) -> None:
    exe = ekiden.compile(model(), [OTHER, "llvm"])
    exe.export_library(tmp_path / "model.so")
    feed = arguments(3)
    actual = runtime.load_module(tmp_path / "model.so")["main"](*feed.values())
    assert (actual.numpy() == result(exe, *feed.values())).all()


# Notation ----------------------------------------------------------------------------------------


def test_variants_in_configurations() -> None:
    config = compilation_config(["llvm -mcpu=x86-64-v3", "llvm -mcpu=x86-64", OTHER])
    assert [t.cpu for t in config.primitive_targets] == [
        "x86-64-v3", "x86-64", *([Target.parse(OTHER).cpu] if HERE == "x86-64" else [])
    ]  # fmt: skip
    assert config.target is config.primitive_targets[0] and len(config.devices) == 1
    assert compilation_config([cpu(1)]).primitive_targets == (Target.host(),)
    mixed = compilation_config([cpu(1), "llvm", OTHER])
    assert [device.device for device in mixed.devices] == [cpu(1), cpu(0)]
    assert mixed.primitive_targets == (Target.host(), Target.parse(OTHER))


def test_unreachable_variant_is_refused() -> None:
    with pytest.raises(ekiden.CompileError) as caught:
        ekiden.compile(model(), ["llvm -mcpu=x86-64-v3", "llvm -mcpu=x86-64-v4"])
    never = "code for x86-64-v4 would never run: x86-64-v3 stands before it"
    assert str(caught.value) == f"compile: {never}, and runs wherever it does"
    with pytest.raises(ekiden.CompileError, match="one target for all CPU devices expected"):
        ekiden.compile(model(), {cpu(0): [OTHER, "llvm"], cpu(1): "llvm"})


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "model.onnx", tmp_path / "model.eki"
    path.write_bytes(model().SerializeToString())
    assert (
        main(["compile", str(path), "--target", OTHER, "--target", "llvm", "-o", str(output)]) == 0
    )
    assert "input x: float32[n, 3]" in capsys.readouterr().out
    assert main(["inspect", str(output)]) == 0
    *_, other, chosen = capsys.readouterr().out.splitlines()
    assert (other, chosen) == (f"  {Target.parse(OTHER)}", f"* {Target.host()}")


def test_command_line_compiles_for_other_machines(tmp_path: Path) -> None:
    path, output = tmp_path / "model.onnx", tmp_path / "model.eki"
    path.write_bytes(model().SerializeToString())
    assert main(["compile", str(path), "--target", OTHER, "-o", str(output)]) == 0
    assert output.read_bytes() == compile_to_bytes(str(path), OTHER)


@pytest.mark.parametrize("none", [[], {}])
def test_empty_target_list_is_refused(none: list[str] | dict[str, str]) -> None:
    with pytest.raises(ekiden.CompileError) as caught:
        ekiden.compile(model(), none)
    assert str(caught.value) == f"compile: a target or a device expected, got {none}"
