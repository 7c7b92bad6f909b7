"""Instruction-set features of processors, and the kernel abilities defined in terms of them.

The C runtime's table is made from FEATURES (scripts/generate_cpu.py): what an artifact says it
needs is looked up in the same rows on the machine that loads it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.runtime.lazy_dataclass import dataclass

X86, ARM, RISCV, WASM, CORTEX_M = "x86-64", "aarch64", "riscv64", "wasm32", "cortex-m"
ARMV7 = "armv7"
ARCHITECTURES = (X86, ARM, RISCV, ARMV7, WASM, CORTEX_M)
POINTER_BYTES = {X86: 8, ARM: 8, RISCV: 8, ARMV7: 4, WASM: 4, CORTEX_M: 4}


@dataclass(frozen=True, slots=True)
class Feature:
    """Instruction-set extension that a processor may have."""

    name: str
    """LLVM's name."""
    architecture: str
    flag: str = ""
    """Flag in /proc/cpuinfo and in the required flags of artifacts; "" if no loader has to check
    it: every processor has it, it is a tuning hint, or compiled code does not use it."""
    place: tuple[str, int] = ("", 0)
    """Feature bit: the word (DETECTION_WORDS) and the number of the bit."""
    state: str = ""
    """Register state that the operating system must save for it: "ymm", "zmm", "tile", or "" for
    all others."""
    implies: tuple[str, ...] = ()
    """Features that it implies."""


DETECTION_WORDS: dict[str, tuple[str, ...]] = {
    X86: ("1.ecx", "7.ebx", "7.ecx", "7.edx", "7.1.eax", "7.1.edx", "80000001.ecx"),
    ARM: ("hwcap", "hwcap.high", "hwcap2"),
    RISCV: ("hwcap",),
    ARMV7: ("hwcap", "hwcap2"),
    WASM: ("features",),
}
"""Words that feature detection reads: cpuid results by leaf, auxv entries, and for WebAssembly the
host's answer.
"""


def _x86_features(*rows: tuple[str, str, str, int, str, str]) -> list[Feature]:
    return [
        Feature(name, X86, flag, (word, bit), state, tuple(implies.split()))
        for name, flag, word, bit, state, implies in rows
    ]


