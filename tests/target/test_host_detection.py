"""Host detection: the processor from the system's description."""

from __future__ import annotations

from pathlib import Path

import pytest

from ekiden.runtime import get_global_func
from ekiden.target import Cache, Target, host_detection
from ekiden.target.features import ARM, FEATURE_TABLE, FEATURES_BY_FLAG, RISCV, X86, feature_closure
from ekiden.target.processors import CORE_MODELS, PROCESSORS

pytestmark = pytest.mark.quick


def entry(cpu: str, vendor: str, family: int, model: int, without: str = "") -> dict[str, str]:
    """/proc/cpuinfo of a processor of the table, without some flags."""
    flags = Target(f"llvm -mcpu={cpu}").flags
    shown = " ".join(f for f in flags if f not in without.split())
    head = f"processor : 0\nvendor_id : {vendor}\ncpu family : {family}\nmodel : {model}"
    return host_detection.read_cpuinfo(f"{head}\nflags : fpu {shown}\n\nprocessor : 1\n")


AMD, INTEL = "AuthenticAMD", "GenuineIntel"
# fmt: off
MACHINES = [
    # shown as        vendor, family, model flag hidden  is                counts with
    ("znver4",         AMD,     25, 0x11, "",             "znver4",         "zen4"),
    ("znver4",         AMD,     25, 0x11, "avx512_vbmi2", "x86-64-v4",      "zen4"),
    ("znver5",         AMD,     26, 0x02, "",             "znver5",         "zen5"),
    ("znver2",         AMD,     23, 0x31, "",             "znver2",         "zen2"),
    ("znver3",         AMD,     25, 0x01, "",             "znver3",         "zen3"),
    ("sapphirerapids", INTEL,    6, 0x8F, "",             "sapphirerapids", "sapphire"),
    ("sapphirerapids", INTEL,    6, 0xA7, "",             "sapphirerapids", "sapphire"),
    ("sapphirerapids", INTEL,    6, 0xCF, "",             "emeraldrapids",  "emerald"),
    ("sapphirerapids", INTEL,    6, 0x8F, "amx_tile",     "icelake-client", "sunny-cove"),
    ("skylake-avx512", INTEL,    6, 0x55, "",             "skylake-avx512", "skylake-sp"),
    ("cascadelake",    INTEL,    6, 0x55, "",             "cascadelake",    "skylake-sp"),
    ("rocketlake",     INTEL,    6, 0xA7, "",             "rocketlake",     "sunny-cove"),
    ("icelake-server", INTEL,    6, 0x6A, "",             "icelake-server", "icelake-sp"),
    ("alderlake",      INTEL,    6, 0x97, "",             "alderlake",      "golden-cove"),
    ("skylake",        INTEL,    6, 0x9E, "",             "skylake",        "skylake"),
    ("x86-64-v3",      "Other",  6, 1,    "",             "x86-64-v3",      "x86-64-v3"),
    ("x86-64",         "Other",  6, 1,    "",             "x86-64",         "x86-64"),
]
# fmt: on


@pytest.mark.parametrize(
    ("shown", "vendor", "family", "model", "without", "expected", "core"), MACHINES
)
def test_processor_is_detected_by_flags_then_model(
    shown: str, vendor: str, family: int, model: int, without: str, expected: str, core: str
) -> None:
    info = entry(shown, vendor, family, model, without)
    present = host_detection.flags_to_features(info["flags"].split(), X86)
    processor, actual = host_detection.best_processor(info, X86, present)
    assert (processor.name, actual) == (expected, CORE_MODELS[core])
    beyond = host_detection.extra_features(processor, present)
    whole = feature_closure(X86, (*processor.features, *beyond))
    assert {FEATURE_TABLE[X86, f].flag for f in whole} <= {"", *info["flags"].split()}


