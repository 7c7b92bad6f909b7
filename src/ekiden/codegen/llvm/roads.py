"""The ways from LLVM to the code of devices: one row for each, of what differs.

What a thread asks or does beside computing is a word ("threadIdx.x", "barrier"), and a road says
which function of LLVM's it calls for it. A word that a road has not is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

AXES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class Call:
    """What a word becomes: a call of a function of LLVM's.

    result: its type. given: arguments that it always gets, each with its type; what the kernel
    computes comes before them. attributes: of the declaration; LLVM knows those of its intrinsics.
    """

    name: str
    result: str
    given: tuple[str, ...] = ()
    attributes: str = ""


@dataclass(frozen=True, slots=True)
class Road:
    """One way of LLVM to the code of devices.

    format: of the code. kind: of the target, as messages say it. triple: LLVM's. layout: of data.
    convention: what makes a function a kernel. numbers: the type of a thread's. offsets: whether
    memory comes as a pointer and a distance in bytes. constants: the address space of constants.
    binary: whether its code is bytes for a
    compiler of the device that optimises, else text that LLVM's passes have gone over. calls: word
    -> what is called. hint: the metadata of the vectors that a kernel computes in.
    has_wide_accesses: whether contiguous lanes are one access only where that is aligned
    (`wide_access`).
    """

    format: str
    kind: str
    triple: str
    layout: str
    convention: str
    numbers: str
    offsets: bool
    constants: int
    binary: bool
    calls: Mapping[str, Call]
    hint: str = ""
    has_wide_accesses: bool = False

    def cpu(self, target: Target) -> str:
        """LLVM's name of the processor."""
        oldest = target.kind.oldest
        return target.arch or (f"sm_{oldest}" if oldest else "")

    def triple_of(self, target: Target) -> str:
        """LLVM's triple, the first word of which a target may say, more exactly than the row."""
        machine, dash, rest = self.triple.partition("-")
        said = str(target.attrs.get("mtriple", ""))
        return f"{machine if machine.startswith(said) else said}{dash}{rest}"


MEMORY, SHARED = 1, 3
"""The address spaces of memory of the device and of a block: the same on all roads."""


def _numbers(names: Mapping[str, str], call: str, result: str, by_number: bool) -> dict[str, Call]:
    """`threadIdx.x` and the like: the axis is part of the function's name, or its argument."""
    made = {}
    for word, name in names.items():
        for number, axis in enumerate(AXES):
            named = call.format(name=name, axis=axis, length=len(name))
            given, attributes = ((f"i32 {number}",), READS) if by_number else ((), "")
            made[f"{word}.{axis}"] = Call(named, result, given, attributes)
    return made


READS = "nounwind willreturn memory(none)"
OF_NVIDIA = {"threadIdx": "tid", "blockIdx": "ctaid", "blockDim": "ntid", "gridDim": "nctaid"}
OF_OPENCL = {
    "threadIdx": "get_local_id",
    "blockIdx": "get_group_id",
    "blockDim": "get_local_size",
    "gridDim": "get_num_groups",
}
SHUFFLES = {
    f"{word}.{name}": Call(f"llvm.nvvm.shfl.sync.{way}.{name}", kind)
    for word, way in (
        ("tvm_warp_shuffle", "idx"),
        ("tvm_warp_shuffle_up", "up"),
        ("tvm_warp_shuffle_down", "down"),
    )
    for kind, name in (("float", "f32"), ("i32", "i32"))
}
ALL_FENCES = 3
"""CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE"""

# fmt: off
ROADS: dict[str, Road] = {each.format: each for each in (
    Road(
        "ptx", "nvptx", "nvptx64-nvidia-cuda",
        layout="e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64",
        convention="ptx_kernel", numbers="int32", offsets=False, constants=4, binary=False,
        calls={
            **_numbers(OF_NVIDIA, "llvm.nvvm.read.ptx.sreg.{name}.{axis}", "i32", by_number=False),
            "barrier": Call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ("i32 0",)),
            "tvm_warp_activemask": Call("llvm.nvvm.activemask", "i32"),
            **SHUFFLES,
        },
        has_wide_accesses=True,
    ),
    Road(
        "spirv", "opencl", "spirv64v1.0-unknown-unknown",
        layout="e-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024"
               "-n8:16:32:64-G1",
        convention="spir_kernel", numbers="int64", offsets=True, constants=2, binary=True,
        calls={
            **_numbers(OF_OPENCL, "_Z{length}{name}j", "i64", by_number=True),
            "barrier": Call("_Z7barrierj", "void", (f"i32 {ALL_FENCES}",), "convergent nounwind"),
        },
        hint="vec_type_hint",
    ),
)}
# fmt: on
"""By format. Later architectures than the oldest run its PTX too."""

__all__ = ["MEMORY", "ROADS", "SHARED", "Call", "Road"]
