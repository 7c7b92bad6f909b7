"""The names of `ekiden.codegen.device`, loaded when the first is used."""

from ekiden.codegen.device.dialect import DIALECTS, KernelDialect
from ekiden.codegen.device.formats import KERNEL_FORMATS
from ekiden.codegen.device.printer import print_kernel
from ekiden.codegen.device.split import Split, split_program
from ekiden.runtime.artifact.device_code import DeviceKernel, pack_kernels, unpack_kernels

__all__ = [
    "DIALECTS",
    "KERNEL_FORMATS",
    "DeviceKernel",
    "KernelDialect",
    "Split",
    "pack_kernels",
    "print_kernel",
    "split_program",
    "unpack_kernels",
]
