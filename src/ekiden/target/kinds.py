"""Target kinds: those with a code generator, and those of TVM known by name alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.features import UNUSED_ABILITIES

CPU_DEVICE_TYPE = 1
"""DLPack device type of processors."""
MAX_KERNEL_ARGUMENTS = 63
"""Maximum number of kernel arguments: the runtime's limit, and OpenCL's guaranteed minimum."""
OptionType = type[int] | type[bool] | type[str] | type[list[str]]


@dataclass(frozen=True, slots=True)
class TargetOption:
    """An option of a target string that is not a processor fact."""

    type: OptionType
    ignored_values: tuple[object, ...] | None = ()
    """Values without effect (None: any value); such an option is only a label. Others are refused
    at use.
    """
    default: int | None = None
    minimum: int = 0
    """Minimum of a numeric option."""
    pattern: str = ""
    """Regular expression that a text option must match in full."""
    expected: str = ""
    """Description of the pattern for error messages."""
    default_suffix: str = ""
    """Suffix without meaning, which is dropped from the text."""


@dataclass(frozen=True, slots=True)
class TargetKind:
    """A kind of target (TVM's name)."""

    name: str
    device_type: int
    """DLPack type of the devices that its code runs on."""
    default_keys: tuple[str, ...]
    has_generator: bool = False
    """Whether Ekiden has a code generator for it."""
    abilities: frozenset[str] | None = frozenset()
    """Processor abilities that its code generator uses; None for all."""
    has_threads: bool = False
    """Whether its programs are bound to device threads."""
    own_options: Mapping[str, TargetOption] = field(default_factory=dict, hash=False, repr=False)
    least_arch: Mapping[str, int] = field(default_factory=dict, hash=False, repr=False)
    """Minimum architecture number (`-arch=sm_80`) of each ability."""
    oldest: int = 0
    """Architecture number assumed where none is given; 0 for any."""
    block_memory: int = 1 << 14
    """Minimum shared memory of a block in bytes."""
    triples: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Code format of each LLVM triple (`-mtriple=spirv64`)."""
    asks_device: bool = False
    """Whether a target without an explicit device queries the attributes of this machine's device,
    if there is one.
    """

    @property
    def default_device_type(self) -> int:
        """Return TVM's name of `device_type`."""
        return self.device_type

    def can_use(self, ability: str) -> bool:
        """Return whether the generator emits code for an ability."""
        return ability not in UNUSED_ABILITIES and (
            self.abilities is None or ability in self.abilities
        )

    @property
    def is_cpu(self) -> bool:
        """Return whether targets of this kind have processor facts."""
        return self.device_type == CPU_DEVICE_TYPE

    @property
    def option_table(self) -> dict[str, TargetOption]:
        """Return the options besides the processor facts."""
        return {**LABEL_OPTIONS, **self.own_options}

    @property
    def options(self) -> dict[str, str]:
        """Return the type names of the options by name (TVM's face)."""
        names = {int: "int", bool: "bool", str: "str"}
        return {name: names.get(o.type, "list") for name, o in self.option_table.items()}

    def __str__(self) -> str:
        """Return its name."""
        return self.name


# fmt: off
LABEL_OPTIONS: dict[str, TargetOption] = {
    "keys":   TargetOption(list[str], None),
    "device": TargetOption(str,       None),
    "model":  TargetOption(str,       None),
    "tag":    TargetOption(str,       None),
    "libs":   TargetOption(list[str]),
}
"""Label options, common to all kinds. They say what a target is called, but for libraries, which
nothing here calls.
"""
_CODE_OPTIONS: dict[str, TargetOption] = {
    "bounds":       TargetOption(str, ("", "check")),
    "mabi":         TargetOption(str, ("lp64d",)),
    "mfloat-abi":   TargetOption(str, ("hard",)),
    "system-lib":   TargetOption(bool, (False,)),
    "link-params":  TargetOption(bool, (False,)),
    "fast-math":    TargetOption(bool, (False,)),
    "opt-level":    TargetOption(int, (3,)),
    "runtime":      TargetOption(str, ("cpp", "c++")),
    "executor":     TargetOption(str, ("graph", "vm")),
    "jit":          TargetOption(str),
    "cl-opt":       TargetOption(list[str]),
    "march":        TargetOption(str),
    "vector-width": TargetOption(int),
    "interface-api": TargetOption(str),
    "unpacked-api": TargetOption(bool, (False,)),
    "constants-byte-alignment": TargetOption(int, (64,)),
    "workspace-byte-alignment": TargetOption(int, (64,)),
}
_GPU_OPTIONS: dict[str, TargetOption] = {
    "arch":    TargetOption(str, None),
    "mcpu":    TargetOption(str),
    "mtriple": TargetOption(str),
    "mattr":   TargetOption(list[str]),
    "max_num_threads":             TargetOption(int, None, 1024, 1),
    "max_threads_per_block":       TargetOption(int, None, None, 1),
    "thread_warp_size":            TargetOption(int, None, 32, 1),
    "max_shared_memory_per_block": TargetOption(int, None),
    "registers_per_block":         TargetOption(int, None),
    "l2_cache_size_bytes":         TargetOption(int, None),
    "max_function_args":           TargetOption(int, None, None, -1),
    "texture_spatial_limit":       TargetOption(int, None),
    "device_name":                 TargetOption(str, None),
    "device_type":                 TargetOption(str, None),
    "from_device":                 TargetOption(int, None),
    "system-lib":                  TargetOption(bool, None),
}
_UNKNOWN_GPU_OPTIONS = {**_GPU_OPTIONS, "max_num_threads": TargetOption(int, None, 256, 1),
                        "thread_warp_size": TargetOption(int, None, 1, 1),
                        "vector-bits": TargetOption(int, None, 32, 8)}
"""Defaults of an unknown device: scalar code."""
_CUDA_OPTIONS = {**_GPU_OPTIONS, "cores": TargetOption(int, None, 1),
                 "arch": TargetOption(str, None, pattern=r"sm_([5-9]\d|1\d\d)[af]?",
                        expected="an architecture from 'sm_50' on, as 'sm_80' or 'sm_90a'")}
_SPIRV_TRIPLES = {f"spirv64{version}": "spirv" for version in ("", *(f"v1.{n}" for n in range(5)))}
"""Code format of each SPIR-V triple for OpenCL. One without a version is the oldest, which every
driver of SPIR-V takes.
"""
_OPENCL_OPTIONS = {**_UNKNOWN_GPU_OPTIONS, "cores": TargetOption(int, None, 1, 1),
                   "local_memory": TargetOption(int, None, 1),
                   "mtriple": TargetOption(str, tuple(_SPIRV_TRIPLES),
                       default_suffix="-unknown-unknown")}

_VULKAN_OPTIONS = {**_UNKNOWN_GPU_OPTIONS, "cores": TargetOption(int, None, 1, 1),
                   "local_memory": TargetOption(int, None, 1)}

_C_ABILITIES = frozenset(("fma", "rounding", "float16",    # C compilers select these themselves
                          "flush_subnormals",
                          "smlad", "helium"))              # by name, in words that compilers know

_THREAD_ABILITIES = frozenset(("fma", "rounding"))     # functions of the languages of devices
_DOT_ABILITIES = ("dot4_s8s8", "dot4_u8u8", "dot4_u8s8")
_OPENCL_ABILITIES = _THREAD_ABILITIES | {"near_memory"}  # no shuffles: a thread's lane is unknown
_VULKAN_ABILITIES = frozenset(("rounding",))            # GLSL.std.450's Fma may round twice
_METAL_ABILITIES = _THREAD_ABILITIES | {"warp_shuffles"}
_PTX_ABILITIES = _OPENCL_ABILITIES | _METAL_ABILITIES | {*_DOT_ABILITIES}
_CUDA_ABILITIES = _PTX_ABILITIES | {"tensor_cores"}
_NVIDIA_MIN_ARCH = {"tensor_cores": 80, **dict.fromkeys(_DOT_ABILITIES, 61)}
# LLVM's PTX of older ones knows no shfl.sync
_NVPTX_MIN_ARCH = {**_NVIDIA_MIN_ARCH, "warp_shuffles": 70}

TARGET_KINDS: dict[str, TargetKind] = {kind.name: kind for kind in (
    #          name  device  keys              generator
    TargetKind("llvm",      1, ("cpu",),              True, abilities=None,
               own_options=_CODE_OPTIONS),
    TargetKind("c",         1, ("cpu",),              True, abilities=_C_ABILITIES,
               own_options=_CODE_OPTIONS),
    TargetKind("cuda",      2, ("cuda", "gpu"),       True,  _CUDA_ABILITIES,    True,
               _CUDA_OPTIONS,
               _NVIDIA_MIN_ARCH, block_memory=48 << 10, asks_device=True),
    TargetKind("nvptx",     2, ("cuda", "gpu"),       True,  _PTX_ABILITIES,     True,
               _CUDA_OPTIONS,
               _NVPTX_MIN_ARCH, 75, block_memory=48 << 10, asks_device=True),
    TargetKind("opencl",    4, ("opencl", "gpu"),     True,  _OPENCL_ABILITIES,  True,
               _OPENCL_OPTIONS,
               block_memory=32 << 10, triples=_SPIRV_TRIPLES, asks_device=True),
    TargetKind("vulkan",    7, ("vulkan", "gpu"),     True,  _VULKAN_ABILITIES,  True,
               _VULKAN_OPTIONS,
               asks_device=True),
    TargetKind("metal",     8, ("metal", "gpu"),      True,  _METAL_ABILITIES,   True, _GPU_OPTIONS,
               block_memory=32 << 10),
    TargetKind("rocm",     10, ("rocm", "gpu"),       False, _THREAD_ABILITIES, True, _GPU_OPTIONS),
    TargetKind("webgpu",   15, ("webgpu", "gpu"),     True,  _THREAD_ABILITIES, True,
               _UNKNOWN_GPU_OPTIONS),
    TargetKind("hexagon",  16, ("hexagon", "cpu"),    own_options=_GPU_OPTIONS),
)}
# fmt: on
"""Target kinds by name."""


def supported_kinds() -> str:
    """Return the kinds that code can be generated for, formatted for messages."""
    names = [repr(k.name) for k in TARGET_KINDS.values() if k.has_generator]
    return f"{', '.join(names[:-1])} and {names[-1]}"