# fmt: off
_X86_FEATURES = _x86_features(
    # LLVM             flag                 word           bit registers implies
    ("sse3",            "pni",              "1.ecx",         0, "",     ""),
    ("pclmul",          "pclmulqdq",        "1.ecx",         1, "",     ""),
    ("ssse3",           "ssse3",            "1.ecx",         9, "",     "sse3"),
    ("sse4.1",          "sse4_1",           "1.ecx",        19, "",     "ssse3"),
    ("sse4.2",          "sse4_2",           "1.ecx",        20, "",     "sse4.1"),
    ("movbe",           "movbe",            "1.ecx",        22, "",     ""),
    ("popcnt",          "popcnt",           "1.ecx",        23, "",     ""),
    ("bmi",             "bmi1",             "7.ebx",         3, "",     ""),
    ("bmi2",            "bmi2",             "7.ebx",         8, "",     ""),
    ("gfni",            "gfni",             "7.ecx",         8, "",     ""),
    ("lzcnt",           "abm",              "80000001.ecx",  5, "",     ""),
    ("sse4a",           "sse4a",            "80000001.ecx",  6, "",     "sse3"),
    ("avx",             "avx",              "1.ecx",        28, "ymm",  "sse4.2"),
    ("fma",             "fma",              "1.ecx",        12, "ymm",  "avx"),
    ("f16c",            "f16c",             "1.ecx",        29, "ymm",  "avx"),
    ("avx2",            "avx2",             "7.ebx",         5, "ymm",  "avx"),
    ("avxvnni",         "avx_vnni",         "7.1.eax",       4, "ymm",  "avx2"),
    ("avxifma",         "avx_ifma",         "7.1.eax",      23, "ymm",  "avx2"),
    ("avxvnniint8",     "avx_vnni_int8",    "7.1.edx",       4, "ymm",  "avx2"),
    ("avxneconvert",    "avx_ne_convert",   "7.1.edx",       5, "ymm",  "avx2"),
    ("avxvnniint16",    "avx_vnni_int16",   "7.1.edx",      10, "ymm",  "avx2"),
    ("avx512f",         "avx512f",          "7.ebx",        16, "zmm",  "avx2 fma f16c"),
    ("avx512dq",        "avx512dq",         "7.ebx",        17, "zmm",  "avx512f"),
    ("avx512ifma",      "avx512ifma",       "7.ebx",        21, "zmm",  "avx512f"),
    ("avx512cd",        "avx512cd",         "7.ebx",        28, "zmm",  "avx512f"),
    ("avx512bw",        "avx512bw",         "7.ebx",        30, "zmm",  "avx512f"),
    ("avx512vl",        "avx512vl",         "7.ebx",        31, "zmm",  "avx512f"),
    ("avx512vbmi",      "avx512vbmi",       "7.ecx",         1, "zmm",  "avx512bw"),
    ("avx512vbmi2",     "avx512_vbmi2",     "7.ecx",         6, "zmm",  "avx512bw"),
    ("avx512vnni",      "avx512_vnni",      "7.ecx",        11, "zmm",  "avx512f"),
    ("avx512bitalg",    "avx512_bitalg",    "7.ecx",        12, "zmm",  "avx512bw"),
    ("avx512vpopcntdq", "avx512_vpopcntdq", "7.ecx",        14, "zmm",  "avx512f"),
    ("avx512vp2intersect", "avx512_vp2intersect", "7.edx",   8, "zmm",  "avx512f"),
    ("avx512fp16",      "avx512_fp16",      "7.edx",        23, "zmm",
     "avx512bw avx512dq avx512vl"),
    ("avx512bf16",      "avx512_bf16",      "7.1.eax",       5, "zmm",  "avx512bw"),
    ("amx-bf16",        "amx_bf16",         "7.edx",        22, "tile", "amx-tile"),
    ("amx-tile",        "amx_tile",         "7.edx",        24, "tile", ""),
    ("amx-int8",        "amx_int8",         "7.edx",        25, "tile", "amx-tile"),
    ("amx-fp16",        "amx_fp16",         "7.1.eax",      21, "tile", "amx-tile"),
)
_ARM_FEATURES = [
    Feature("fullfp16", ARM, "asimdhp",  ("hwcap",  10)),
    Feature("rdm",      ARM, "asimdrdm", ("hwcap",  12)),
    Feature("sha3",     ARM, "sha3",     ("hwcap",  17)),
    Feature("dotprod",  ARM, "asimddp",  ("hwcap",  20)),
    Feature("sve",      ARM, "sve",      ("hwcap",  22), implies=("fullfp16",)),
    Feature("fp16fml",  ARM, "asimdfhm", ("hwcap",  23), implies=("fullfp16",)),
    Feature("flagm",    ARM, "flagm",    ("hwcap",  27)),
    Feature("sve2",     ARM, "sve2",     ("hwcap2",  1), implies=("sve",)),
    Feature("i8mm",     ARM, "i8mm",     ("hwcap2", 13)),
    Feature("bf16",     ARM, "bf16",     ("hwcap2", 14)),
]
_RISCV_FEATURES = [Feature("v",  RISCV, "v",      ("hwcap",  21))]
_ARMV7_FEATURES = [
    Feature("vfp4",      ARMV7, "vfpv4", ("hwcap", 16)),
    Feature("hwdiv-arm", ARMV7, "idiva", ("hwcap", 17)),
    Feature("crc",       ARMV7, "crc32", ("hwcap2", 4), implies=("fp-armv8", "hwdiv-arm")),
    Feature("fp-armv8",  ARMV7, implies=("vfp4",)),
]
_WASM_FEATURES = [
    Feature("simd128",      WASM, "simd128",      ("features", 0)),
    Feature("relaxed-simd", WASM, "relaxed_simd", ("features", 1), implies=("simd128",)),
]
_FLAGLESS_FEATURES = {
    X86: "mmx sse sse2 fxsr cx8 cx16 cmov 64bit sahf crc32 prfchw aes vaes vpclmulqdq sha adx"
         " prefer-256-bit prefer-128-bit",
    ARM: "neon fp-armv8 crc lse aes sha2 rcpc perfmon ras",
    RISCV: "m a f d c zicsr zifencei",
    ARMV7: "neon fp16",
    WASM: "mutable-globals bulk-memory bulk-memory-opt sign-ext nontrapping-fptoint multivalue"
          " reference-types",
    CORTEX_M: "dsp vfp4d16sp fp-armv8d16sp fp64 mve mve.fp",
}
# fmt: on
BASELINE_FEATURES: dict[str, frozenset[str]] = {
    X86: frozenset("mmx sse sse2 fxsr cx8 cmov 64bit".split()),
    ARM: frozenset("neon fp-armv8".split()),
    RISCV: frozenset("m a f d c zicsr zifencei".split()),
    ARMV7: frozenset("neon fp16".split()),
    WASM: frozenset(
        "mutable-globals bulk-memory bulk-memory-opt sign-ext nontrapping-fptoint".split()
    ),
    CORTEX_M: frozenset(),
}
"""Features that every supported processor has; the C runtime is compiled for them."""

