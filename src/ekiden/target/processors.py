"""Table of supported processors by LLVM's names.

A row has the features (target/features.py) that compiled code may use, and the core behind it: what
it multiplies and loads in a cycle, and its caches as one core sees them. Vector width and registers
follow from the features.

Sizes, ways, ports and latencies follow what vendors' guides say in general; few rows were checked
against a page or a machine, and a wrong one costs speed, never a result. Bandwidths are what one
core sustains, not what buses could carry. Measured for this table: Skylake-SP (its L2 gives 46-57
and its L3 10 bytes a cycle), Sapphire Rapids (47 and 7-8), the L3 of Zen 5; by Chips and Cheese:
the L2 of Neoverse N1 and Zen 2 (19 and 31.6). The others stand a tenth to a quarter below their
buses, and are to be replaced by who has the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target.features import ARM, ARMV7, CORTEX_M, RISCV, WASM, X86

KIB_BYTES = 1 << 10


@dataclass(frozen=True, slots=True)
class Cache:
    """Data cache level, as seen by one core."""

    size: int
    """Size in bytes, shared by all its cores."""
    ways: int
    line: int
    """Line size in bytes."""
    shared_by: int
    """Number of cores that share it."""
    bandwidth: float
    """Bytes that one core reads per cycle; for L1 as full vector loads."""
    latency: int
    """Load-to-use latency in cycles."""

    @property
    def share(self) -> int:
        """Return the bytes available to each of the cores that share it."""
        return self.size // self.shared_by

    def __str__(self) -> str:
        """Return the text form used in target options: size:ways:line:shared:bandwidth:latency."""
        head = f"{self.size}:{self.ways}:{self.line}:{self.shared_by}"
        return f"{head}:{self.bandwidth:g}:{self.latency}"


@dataclass(frozen=True, slots=True)
class CoreModel:
    """Throughput of a core per cycle, for any vector width, and its caches."""

    fma: tuple[int, int]
    """Multiply-adds per cycle, and the bits that they may total."""
    fma_latency: int
    """Latency of a multiply-add in cycles."""
    loads: tuple[int, int]
    """Loads per cycle, and the bits that they may total."""
    caches: tuple[Cache, ...]
    """Data caches, nearest first."""


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """Processor table entry: LLVM's name, architecture, features beyond the baseline, and core."""

    name: str
    architecture: str
    features: tuple[str, ...]
    core: CoreModel
    triple: str = ""
    """LLVM triple where it differs from the architecture's."""