def test_other_architectures_are_probed() -> None:
    info = {"CPU implementer": "0x41", "CPU part": "0xd0c"}

    def found(info: dict[str, str], arch: str, flags: str) -> str:
        return host_detection.best_processor(
            info, arch, host_detection.flags_to_features(flags.split(), arch)
        )[0].name

    assert found(info, ARM, "fp asimd asimdhp asimddp asimdrdm") == "neoverse-n1"
    assert found(info, ARM, "fp asimd") == found({}, ARM, "fp asimd asimdhp") == "generic"
    assert found({}, RISCV, "") == "generic-rv64" and found({}, X86, "") == "x86-64"
    beyond = host_detection.flags_to_features(["v"], RISCV)
    assert host_detection.extra_features(PROCESSORS["generic-rv64"], beyond) == ("v",)


def test_runtime_says_what_is_there(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("processor"):
        pytest.skip("needs the machine itself: --processor takes it for another")
    arch = host_detection.host_architecture()
    flags = set(host_detection.host_flags(arch))
    assert flags <= {flag for of, flag in FEATURES_BY_FLAG if of == arch}
    assert set(Target.host().flags) == {
        FEATURE_TABLE[arch, f].flag for f in host_detection.flags_to_features(flags, arch)
    } - {""}
    with pytest.raises(TypeError, match=r"^ek.runtime.cpu_has: the name of an ability expected$"):
        get_global_func("ek.runtime.cpu_has")(1)


def system(folder: Path, *caches: tuple[int, str, str, str]) -> Path:
    """/sys/devices/system/cpu/cpu0/cache with (level, type, size, sharing cores)."""
    for i, (level, kind, size, shared) in enumerate(caches):
        index = folder / f"index{i}"
        index.mkdir()
        for name, text in {
            "level": str(level), "type": kind, "size": size, "shared_cpu_list": shared,
            "ways_of_associativity": "12", "coherency_line_size": "64",
        }.items():  # fmt: skip
            (index / name).write_text(text + "\n")
    return folder


def test_cache_sizes_come_from_sysfs(tmp_path: Path) -> None:
    folder = system(
        tmp_path, (1, "Data", "48K", "0,64"), (1, "Instruction", "64K", "0,64"),
        (2, "Unified", "2048K", "0,64"), (3, "Unified", "98304K", "0-31,64-95"),
    )  # fmt: skip
    result = host_detection.host_caches(CORE_MODELS["sapphire"], is_guest=False, folder=folder)
    assert result[1:] == (
        Cache(2 << 20, 12, 64, 1, 46, 15),
        Cache(96 << 20, 12, 64, 32, 8, 110),
    )


def test_implausible_hypervisor_caches_are_ignored(tmp_path: Path) -> None:
    folder = system(tmp_path, (1, "Data", "48K", "0"), (2, "Unified", "2048K", "0"),
                    (3, "Unified", "491520K", "0-1"))  # fmt: skip
    row = CORE_MODELS["sapphire"]
    result = host_detection.host_caches(row, is_guest=True, folder=folder)
    assert result[1].size == 2 << 20 and result[2] == row.caches[2]
    empty = tmp_path / "empty"
    assert host_detection.host_caches(row, is_guest=True, folder=empty) == row.caches


def test_virtual_machine_shares_caches(tmp_path: Path) -> None:
    folder = system(tmp_path, (1, "Data", "32K", "0"), (2, "Unified", "1024K", "0"),
                    (3, "Unified", "32768K", "0-1"))  # fmt: skip
    result = host_detection.host_caches(CORE_MODELS["zen4"], is_guest=True, folder=folder)
    assert result[2] == Cache(32 << 20, 12, 64, 8, 24, 50)


def test_this_machine_can_run_its_own_code() -> None:
    host = Target.host()
    assert host == Target("llvm") == Target("llvm -mcpu=native")
    assert host.vector_bits in (128, 256, 512) and host.cores >= 1 and host.l1 >= 16 << 10
