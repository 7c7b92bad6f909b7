"""Targets by the name of a board or a kind of device: TVM's functions for them."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.target.tags import TARGET_TAGS
from ekiden.target.target import Target, TargetLike

OptionText = str | Sequence[str] | None
"""Target options as one string or several."""

_ARM64, _ARM32 = "-mtriple=aarch64-linux-gnu", "-mtriple=armv7a-linux-gnueabihf"
_ANDROID_TRIPLE_OPTION = "-mtriple=aarch64-linux-android"
# fmt: off
ARM_BOARDS: dict[str, str] = {
    "pixel2":    f"-model=snapdragon835 {_ANDROID_TRIPLE_OPTION}",
    "mate10":    f"-model=kirin970 {_ANDROID_TRIPLE_OPTION}",
    "mate10pro": f"-model=kirin970 {_ANDROID_TRIPLE_OPTION}",
    "p20":       f"-model=kirin970 {_ANDROID_TRIPLE_OPTION}",
    "p20pro":    f"-model=kirin970 {_ANDROID_TRIPLE_OPTION}",
    "rasp3b":    f"-model=bcm2837 {_ARM32}",
    "rasp4b":    f"-model=bcm2711 {_ARM32} -mcpu=cortex-a72",
    "rasp4b64":  f"-model=bcm2711 {_ARM64} -mcpu=cortex-a72",
    "rk3399":    f"-model=rk3399 {_ARM64} -mcpu=cortex-a72",
    "pynq":      f"-model=pynq {_ARM32}",
    "ultra96":   f"-model=ultra96 {_ARM64} -mcpu=cortex-a53",
    "beagleai":  f"-model=beagleai {_ARM32} -mcpu=cortex-a15",
    "stm32mp1":  f"-model=stm32mp1 {_ARM32} -mcpu=cortex-a7",
}
"""Target options of each Arm board."""
RISCV_BOARDS: dict[str, str] = {
    "sifive-e31": "-mtriple=riscv32-linux-gnu -mcpu=sifive-e31",
    "sifive-e76": "-mtriple=riscv32-linux-gnu -mcpu=sifive-e76",
    "sifive-u54": "-mtriple=riscv64-linux-gnu -mcpu=sifive-u54 -mabi=lp64d",
    "sifive-u74": "-mtriple=riscv64-linux-gnu -mcpu=sifive-u74 -mabi=lp64d",
}
"""Target options of each RISC-V board; 32-bit ones are known, but code generation rejects them."""
MICRO_MODELS: dict[str, str] = {
    "host":        "",
    "atsamd51":    "-mcpu=cortex-m4",
    "cxd5602gg":   "-mcpu=cortex-m4",
    "imxrt10xx":   "-mcpu=cortex-m7",
    "mps2_an521":  "-mcpu=cortex-m33",
    "mps3_an547":  "-mcpu=cortex-m55",
    "nrf52840":    "-mcpu=cortex-m4",
    "nrf5340dk":   "-mcpu=cortex-m33",
    "sam3x8e":     "-mcpu=cortex-m3",
    "stm32f746xx": "-mcpu=cortex-m7",
    "stm32h7xx":   "-mcpu=cortex-m7",
    "stm32l4r5zi": "-mcpu=cortex-m4",
    "stm32u5xx":   "-mcpu=cortex-m33",
}
"""Microcontroller -> its options; "host" is this machine."""
# fmt: on


def _make_target(first: str, options: OptionText) -> Target:
    """Build a target from its kind and options; the caller's options come before the defaults."""
    words = options.split() if isinstance(options, str) else list(options or ())
    return Target(" ".join((first, *words)))


def cuda(model: str = "unknown", arch: str | None = None, options: OptionText = None) -> Target:
    """Return a target for an NVIDIA GPU; `arch` is like "sm_80"."""
    return _make_target(f"cuda -model={model}" + (f" -arch={arch}" if arch else ""), options)


def rocm(model: str = "unknown", options: OptionText = None) -> Target:
    """Return a target for an AMD GPU."""
    return _make_target(f"rocm -model={model}", options)


def mali(model: str = "unknown", options: OptionText = None) -> Target:
    """Return a target for an Arm Mali GPU."""
    return _make_target(f"opencl -device=mali -model={model}", options)


def bifrost(model: str = "unknown", options: OptionText = None) -> Target:
    """Return a target for an Arm GPU of the Bifrost architecture."""
    return _make_target(f"opencl -device=bifrost -model={model}", options)


def intel_graphics(model: str = "unknown", options: OptionText = None) -> Target:
    """Return a target for an Intel GPU."""
    first = f"opencl -device=intel_graphics -model={model} -thread_warp_size=16"
    return _make_target(first, options)


def arm_cpu(model: str = "unknown", options: OptionText = None) -> Target:
    """Return a target for an Arm board (ARM_BOARDS lists the known models); an unknown model is
    assumed to be 64-bit.
    """
    board_options = ARM_BOARDS.get(model, f"-model={model} {_ARM64}")
    return _make_target(f"llvm -device=arm_cpu {board_options}", options)


def riscv_cpu(model: str = "sifive-u54", options: OptionText = None) -> Target:
    """Return a target for a RISC-V processor (RISCV_BOARDS lists the known models)."""
    board_options = RISCV_BOARDS.get(model, "-mtriple=riscv64-linux-gnu")
    return _make_target(f"llvm -device=arm_cpu -model={model} {board_options}", options)


def micro(model: str = "unknown", options: OptionText = None) -> Target:
    """Return a target for a microcontroller, for C without the runtime.

    Raises:
        ValueError: The model is not in MICRO_MODELS.
    """
    if model not in MICRO_MODELS:
        raise ValueError(
            f"target.micro: no model {model!r}; there are {', '.join(MICRO_MODELS)}, and "
            'Target("c -mcpu=...") for others'
        )
    return _make_target(f"c -model={model} {MICRO_MODELS[model]}".rstrip(), options)


def create(target: TargetLike) -> Target:
    """Return a target, like `Target`."""
    return Target(target)


def list_tags() -> dict[str, Target]:
    """Return every tag with its target."""
    return {tag: Target(tag) for tag in TARGET_TAGS}


__all__ = [
    "arm_cpu",
    "bifrost",
    "create",
    "cuda",
    "intel_graphics",
    "list_tags",
    "mali",
    "riscv_cpu",
    "rocm",
]
