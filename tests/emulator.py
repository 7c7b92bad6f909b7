"""Runs kernels for AArch64, RISC-V and Armv7 on any machine: the emulator of the `unicorn` package,
an image mapped in it, and arguments as the C runtime would give them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import unicorn
from unicorn import arm64_const as arm
from unicorn import arm_const as arm32
from unicorn import riscv_const as riscv

from ekiden.codegen.llvm.image import parse_image

TEXT, SERVICES, STACK, DATA = 0x1000_0000, 0x2000_0000, 0x3000_0000, 0x4000_0000
STACK_SIZE, DATA_SIZE = 1 << 20, 64 << 20
DLTENSOR_PTR = 7
SERVICE_SIZE = 64


@dataclass(frozen=True)
class Machine:
    """What differs between architectures."""

    kind: int
    mode: int
    model: int
    arguments: tuple[int, ...]
    """Registers; the first has the result too."""
    stack: int
    link: int
    state: tuple[tuple[int, int], ...]
    """Registers that turn on instructions on floats, and their values."""
    ret: int
    """The instruction that returns."""
    parallel_for: tuple[int, ...]
    """Instructions of what calls body(context, 0, n) where n > 0."""
    slot: str = "<Q"
    """An address in memory."""
    tensor: str = "<QiiiBBHQQQ"
    """A DLTensor."""
    address: str = "<iiQ"
    """A value that holds one."""


MACHINES = {
    1: Machine(
        unicorn.UC_ARCH_ARM64,
        unicorn.UC_MODE_ARM,
        arm.UC_CPU_ARM64_A72,
        tuple(arm.UC_ARM64_REG_X0 + i for i in range(4)),
        arm.UC_ARM64_REG_SP,
        arm.UC_ARM64_REG_X30,
        ((arm.UC_ARM64_REG_CPACR_EL1, 3 << 20),),
        0xD65F03C0,
        (
            0xF100005F,  # cmp x2, #0
            0x5400006C,  # b.gt over the next two
            0xAA1F03E0,  # mov x0, xzr
            0xD65F03C0,  # ret
            0xAA0003E9,  # mov x9, x0
            0xAA0103E0,  # mov x0, x1
            0xAA1F03E1,  # mov x1, xzr
            0xD61F0120,  # br x9
        ),
    ),
    2: Machine(
        unicorn.UC_ARCH_RISCV,
        unicorn.UC_MODE_RISCV64,
        riscv.UC_CPU_RISCV64_ANY,
        tuple(riscv.UC_RISCV_REG_X10 + i for i in range(4)),
        riscv.UC_RISCV_REG_X2,
        riscv.UC_RISCV_REG_X1,
        ((riscv.UC_RISCV_REG_MSTATUS, 3 << 13),),
        0x00008067,
        (
            0x00C04663,  # bgtz a2, over the next two
            0x00000513,  # li a0, 0
            0x00008067,  # ret
            0x00050293,  # mv t0, a0
            0x00058513,  # mv a0, a1
            0x00000593,  # li a1, 0
            0x00028067,  # jr t0
        ),
    ),
    4: Machine(
        unicorn.UC_ARCH_ARM,
        unicorn.UC_MODE_ARM,
        arm32.UC_CPU_ARM_CORTEX_A15,
        tuple(arm32.UC_ARM_REG_R0 + i for i in range(4)),
        arm32.UC_ARM_REG_SP,
        arm32.UC_ARM_REG_LR,
        ((arm32.UC_ARM_REG_C1_C0_2, 0xF << 20), (arm32.UC_ARM_REG_FPEXC, 1 << 30)),
        0xE12FFF1E,
        (
            0xE272C000,  # rsbs ip, r2, #0: n of 64 bits in r2 and r3
            0xE2F3C000,  # rscs ip, r3, #0
            0xA3A00000,  # movge r0, #0
            0xA12FFF1E,  # bxge lr
            0xE92D4010,  # push {r4, lr}
            0xE24DD008,  # sub sp, sp, #8
            0xE1CD20F0,  # strd r2, [sp]
            0xE1A0C000,  # mov ip, r0
            0xE1A00001,  # mov r0, r1
            0xE3A02000,  # mov r2, #0
            0xE3A03000,  # mov r3, #0
            0xE12FFF3C,  # blx ip
            0xE28DD008,  # add sp, sp, #8
            0xE8BD8010,  # pop {r4, pc}
        ),
        "<I",
        "<IiiiBBHIIQ",
        "<iiIxxxx",
    ),
}
"""By the byte of an image's header that names the architecture."""
DTYPES = {"float32": (2, 32), "float16": (2, 16), "float64": (2, 64), "int32": (0, 32),
          "int64": (0, 64), "int8": (0, 8), "uint8": (1, 8), "uint16": (1, 16), "int16": (0, 16),
          "uint32": (1, 32), "uint64": (1, 64), "bool": (6, 8), "bfloat16": (4, 16)}  # fmt: skip


