"""TVM's Target API: attributes, keys, hosts, the current target, tags."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ekiden
from ekiden import relay, target
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError
from ekiden.target import Target, TargetKind, board_targets, tags
from ekiden.target.kinds import TARGET_KINDS

pytestmark = pytest.mark.quick


def test_kinds_are_values_with_names() -> None:
    kind = Target("llvm").kind
    assert isinstance(kind, TargetKind) and (kind.name, str(kind)) == ("llvm", "llvm")
    assert (kind.default_device_type, kind.default_keys) == (1, ("cpu",))
    assert Target("cuda").get_target_device_type() == 2
    assert kind.options["libs"] == "list" and kind.options["opt-level"] == "int"
    assert Target.list_kinds() == sorted(TARGET_KINDS)


def test_attributes_are_facts_and_options() -> None:
    target = Target("cuda -model=unknown -libs=cublas,cudnn -arch=sm_80")
    assert (target.kind.name, target.model, target.arch) == ("cuda", "unknown", "sm_80")
    assert (target.keys, target.libs) == (["cuda", "gpu"], ["cublas", "cudnn"])
    assert (target.max_num_threads, target.thread_warp_size) == (1024, 32)
    cpu = Target("llvm -mcpu=cascadelake -device=arm_cpu -mattr=+avx512fp16,-avx512cd")
    assert (cpu.keys, cpu.device_name) == (["arm_cpu", "cpu"], "arm_cpu")
    assert (cpu.mcpu, cpu.mattr) == ("cascadelake", ["+avx512fp16", "-avx512cd"])
    assert cpu.attrs["mcpu"] == "cascadelake" and cpu.attrs["vector-bits"] == 512
    assert "tag" not in cpu.attrs and cpu.libs == [] and cpu.model == "unknown"
    with pytest.raises(KeyError):
        _ = cpu.thread_warp_size


def test_value_with_spaces_is_quoted() -> None:
    target = Target("vulkan -device_name='Name of GPU with spaces' -device_type=discrete")
    assert target.attrs["device_name"] == "Name of GPU with spaces"
    assert Target(str(target)) == target


def test_configuration_is_a_dictionary_or_json() -> None:
    config = {
        "kind": "llvm",
        "keys": ["arm_cpu", "cpu"],
        "device": "arm_cpu",
        "libs": ["cblas"],
        "mfloat-abi": "hard",
        "mattr": ["+avx512fp16", "-avx512cd"],
        "mcpu": "sapphirerapids",
    }
    for argument in (config, json.dumps(config)):
        target = Target(argument)
        assert (target.kind.name, target.keys) == ("llvm", ["arm_cpu", "cpu"])
        assert (target.device_name, target.libs) == ("arm_cpu", ["cblas"])
        assert target.attrs["mfloat-abi"] == "hard"
        assert target.mattr == ["+avx512fp16", "-avx512cd"]


def test_target_hosts_are_settable() -> None:
    target = Target("cuda", "llvm -mcpu=znver4")
    assert target.host is not None and target.host.cpu == "znver4"
    assert target.with_host("llvm -mcpu=znver5").host == Target("llvm -mcpu=znver5")
    assert Target("cuda").host is None and target.with_host() == Target("cuda")
    assert Target(target.export()) == target == Target(str(target))
    assert Target({"kind": "cuda", "host": {"kind": "llvm"}}).host == Target("llvm")
    assert Target("nvidia/jetson-nano", host="llvm").tag == "nvidia/jetson-nano"
    tag = "raspberry-pi/4b-aarch64"
    assert Target(f"cuda --host {tag} -arch sm_80") == Target(f"cuda -arch=sm_80 -host={tag}")


def test_current_target() -> None:
    assert Target.current() is None
    with pytest.raises(ValueError, match=r"^target: there is no current target; "):
        Target.current(allow_none=False)
    with Target("llvm -mcpu=x86-64") as outer:
        assert Target.current() is outer
        with Target("cuda"):
            assert Target.current(allow_none=False) == Target("cuda")
        assert Target.current() is outer
    assert Target.current() is None


@pytest.mark.slow
def test_compilation_takes_the_current_target() -> None:
    x = relay.var("x", shape=(3,))
    module = IRModule.from_expr(relay.Function([x], relay.add(x, x)))
    oldest = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64 -cores=1")
    if oldest.architecture != Target.host().architecture:
        oldest = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=generic -cores=1")
    with oldest:
        made = [ekiden.compile(module), relay.vm.compile(module), relay.build(module)]
        named = ekiden.compile(module, "llvm")
    assert [exe.target for exe in made] == [str(oldest)] * 3
    assert named.target == str(Target.host()) == ekiden.compile(module).target
    result = made[0](np.ones(3, "float32"))
    assert isinstance(result, ekiden.runtime.Tensor) and result.numpy().tolist() == [2, 2, 2]


@pytest.mark.parametrize("tag", tags.TARGET_TAGS)
def test_target_tags_resolve(tag: str) -> None:
    target = Target(tag)
    assert target.tag == tag and Target({"tag": tag}) == target
    assert Target(f"{tag} -model=mine").model == "mine"
    assert target.kind.is_cpu == (target.kind.name == "llvm")


def test_boards_and_kinds_of_devices() -> None:
    assert target.cuda(options="-libs=cublas").libs == ["cublas"]
    assert target.cuda(arch="sm_80").arch == "sm_80"
    assert [t().device_name for t in (target.mali, target.bifrost)] == ["mali", "bifrost"]
    assert target.intel_graphics().thread_warp_size == 16
    assert target.rocm("gfx90a").model == "gfx90a"
    pi = target.arm_cpu("rasp4b64", ["-cores=4"])
    assert (pi.keys, pi.cpu, pi.cores) == (["arm_cpu", "cpu"], "cortex-a72", 4)
    assert target.arm_cpu("mine").triple == "aarch64-unknown-linux-gnu"
    assert target.riscv_cpu().cpu == "sifive-u54"
    for name in (*board_targets.ARM_BOARDS, *board_targets.RISCV_BOARDS):
        result = (
            target.arm_cpu(name) if name in board_targets.ARM_BOARDS else target.riscv_cpu(name)
        )
        assert Target(str(result)) == result and result.model != "unknown"
    assert target.list_tags()["nvidia/nvidia-a100"] == target.create("nvidia/nvidia-a100")


def test_llvms_other_names_of_processors() -> None:
    named, other = Target("llvm -mcpu=haswell"), Target("llvm -mcpu=core-avx2")
    assert other.mcpu == "haswell" and other.has("fma") and named.has("fma")
    assert (other.vector_bits, other.cpu) == (named.vector_bits, named.cpu)


def test_targets_are_completed_with_their_hosts() -> None:
    assert Target.canon_target(None) is None
    assert Target.canon_target_and_host(None) == (None, None)
    target, host = Target.canon_target_and_host("cuda", "llvm")
    assert target is not None and target.kind.name == "cuda"
    assert host is not None and host.kind.name == "llvm" and target.host == host
    kinds = [t.kind.name for t in Target.canon_multi_target_and_host({1: "llvm", 2: "cuda"})]
    assert kinds == ["llvm", "cuda"]
    for one in ("cuda", ["cuda"], {"kind": "cuda"}, Target("cuda")):
        (target,) = Target.canon_multi_target_and_host(one, "llvm")
        assert target.kind.name == "cuda" and target.host_target == Target("llvm")
    modules, host = Target.canon_target_map_and_host({"cuda": "a", "llvm": "b"}, "llvm")
    assert {t.kind.name: m for t, m in modules.items()} == {"cuda": "a", "llvm": "b"}
    assert host == Target("llvm")
    with pytest.raises(CompileError, match="a host is given, and no target"):
        Target.canon_target_and_host(None, "llvm")
    with pytest.raises(CompileError, match="a target or several expected"):
        Target.canon_multi_target_and_host(None)  # type: ignore[arg-type]
