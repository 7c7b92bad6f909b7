"""Code for devices of many threads: a loop program bound to threads becomes kernels, written in a
dialect of C, and a function of the host that launches them."""

from ekiden.codegen.device.dialect import DIALECTS, Dialect
from ekiden.codegen.device.kernels import DeviceKernel, pack_kernels, unpack_kernels
from ekiden.codegen.device.printer import print_kernel
from ekiden.codegen.device.split import Split, split_program
from ekiden.codegen.device.texts import FORMATS

__all__ = [
    "DIALECTS",
    "FORMATS",
    "DeviceKernel",
    "Dialect",
    "Split",
    "pack_kernels",
    "print_kernel",
    "split_program",
    "unpack_kernels",
]