FEATURE_TABLE: dict[tuple[str, str], Feature] = {
    (feature.architecture, feature.name): feature
    for feature in (
        *_X86_FEATURES,
        *_ARM_FEATURES,
        *_RISCV_FEATURES,
        *_ARMV7_FEATURES,
        *_WASM_FEATURES,
        *(
            Feature(name, arch)
            for arch, names in _FLAGLESS_FEATURES.items()
            for name in names.split()
        ),
    )
}
"""Features by architecture and LLVM's name."""
FEATURES_BY_FLAG: dict[tuple[str, str], Feature] = {
    (feature.architecture, feature.flag): feature
    for feature in FEATURE_TABLE.values()
    if feature.flag
}


def feature_names(architecture: str) -> list[str]:
    """Return the feature names of an architecture."""
    return [name for arch, name in FEATURE_TABLE if arch == architecture]


def feature_closure(architecture: str, names: Iterable[str]) -> frozenset[str]:
    """Apply feature names in the order of "+x" and "-x", with everything they imply; removing a
    feature also removes those that depend on it. A name without a sign is added.
    """
    enabled: set[str] = set(BASELINE_FEATURES[architecture])
    for name in names:
        if not name.startswith("-"):
            enabled |= _implied_features(architecture, name.removeprefix("+"))
        else:
            # Removing a feature removes every feature that implies it.
            enabled = {f for f in enabled if name[1:] not in _implied_features(architecture, f)}
    return frozenset(enabled)


def _implied_features(architecture: str, name: str) -> set[str]:
    """Return a feature and everything it implies; chains are at most five long."""
    implied, waiting = set[str](), [name]
    while waiting:
        one = waiting.pop()
        if one not in implied:
            implied.add(one)
            waiting.extend(FEATURE_TABLE[architecture, one].implies)
    return implied


_Alternatives = tuple[str, ...]
"""Alternative feature sets of an ability, each a text of required features; the first available one
counts.
"""