def _words(value: int) -> tuple[int, int]:
    return value & 0xFFFFFFFF, value >> 32


def _long(low: int, high: int, has_sign: bool) -> int:
    value = high << 32 | low
    return value - (1 << 64) if has_sign and high >> 31 else value


def _divide(x: int, y: int) -> tuple[int, int]:
    """Quotient towards zero, and what is left."""
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else 0
    return quotient, x - quotient * y


def _int(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _bits(form: str, value: float) -> tuple[int, ...]:
    return struct.unpack("<I" if form == "<f" else "<II", struct.pack(form, value))


def _double(low: int, high: int) -> float:
    return float(struct.unpack("<d", struct.pack("<II", low, high))[0])


def _single(word: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", word))[0])


def _clip(value: float, low: int, high: int) -> tuple[int, int]:
    return _words(
        0 if value != value else low if value < low else high if value > high else int(value)
    )


_LOW, _HIGH, _MOST = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
OF_ABI: dict[str, Callable[..., tuple[int, ...]]] = {
    "__aeabi_idiv": lambda x, y, _2, _3: _divide(_int(x), _int(y)),
    "__aeabi_uidiv": lambda x, y, _2, _3: _divide(x, y),
    "__aeabi_idivmod": lambda x, y, _2, _3: tuple(
        v & 0xFFFFFFFF for v in _divide(_int(x), _int(y))
    ),
    "__aeabi_uidivmod": lambda x, y, _2, _3: _divide(x, y),
    "__aeabi_ldivmod": lambda a, b, c, d: sum(
        map(_words, _divide(_long(a, b, True), _long(c, d, True))), ()
    ),
    "__aeabi_uldivmod": lambda a, b, c, d: sum(
        map(_words, _divide(_long(a, b, False), _long(c, d, False))), ()
    ),
    "__aeabi_l2f": lambda a, b, _2, _3: _bits("<f", np.float32(_long(a, b, True))),
    "__aeabi_ul2f": lambda a, b, _2, _3: _bits("<f", np.float32(_long(a, b, False))),
    "__aeabi_l2d": lambda a, b, _2, _3: _bits("<d", _long(a, b, True)),
    "__aeabi_ul2d": lambda a, b, _2, _3: _bits("<d", _long(a, b, False)),
    "__aeabi_f2lz": lambda a, _1, _2, _3: _clip(_single(a), _LOW, _HIGH),
    "__aeabi_f2ulz": lambda a, _1, _2, _3: _clip(_single(a), 0, _MOST),
    "__aeabi_d2lz": lambda a, b, _2, _3: _clip(_double(a, b), _LOW, _HIGH),
    "__aeabi_d2ulz": lambda a, b, _2, _3: _clip(_double(a, b), 0, _MOST),
}
"""What Armv7 has no instruction for, by the names of its ABI: words in, words out."""


class Emulator:
    """A machine with an image in its memory; `call` runs an export on arrays, in place."""

    def __init__(self, image: bytes) -> None:
        self.info, self.of = parse_image(image), MACHINES[image[6]]
        self.machine = unicorn.Uc(self.of.kind, self.of.mode)
        self.machine.ctl_set_cpu_model(self.of.model)
        self.top = DATA
        text = self.info.text
        pages = -(-len(text) // 4096) * 4096
        slots = b"".join(
            struct.pack(self.of.slot, SERVICES + SERVICE_SIZE * i)
            for i in range(len(self.info.imports))
        )
        self.machine.mem_map(TEXT, pages + 4096)
        self.machine.mem_write(TEXT, text)
        self.machine.mem_write(TEXT + pages, slots)
        self.machine.mem_map(SERVICES, 4096)
        self.machine.mem_write(SERVICES, struct.pack("<I", self.of.ret) * 1024)
        for i, name in enumerate(self.info.imports):
            if name == "ek_parallel_for":
                code = struct.pack(f"<{len(self.of.parallel_for)}I", *self.of.parallel_for)
                self.machine.mem_write(SERVICES + SERVICE_SIZE * i, code)
        self.machine.mem_map(STACK, STACK_SIZE)
        self.machine.mem_map(DATA, DATA_SIZE)
        for register, value in self.of.state:
            self.machine.reg_write(register, value)
        self.machine.hook_add(
            unicorn.UC_HOOK_CODE, self._service, begin=SERVICES, end=SERVICES + 4095
        )

    def _service(self, machine: unicorn.Uc, address: int, size: int, data: object) -> None:
        names: dict[str, Callable[[int, int, int], int]] = {
            "memset": self._memset,
            "memcpy": self._memcpy,
            "memmove": self._memcpy,
            "ek_workspace_alloc": lambda n, _1, _2: self.reserve(n),
            "ek_workspace_free": lambda _0, _1, _2: 0,
            "ek_kernel_error": lambda _0, _1, _2: -1,
            "ek_kernel_error_values": lambda _0, _1, _2: -1,
        }
        name = self.info.imports[(address - SERVICES) // SERVICE_SIZE]
        if name == "ek_parallel_for":
            return
        inputs = [machine.reg_read(r) for r in self.of.arguments]
        if name in OF_ABI:
            results = OF_ABI[name](*inputs)
            for register, result in zip(self.of.arguments, results, strict=False):
                machine.reg_write(register, result & 0xFFFFFFFF)
            return
        bits = 8 * struct.calcsize(self.of.slot)
        result = names[name](*inputs[:3]) & (1 << bits) - 1
        machine.reg_write(self.of.arguments[0], result)

    def _memset(self, to: int, value: int, size: int) -> int:
        self.machine.mem_write(to, bytes([value & 255]) * size)
        return to

    def _memcpy(self, to: int, source: int, size: int) -> int:
        self.machine.mem_write(to, bytes(self.machine.mem_read(source, size)))
        return to

    def reserve(self, size: int) -> int:
        """The address of fresh memory."""
        at = self.top
        self.top += -(-size // 64) * 64 + 64
        return at

    def put(self, data: bytes) -> int:
        """Bytes in fresh memory; their address."""
        at = self.reserve(len(data))
        self.machine.mem_write(at, data)
        return at

    def _tensor(self, array: np.ndarray) -> tuple[int, int]:
        """(address of a DLTensor, address of its elements)"""
        code, bits = DTYPES[array.dtype.name]
        data = self.put(array.tobytes())
        shape = self.put(struct.pack(f"<{array.ndim}q", *array.shape))
        fields = (data, 1, 0, array.ndim, code, bits, 1, shape, 0, 0)
        return self.put(struct.pack(self.of.tensor, *fields)), data

    def call(self, name: str, *arrays: np.ndarray) -> int:
        """Run a kernel; arrays get what it wrote. What the kernel returned."""
        output = [self._tensor(a) for a in arrays]
        values = b"".join(struct.pack(self.of.address, DLTENSOR_PTR, 0, at) for at, _ in output)
        arguments = (0, self.put(values), len(arrays), self.put(bytes(16)))
        for register, value in zip(self.of.arguments, arguments, strict=True):
            self.machine.reg_write(register, value)
        self.machine.reg_write(self.of.stack, STACK + STACK_SIZE - 64)
        self.machine.reg_write(self.of.link, SERVICES + 4092)
        self.machine.emu_start(TEXT + self.info.exports[name], SERVICES + 4092)
        for array, (_, data) in zip(arrays, output, strict=True):
            result = self.machine.mem_read(data, array.nbytes)
            array[...] = np.frombuffer(result, array.dtype).reshape(array.shape)
        return int(self.machine.reg_read(self.of.arguments[0])) & 0xFFFFFFFF
