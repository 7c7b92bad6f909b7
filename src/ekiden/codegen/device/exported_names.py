"""The names of `ekiden.codegen.device`, loaded when the first is used."""

from ekiden.codegen.device.dialect import KERNEL_DIALECTS, KernelDialect
from ekiden.codegen.device.formats import KERNEL_FORMATS
from ekiden.codegen.device.printer import print_kernel
from ekiden.codegen.device.split import Split, split_host_and_device
from ekiden.runtime.artifact.device_code import DeviceKernel, pack_kernels, unpack_kernels

__all__ = [
    "KERNEL_DIALECTS",
    "KERNEL_FORMATS",
    "DeviceKernel",
    "KernelDialect",
    "Split",
    "pack_kernels",
    "print_kernel",
    "split_host_and_device",
    "unpack_kernels",
]