# fmt: off
ABILITIES: dict[str, dict[str, _Alternatives]] = {
    # what kernels ask for: architecture -> features
    "fma":         {X86: ("fma",),                  ARM: ("",),          RISCV: ("",),
                    ARMV7: ("vfp4",),               CORTEX_M: ("vfp4d16sp",)},
    "madd":        {WASM: ("relaxed-simd",)},
    "broadcasts":  {X86: ("avx",),                  ARM: ("",),          RISCV: ("",),
                    ARMV7: ("",),                   WASM: ("simd128",)},
    "rounding":    {X86: ("sse4.1",),               ARM: ("",),          WASM: ("",),
                    ARMV7: ("fp-armv8",),           CORTEX_M: ("fp-armv8d16sp",)},
    "rounds_to_int": {X86: ("",)},
    "float16":     {X86: ("f16c",),                 ARM: ("",),          ARMV7: ("",)},
    "madd_s16":    {X86: ("",),                     WASM: ("simd128",)},
    "integers_256": {X86: ("avx2",)},
    "mul_even_s32": {X86: ("sse4.1",)},
    "madd_u8s8":   {X86: ("ssse3",)},
    "sign_s8":     {X86: ("ssse3",)},
    "dot4_u8s8":   {X86: ("avx512vnni", "avxvnni"), ARM: ("i8mm",)},
    "dot4_s8s8":   {X86: ("avxvnniint8",),          ARM: ("dotprod",)},
    "dot4_u8u8":   {X86: ("avxvnniint8",),          ARM: ("dotprod",)},
    "smlad":       {CORTEX_M: ("dsp",)},
    "helium":      {CORTEX_M: ("mve.fp",)},
    "dot2_bf16":   {X86: ("avx512bf16",),           ARM: ("bf16",)},
    "dot2_s16":    {X86: ("avx512vnni", "avxvnni")},
    "fma_fp16":    {X86: ("avx512fp16",),           ARM: ("fullfp16",),},
    "i8mm":        {ARM: ("i8mm",)},
    "sve":         {ARM: ("sve",)},
    "sve2":        {ARM: ("sve2",)},
    "amx_int8":    {X86: ("amx-int8",)},
    "amx_bf16":    {X86: ("amx-bf16",)},
    "amx_fp16":    {X86: ("amx-fp16",)},
    "scalef":      {X86: ("avx512f",)},
    "masks":       {X86: ("avx512bw avx512dq avx512vl",), ARM: ("sve",), RISCV: ("v",)},
    "shuffles":    {X86: ("",),                     ARM: ("",),          RISCV: ("v",),
                    ARMV7: ("",),                   WASM: ("simd128",)},
    "flush_subnormals": {X86: ("",),                ARM: ("",)},
    "tensor_cores": {},
    "warp_shuffles": {},
    "near_memory": {},
    "permute_u8":  {X86: ("avx512vbmi",),           ARM: ("",),          RISCV: ("v",)},
}
"""fma: a * b + c rounded once. madd: the same rounded once or twice. broadcasts: loads of
one number into all lanes. rounding: to whole numbers. rounds_to_int: floats to the nearest int32,
halves to even, by one instruction (cvtps2dq). float16: conversions. madd_s16: sums of two
products of int16 (pmaddwd). mul_even_s32: products of every second int32, of int64 (pmuldq).
madd_u8s8: sums of two of uint8 and int8, saturated to 16 bits (pmaddubsw).
sign_s8: bytes with the signs of others (psignb).
dot4_*: sums of four products of bytes into int32, exact. smlad: sums of two products of int16, and
bytes that are widened two by two. helium: vectors of 128 bits, and sums of all products of two.
dot2_bf16: of two of bfloat16 into float32. dot2_s16: pmaddwd that adds. i8mm: products of 2x8 and
8x2 bytes (smmla, ummla, usmmla). amx_*: of registers that hold matrices. integers_256: whole
numbers in vectors of 256 bits, where AVX alone has floats.
scalef: a * 2**b. shuffles: elements of two vectors in any order (C has loops for it).
tensor_cores: products of matrices that a warp holds, of devices alone. warp_shuffles: threads of a
warp hand each other what is in registers, likewise. near_memory: neighbours of up to 16 bytes that
a thread of a device loads or stores as one.
flush_subnormals: a mode of the thread in which they are 0. masks: loads, stores and arithmetic of
some lanes.
"""
# fmt: on


UNUSED_ABILITIES = frozenset("amx_fp16 fma_fp16 sve sve2".split())
"""Abilities that no code generator uses."""


def unused_features(architecture: str) -> frozenset[str]:
    """Return the features that serve only unused abilities: generated code is compiled without them
    and does not require them.
    """
    serving: dict[bool, set[str]] = {True: set(), False: set()}
    for ability, alternatives in ABILITIES.items():
        for name in " ".join(alternatives.get(architecture, ())).split():
            serving[ability in UNUSED_ABILITIES] |= _implied_features(architecture, name)
    # A feature that a used ability needs as well counts as used.
    alone = serving[True] - serving[False]
    return frozenset(
        f for f in feature_names(architecture) if alone & _implied_features(architecture, f)
    )


def has_any(features: frozenset[str], alternatives: Iterable[str]) -> bool:
    """Return whether a closed feature set contains every feature of at least one alternative."""
    return any(features.issuperset(alternative.split()) for alternative in alternatives)


def vector_registers(architecture: str, features: frozenset[str]) -> tuple[int, int]:
    """Return (width in bits of the widest profitable vector registers, their number)."""
    if architecture == X86:
        if has_any(features, ABILITIES["masks"][X86]):
            return 512, 32
        return (256 if "avx" in features else 128), 16
    if architecture == CORTEX_M:
        return (128, 8) if has_any(features, ABILITIES["helium"][CORTEX_M]) else (32, 12)
    if architecture == RISCV and "v" not in features:
        return 128, 8  # floats of registers that hold one: vectors here are four of 32
    if architecture == ARMV7:
        return 128, 16
    if (
        architecture == WASM
    ):  # the format has no limit; engines have the registers of x86-64 or AArch64
        return (128, 16) if "simd128" in features else (128, 8)
    return 128, 32
