"""GPU backends of LLVM: triples, calling conventions and intrinsics of each; one row for each, of
what differs.

What a thread asks or does beside computing is a word ("threadIdx.x", "barrier"), and a backend
says which function of LLVM's it calls for it. A word that a backend lacks is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

THREAD_AXES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class IntrinsicCall:
    """Call of an LLVM function: its result type, the fixed arguments after the computed ones, each
    with its type, and the attributes of its declaration.
    """

    name: str
    result: str
    fixed_arguments: tuple[str, ...] = ()
    attributes: str = ""


@dataclass(frozen=True, slots=True)
class GpuBackend:
    """LLVM backend for device code: code format, target kind, triple, data layout, calling
    convention of kernels, index type, address spaces and intrinsics.
    """

    format: str
    kind: str
    triple: str
    data_layout: str
    calling_convention: str
    index_type: str
    has_byte_offsets: bool
    constant_space: int
    is_binary: bool
    intrinsic_calls: Mapping[str, IntrinsicCall]
    vector_width_hint: str = ""
    has_wide_accesses: bool = False

    def cpu(self, target: Target) -> str:
        """Return LLVM's name of the processor."""
        oldest = target.kind.oldest
        return target.arch or (f"sm_{oldest}" if oldest else "")

    def triple_of(self, target: Target) -> str:
        """Return the LLVM triple; a target may name its first word more exactly."""
        machine, dash, vendor_and_system = self.triple.partition("-")
        requested = str(target.attrs.get("mtriple", ""))
        return f"{machine if machine.startswith(requested) else requested}{dash}{vendor_and_system}"


GLOBAL_SPACE, SHARED_SPACE = 1, 3
"""GLOBAL_SPACE: address space of device memory, the same on all backends. SHARED_SPACE: address
space of block-shared memory, the same on all backends.
"""


def _thread_index_calls(
    names: Mapping[str, str], call: str, result: str, by_number: bool
) -> dict[str, IntrinsicCall]:
    """Return the calls that read thread indices and extents (`threadIdx.x` ...): the axis is part
    of the function's name, or its argument.
    """
    calls = {}
    for word, name in names.items():
        for number, axis in enumerate(THREAD_AXES):
            named = call.format(name=name, axis=axis, length=len(name))
            arguments, attributes = (
                ((f"i32 {number}",), READ_ONLY_ATTRIBUTES) if by_number else ((), "")
            )
            calls[f"{word}.{axis}"] = IntrinsicCall(named, result, arguments, attributes)
    return calls


READ_ONLY_ATTRIBUTES = "nounwind willreturn memory(none)"
NVPTX_SPECIAL_REGISTERS = {
    "threadIdx": "tid",
    "blockIdx": "ctaid",
    "blockDim": "ntid",
    "gridDim": "nctaid",
}
OPENCL_WORK_ITEM_FUNCTIONS = {
    "threadIdx": "get_local_id",
    "blockIdx": "get_group_id",
    "blockDim": "get_local_size",
    "gridDim": "get_num_groups",
}
NVPTX_SHUFFLE_CALLS = {
    f"{word}.{name}": IntrinsicCall(f"llvm.nvvm.shfl.sync.{mode}.{name}", kind)
    for word, mode in (
        ("tvm_warp_shuffle", "idx"),
        ("tvm_warp_shuffle_up", "up"),
        ("tvm_warp_shuffle_down", "down"),
    )
    for kind, name in (("float", "f32"), ("i32", "i32"))
}
CLK_ALL_FENCES = 3
"""CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE"""

# fmt: off
GPU_BACKENDS: dict[str, GpuBackend] = {backend.format: backend for backend in (
    GpuBackend(
        "ptx", "nvptx", "nvptx64-nvidia-cuda",
        data_layout="e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64",
        calling_convention="ptx_kernel", index_type="int32", has_byte_offsets=False,
        constant_space=4, is_binary=False,
        intrinsic_calls={
            **_thread_index_calls(NVPTX_SPECIAL_REGISTERS,
                                  "llvm.nvvm.read.ptx.sreg.{name}.{axis}", "i32", by_number=False),
            "barrier": IntrinsicCall("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ("i32 0",)),
            "tvm_warp_activemask": IntrinsicCall("llvm.nvvm.activemask", "i32"),
            **NVPTX_SHUFFLE_CALLS,
        },
        has_wide_accesses=True,
    ),
    GpuBackend(
        "spirv", "opencl", "spirv64v1.0-unknown-unknown",
        data_layout="e-i64:64-v16:16-v24:32-v32:32-v48:64-v96:128-v192:256-v256:256-v512:512-v1024:1024"
               "-n8:16:32:64-G1",
        calling_convention="spir_kernel", index_type="int64", has_byte_offsets=True,
        constant_space=2, is_binary=True,
        intrinsic_calls={
            **_thread_index_calls(OPENCL_WORK_ITEM_FUNCTIONS, "_Z{length}{name}j", "i64",
                                  by_number=True),
            "barrier": IntrinsicCall("_Z7barrierj", "void", (f"i32 {CLK_ALL_FENCES}",),
                                     "convergent nounwind"),
        },
        vector_width_hint="vec_type_hint",
    ),
)}
# fmt: on
"""GPU backends, by code format. Later architectures than the oldest run its PTX too."""

__all__ = ["GLOBAL_SPACE", "GPU_BACKENDS", "SHARED_SPACE", "GpuBackend", "IntrinsicCall"]