def operations_per_cycle(of: tuple[int, int], vector_bits: int) -> int:
    """Return the full-vector operations per cycle; at least 1, even for an operation that takes
    several cycles.
    """
    max_operations, bits = of
    return max(1, min(max_operations, bits // vector_bits))


_CORE_TABLE = """
core         multiply  loads   L1       L2               L3
x86-64       1x128/8   1x128   32:8:4   256:8:16:12:1    1024:16:8:50:4
x86-64-v3    2x512/5   2x512   32:8:4   512:8:25:14:1    2048:16:10:50:4
x86-64-v4    2x1024/4  2x1024  32:8:5   1024:16:28:14:1  1408:11:10:70:16
nehalem      1x128/9   1x128   32:8:4   256:8:16:10:1    2048:16:8:38:4
sandybridge  1x256/8   2x256   32:8:4   256:8:20:12:1    2048:16:10:30:4
haswell      2x512/5   2x512   32:8:4   256:8:25:12:1    2048:16:12:36:4
skylake      2x512/4   2x512   32:8:4   256:4:32:12:1    2048:16:14:42:4
skylake-sp   2x1024/4  2x1024  32:8:5   1024:16:50:14:1  1408:11:10:70:20
sunny-cove   2x512/4   2x1024  48:12:5  512:8:48:13:1    2048:16:14:42:4
willow-cove  2x512/4   2x1024  48:12:5  1280:20:48:14:1  3072:12:14:46:4
icelake-sp   2x1024/4  2x1024  48:12:5  1280:20:48:14:1  1536:12:10:70:32
golden-cove  2x512/4   3x1024  48:12:5  1280:10:48:15:1  3072:12:14:65:8
raptor-cove  2x512/4   3x1024  48:12:5  2048:16:48:15:1  3072:12:14:65:8
lion-cove    2x512/4   3x1024  48:12:4  3072:12:48:17:1  3072:12:14:80:8
sapphire     2x1024/4  3x1024  48:12:5  2048:16:46:15:1  1920:15:8:110:32
emerald      2x1024/4  3x1024  48:12:5  2048:16:46:15:1  5120:20:8:120:48
granite      2x1024/4  3x1024  48:12:5  2048:16:46:15:1  4096:16:8:130:43
gracemont    2x256/6   2x256   32:8:3   1024:16:16:20:4  3072:12:8:70:8
zen1         2x256/5   2x256   32:8:4   512:8:25:12:1    2048:16:16:39:4
zen2         2x512/5   2x512   32:8:4   512:8:31:12:1    4096:16:20:39:4
zen3         2x512/4   3x512   32:8:4   512:8:30:12:1    4096:16:24:46:8
zen4         2x512/4   3x512   32:8:4   1024:8:30:14:1   4096:16:24:50:8
zen5         2x1024/4  2x1024  48:12:4  1024:16:56:14:1  4096:16:26:47:8
arm          1x128/5   1x128   32:2:4   512:16:16:15:1   -
cortex-a53   1x128/8   1x128   32:4:3   128:16:8:15:4    -
cortex-a72   1x128/7   1x128   32:2:4   256:16:16:18:4   -
cortex-a75   2x256/5   2x256   64:16:4  256:8:16:9:1     1024:16:8:40:4
cortex-a76   2x256/4   2x256   64:4:4   512:8:19:9:1     1024:16:8:40:4
cortex-x1    4x512/4   3x384   64:4:4   1024:8:32:10:1   2048:16:16:45:4
neoverse-n1  2x256/4   2x256   64:4:4   1024:8:19:11:1   512:16:8:100:64
neoverse-n2  2x256/4   3x384   64:4:4   1024:8:32:13:1   512:16:8:100:64
neoverse-v1  4x512/4   3x384   64:4:4   1024:8:32:10:1   512:16:8:100:64
neoverse-v2  4x512/4   3x384   64:4:4   2048:8:32:10:1   1536:12:10:120:72
firestorm    4x512/4   3x384   128:8:4  3072:12:32:16:4  -
avalanche    4x512/4   3x384   128:8:4  4096:16:32:16:4  -
riscv        1x128/6   1x128   32:8:3   128:16:8:20:4    -
cortex-a7    1x64/8    1x64    32:4:3   512:8:8:15:4     -
cortex-a9    1x64/9    1x64    32:4:4   512:8:8:25:2     -
cortex-a15   1x128/9   1x128   32:2:4   1024:16:16:20:4  -
wasm         2x256/4   2x256   32:8:5   512:8:25:14:1    2048:16:12:46:4
cortex-m4    1x32/3    1x32    16:4:2   -                -
cortex-m7    1x32/3    2x32    16:4:2   -                -
cortex-m55   1x32/3    1x32    16:4:2   -                -
"""
"""Throughput and caches of microarchitectures. multiply: multiply-adds per cycle x bits that they
may total / latency in cycles; vectors wider than a port take several. loads: the same without
latency. Caches: KiB per core:ways:bytes per cycle:latency in cycles:cores that share it; L1 is
private and its bandwidth that of the loads. Unknown bandwidths are 16 bytes per cycle for L2 and 8
for L3.
"""


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]+", text)))


def _parse_cache(text: str) -> Cache:
    """Parse a cache column of the table."""
    kb, associativity, speed, wait, cores = _parse_numbers(text)
    return Cache(kb * KIB_BYTES * cores, associativity, 64, cores, speed, wait)


def _parse_core(row: str) -> tuple[str, CoreModel]:
    """Parse an entry of the core table."""
    name, multiply, loads, l1, l2, l3 = row.split()
    max_multiply, bits, latency = _parse_numbers(multiply)
    kb, l1_ways, wait = _parse_numbers(l1)
    most_loads, load_bits = _parse_numbers(loads)
    caches = (
        _parse_cache(f"{kb}:{l1_ways}:0:{wait}:1"),
        *(_parse_cache(t) for t in (l2, l3) if t != "-"),
    )
    return name, CoreModel((max_multiply, bits), latency, (most_loads, load_bits), caches)


CORE_MODELS: dict[str, CoreModel] = dict(map(_parse_core, _CORE_TABLE.strip().splitlines()[1:]))
"""Core models by microarchitecture."""

# fmt: off
_X86_V2_FEATURES = "sse4.2 popcnt"
_X86_V3_FEATURES = f"{_X86_V2_FEATURES} avx2 fma f16c bmi bmi2 movbe lzcnt"
_X86_V4_FEATURES = f"{_X86_V3_FEATURES} avx512f avx512bw avx512cd avx512dq avx512vl"
_ICE_LAKE_FEATURES = (f"{_X86_V4_FEATURES} pclmul gfni avx512ifma avx512vbmi avx512vbmi2 avx512vnni"
        " avx512bitalg avx512vpopcntdq")
_SAPPHIRE_RAPIDS_FEATURES = (f"{_ICE_LAKE_FEATURES} avxvnni avx512bf16 avx512fp16"
        " amx-tile amx-int8 amx-bf16")
_ALDER_LAKE_FEATURES = f"{_X86_V3_FEATURES} pclmul gfni avxvnni"
_ARROW_LAKE_FEATURES = f"{_ALDER_LAKE_FEATURES} avxifma avxvnniint8 avxneconvert"
_ZEN_FEATURES = f"{_X86_V3_FEATURES} pclmul sse4a"
_ZEN4_FEATURES = f"{_ZEN_FEATURES} {_ICE_LAKE_FEATURES} avx512bf16"
_CORTEX_A76_FEATURES = "fullfp16 dotprod rdm"
_NEOVERSE_N2_FEATURES = f"{_CORTEX_A76_FEATURES} bf16 i8mm fp16fml sve sve2 flagm"
_CORTEX_A7_FEATURES = "vfp4 hwdiv-arm"
_CORTEX_M4_FEATURES = "dsp vfp4d16sp"
_CORTEX_M7_FEATURES = f"{_CORTEX_M4_FEATURES} fp-armv8d16sp fp64"
_APPLE_M1_FEATURES = f"{_CORTEX_A76_FEATURES} fp16fml flagm sha3"
_PROCESSOR_ROWS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    X86: (
        # LLVM's name      core           features
        ("x86-64",         "x86-64",      ""),
        ("x86-64-v2",      "x86-64",      _X86_V2_FEATURES),
        ("x86-64-v3",      "x86-64-v3",   _X86_V3_FEATURES),
        ("x86-64-v4",      "x86-64-v4",   _X86_V4_FEATURES),
        ("nehalem",        "nehalem",     _X86_V2_FEATURES),
        ("westmere",       "nehalem",     f"{_X86_V2_FEATURES} pclmul"),
        ("sandybridge",    "sandybridge", f"{_X86_V2_FEATURES} pclmul avx"),
        ("ivybridge",      "sandybridge", f"{_X86_V2_FEATURES} pclmul f16c"),
        ("haswell",        "haswell",     f"{_X86_V3_FEATURES} pclmul"),
        ("broadwell",      "haswell",     f"{_X86_V3_FEATURES} pclmul"),
        ("skylake",        "skylake",     f"{_X86_V3_FEATURES} pclmul"),
        ("skylake-avx512", "skylake-sp",  f"{_X86_V4_FEATURES} pclmul"),
        ("cascadelake",    "skylake-sp",  f"{_X86_V4_FEATURES} pclmul avx512vnni"),
        ("cooperlake",     "skylake-sp",  f"{_X86_V4_FEATURES} pclmul avx512vnni avx512bf16"),
        ("icelake-client", "sunny-cove",  _ICE_LAKE_FEATURES),
        ("rocketlake",     "sunny-cove",  _ICE_LAKE_FEATURES),
        ("tigerlake",      "willow-cove", f"{_ICE_LAKE_FEATURES} avx512vp2intersect"),
        ("icelake-server", "icelake-sp",  _ICE_LAKE_FEATURES),
        ("sapphirerapids", "sapphire",    _SAPPHIRE_RAPIDS_FEATURES),
        ("emeraldrapids",  "emerald",     _SAPPHIRE_RAPIDS_FEATURES),
        ("graniterapids",  "granite",     f"{_SAPPHIRE_RAPIDS_FEATURES} amx-fp16"),
        ("alderlake",      "golden-cove", _ALDER_LAKE_FEATURES),
        ("raptorlake",     "raptor-cove", _ALDER_LAKE_FEATURES),
        ("meteorlake",     "raptor-cove", _ALDER_LAKE_FEATURES),
        ("arrowlake",      "lion-cove",   _ARROW_LAKE_FEATURES),
        ("lunarlake",      "lion-cove",   f"{_ARROW_LAKE_FEATURES} avxvnniint16"),
        ("gracemont",      "gracemont",   _ALDER_LAKE_FEATURES),
        ("sierraforest",   "gracemont",   _ARROW_LAKE_FEATURES),
        ("znver1",         "zen1",        _ZEN_FEATURES),
        ("znver2",         "zen2",        _ZEN_FEATURES),
        ("znver3",         "zen3",        _ZEN_FEATURES),
        ("znver4",         "zen4",        _ZEN4_FEATURES),
        ("znver5",         "zen5",        f"{_ZEN4_FEATURES} avxvnni avx512vp2intersect"),
    ),
    ARM: (
        ("generic",        "arm",         ""),
        ("cortex-a53",     "cortex-a53",  ""),
        ("cortex-a55",     "cortex-a53",  _CORTEX_A76_FEATURES),
        ("cortex-a57",     "cortex-a72",  ""),
        ("cortex-a72",     "cortex-a72",  ""),
        ("cortex-a73",     "cortex-a72",  ""),
        ("cortex-a75",     "cortex-a75",  _CORTEX_A76_FEATURES),
        ("cortex-a76",     "cortex-a76",  _CORTEX_A76_FEATURES),
        ("cortex-a77",     "cortex-a76",  _CORTEX_A76_FEATURES),
        ("cortex-a78",     "cortex-a76",  _CORTEX_A76_FEATURES),
        ("cortex-x1",      "cortex-x1",   _CORTEX_A76_FEATURES),
        ("neoverse-n1",    "neoverse-n1", _CORTEX_A76_FEATURES),
        ("neoverse-n2",    "neoverse-n2", _NEOVERSE_N2_FEATURES),
        ("neoverse-v1",  "neoverse-v1", f"{_CORTEX_A76_FEATURES} bf16 i8mm fp16fml sve flagm sha3"),
        ("neoverse-v2",    "neoverse-v2", _NEOVERSE_N2_FEATURES),
        ("apple-m1",       "firestorm",   _APPLE_M1_FEATURES),
        ("apple-m2",       "avalanche",   f"{_APPLE_M1_FEATURES} bf16 i8mm"),
        ("apple-m3",       "avalanche",   f"{_APPLE_M1_FEATURES} bf16 i8mm"),
        ("apple-m4",       "avalanche",   f"{_APPLE_M1_FEATURES} bf16 i8mm"),
    ),
    RISCV: (
        ("generic-rv64",   "riscv",       ""),
        ("sifive-u54",     "riscv",       ""),
        ("sifive-u74",     "riscv",       ""),
        ("spacemit-x60",   "riscv",       "v"),
    ),
    ARMV7: (
        ("cortex-a9",      "cortex-a9",   ""),
        ("cortex-a5",      "cortex-a7",   "vfp4"),
        ("cortex-a7",      "cortex-a7",   _CORTEX_A7_FEATURES),
        ("cortex-a12",     "cortex-a15",  _CORTEX_A7_FEATURES),
        ("cortex-a15",     "cortex-a15",  _CORTEX_A7_FEATURES),
        ("cortex-a17",     "cortex-a15",  _CORTEX_A7_FEATURES),
    ),
    WASM: (
        ("lime1",          "wasm",        ""),
    ),
    CORTEX_M: (
        ("cortex-m3",      "cortex-m4",   ""),
        ("cortex-m4",      "cortex-m4",   _CORTEX_M4_FEATURES),
        ("cortex-m7",      "cortex-m7",   _CORTEX_M7_FEATURES),
        ("cortex-m33",     "cortex-m4",   f"{_CORTEX_M4_FEATURES} fp-armv8d16sp"),
        ("cortex-m55",     "cortex-m55",  f"{_CORTEX_M7_FEATURES} mve mve.fp"),
    ),
}
# fmt: on
_BARE_METAL_TRIPLES: Mapping[str, str] = {
    "cortex-m3": "thumbv7m-unknown-none-eabi",
    "cortex-m4": "thumbv7em-unknown-none-eabihf",
    "cortex-m7": "thumbv7em-unknown-none-eabihf",
    "cortex-m33": "thumbv8m.main-unknown-none-eabihf",
    "cortex-m55": "thumbv8.1m.main-unknown-none-eabihf",
}
"""Triples of processors without an operating system."""
ARMV7_EXTRA_FEATURE = "crc"
"""Feature of 64-bit Arm processors that run Armv7 code."""
PROCESSORS: dict[str, ProcessorRow] = {
    name: ProcessorRow(
        name,
        architecture,
        tuple(features.split()),
        CORE_MODELS[core],
        _BARE_METAL_TRIPLES.get(name, ""),
    )
    for architecture, rows in _PROCESSOR_ROWS.items()
    for name, core, features in rows
}
"""Processors by LLVM's name."""
GENERIC_PROCESSORS: dict[str, str] = {
    X86: "x86-64",
    ARM: "generic",
    RISCV: "generic-rv64",
    ARMV7: "cortex-a9",
    WASM: "lime1",
    CORTEX_M: "cortex-m4",
}
"""Baseline processor of each architecture, "generic" in a target."""

