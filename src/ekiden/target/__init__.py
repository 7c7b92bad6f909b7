"""Compilation targets as values with the attributes of their processor, and virtual devices."""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.target.board_targets import (
        arm_cpu,
        bifrost,
        create,
        cuda,
        intel_graphics,
        list_tags,
        mali,
        micro,
        riscv_cpu,
        rocm,
    )
    from ekiden.target.generic_functions import (
        GenericFunc,
        generic_func,
        get_native_generic_func,
        override_native_generic_func,
    )
    from ekiden.target.processors import Cache
    from ekiden.target.target import Target, TargetKind, TargetLike, target_or_current
    from ekiden.target.virtual_device import (
        HOST,
        CompilationConfig,
        VirtualDevice,
        make_compilation_config,
    )

__all__ = [
    "HOST",
    "Cache",
    "CompilationConfig",
    "GenericFunc",
    "Target",
    "TargetKind",
    "TargetLike",
    "VirtualDevice",
    "arm_cpu",
    "bifrost",
    "create",
    "cuda",
    "generic_func",
    "get_native_generic_func",
    "intel_graphics",
    "list_tags",
    "make_compilation_config",
    "mali",
    "micro",
    "override_native_generic_func",
    "riscv_cpu",
    "rocm",
    "target_or_current",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "board_targets": (
                "arm_cpu bifrost create cuda intel_graphics list_tags mali micro riscv_cpu rocm"
            ),
            "generic_functions": (
                "GenericFunc generic_func get_native_generic_func override_native_generic_func"
            ),
            "processors": "Cache",
            "target": "Target TargetKind TargetLike target_or_current",
            "virtual_device": "HOST CompilationConfig VirtualDevice make_compilation_config",
        },
        registers=True,
    )
