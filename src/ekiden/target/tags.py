"""Target tags, TVM's short names for full target configurations, which the parser looks up."""

from __future__ import annotations


def _cuda_tag(arch: str, registers: int = 65536, **more: object) -> dict[str, object]:
    return {
        "kind": "cuda",
        "keys": ["cuda", "gpu"],
        "arch": arch,
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
        "thread_warp_size": 32,
        "registers_per_block": registers,
        **more,
    }


def _llvm_tag(triple: str, cpu: str, cores: int) -> dict[str, object]:
    return {"kind": "llvm", "mtriple": triple, "mcpu": cpu, "num-cores": cores}


def _aws_tag(size: str, cores: int) -> dict[str, object]:
    cpu = "cascadelake" if size in ("12xlarge", "24xlarge") else "skylake-avx512"
    return {**_llvm_tag("x86_64-unknown-linux-gnu", cpu, cores), "keys": ["x86", "cpu"]}


_LINUX_ARM_TRIPLE = "aarch64-unknown-linux-gnu"
# fmt: off
_CUDA_TAGS = {
    "sm_50": "nvidia/tesla-m60",
    "sm_53": "nvidia/jetson-nano",
    "sm_60": "nvidia/tesla-p100",
    "sm_61": "nvidia/tesla-p4 nvidia/geforce-gtx-1080-ti",
    "sm_70": "nvidia/nvidia-v100",
    "sm_72": "nvidia/jetson-agx-xavier",
    "sm_75": "nvidia/nvidia-t4 nvidia/geforce-rtx-2080-ti nvidia/nvidia-titan-rtx",
    "sm_80": "nvidia/nvidia-a100",
    "sm_86": "nvidia/nvidia-a10g nvidia/geforce-rtx-3070 nvidia/geforce-rtx-3090",
    "sm_87": "nvidia/jetson-orin-nano nvidia/jetson-agx-orin-64gb",
    "sm_89": "nvidia/geforce-rtx-4090",
    "sm_90a": "nvidia/nvidia-h100",
}
_AWS_CORES = {"xlarge": 2, "2xlarge": 4, "4xlarge": 8, "9xlarge": 18, "12xlarge": 24,
              "18xlarge": 36,
        "24xlarge": 48}
TARGET_TAGS: dict[str, dict[str, object]] = {
    **{tag: _cuda_tag(arch) for arch, tags in _CUDA_TAGS.items() for tag in tags.split()},
    "raspberry-pi/3b-aarch64": _llvm_tag(_LINUX_ARM_TRIPLE, "cortex-a53", 4),
    "raspberry-pi/4b-aarch64": _llvm_tag(_LINUX_ARM_TRIPLE, "cortex-a72", 4),
    "raspberry-pi/5-aarch64":  _llvm_tag(_LINUX_ARM_TRIPLE, "cortex-a76", 4),
    "aws/cpu/graviton2":       _llvm_tag(_LINUX_ARM_TRIPLE, "neoverse-n1", 64),
    "aws/cpu/graviton3":       _llvm_tag(_LINUX_ARM_TRIPLE, "neoverse-v1", 64),
    "aws/cpu/graviton4":       _llvm_tag(_LINUX_ARM_TRIPLE, "neoverse-v2", 96),
    **{f"aws/cpu/c5.{size}": _aws_tag(size, cores) for size, cores in _AWS_CORES.items()},
    "apple/m1-gpu": {"kind": "metal", "max_threads_per_block": 1024, "thread_warp_size": 32,
                     "max_shared_memory_per_block": 32768},
}
# fmt: on
"""Tag -> full target configuration."""
TARGET_TAGS["nvidia/jetson-nano"]["registers_per_block"] = 32768