X86_MODELS: dict[tuple[str, int], tuple[tuple[int, int, str], ...]] = {
    # (vendor, family): (first model, last model, LLVM's name)
    ("AuthenticAMD", 26): ((0x00, 0xFF, "znver5"),),
    ("AuthenticAMD", 25): (
        (0x00, 0x0F, "znver3"),
        (0x10, 0x1F, "znver4"),
        (0x20, 0x5F, "znver3"),
        (0x60, 0x7F, "znver4"),
        (0xA0, 0xAF, "znver4"),
    ),
    ("AuthenticAMD", 23): ((0x00, 0x2F, "znver1"), (0x30, 0xFF, "znver2")),
    ("GenuineIntel", 6): (
        (0x2A, 0x2D, "sandybridge"),
        (0x3C, 0x3C, "haswell"),
        (0x3F, 0x3F, "haswell"),
        (0x3D, 0x3D, "broadwell"),
        (0x47, 0x4F, "broadwell"),
        (0x56, 0x56, "broadwell"),
        (0x55, 0x55, "skylake-avx512"),
        (0x5E, 0x5E, "skylake"),
        (0x6A, 0x6C, "icelake-server"),
        (0x7D, 0x7E, "icelake-client"),
        (0x8C, 0x8D, "tigerlake"),
        (0x8E, 0x8E, "skylake"),
        (0x8F, 0x8F, "sapphirerapids"),
        (0x97, 0x9A, "alderlake"),
        (0x9E, 0xA6, "skylake"),
        (0xA7, 0xA7, "rocketlake"),
        (0xAD, 0xAE, "graniterapids"),
        (0xAF, 0xAF, "sierraforest"),
        (0xAA, 0xAC, "meteorlake"),
        (0xBD, 0xBD, "lunarlake"),
        (0xB7, 0xBF, "raptorlake"),
        (0xC5, 0xC6, "arrowlake"),
        (0xCF, 0xCF, "emeraldrapids"),
    ),
}
"""Processor by the vendor, family and model that cpuid reports. Hypervisors show what they like:
`probe` believes a row only where its features are there, and no other has more of those that are.
"""
ARM_PARTS: dict[tuple[int, int], str] = {
    (0x41, 0xC05): "cortex-a5",
    (0x41, 0xC07): "cortex-a7",
    (0x41, 0xC09): "cortex-a9",
    (0x41, 0xC0D): "cortex-a12",
    (0x41, 0xC0E): "cortex-a17",
    (0x41, 0xC0F): "cortex-a15",
    (0x41, 0xD03): "cortex-a53",
    (0x41, 0xD05): "cortex-a55",
    (0x41, 0xD07): "cortex-a57",
    (0x41, 0xD08): "cortex-a72",
    (0x41, 0xD09): "cortex-a73",
    (0x41, 0xD0A): "cortex-a75",
    (0x41, 0xD0B): "cortex-a76",
    (0x41, 0xD0C): "neoverse-n1",
    (0x41, 0xD0D): "cortex-a77",
    (0x41, 0xD40): "neoverse-v1",
    (0x41, 0xD41): "cortex-a78",
    (0x41, 0xD44): "cortex-x1",
    (0x41, 0xD49): "neoverse-n2",
    (0x41, 0xD4F): "neoverse-v2",
}
"""LLVM's name by (implementer, part) in /proc/cpuinfo."""
