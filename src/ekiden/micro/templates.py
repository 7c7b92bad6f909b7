"""Project templates, one row per kind of machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ekiden.runtime.lazy_dataclass import dataclass

STARTUP_SOURCE = "ek_micro_start.c"
RPC_SERVER_SOURCES = ("ek_micro_rpc.c", "ek_micro_rpc.h", "ek_rpc_table.h")
BOARD_HEADERS = ("ek_micro_board.h",)


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """Memory region of a linker script: start address and length in bytes."""

    origin: int
    length: int


@dataclass(frozen=True, slots=True)
class Template:
    """Project template for a kind of machine: its files, and how they are built and run."""

    name: str
    about: str
    sources: tuple[str, ...]
    """Files beside the model's."""
    cc: str = "arm-none-eabi-gcc"
    machine: str = ""
    """What the compiler is told of the processor; {cpu} is the option of that name."""
    flags: str = ""
    memories: Mapping[str, MemoryRegion] = field(default_factory=dict)
    """Of a board: `flash`, where code is, `constants` unless they are there, too, and `ram`."""
    emulator: tuple[str, ...] = ()
    """The command that runs it, before the name of the program; none: it is no board of QEMU."""
    serves: bool = True
    """Whether its program serves sessions."""

    def takes(self, option: str) -> bool:
        """Return whether an option applies to the template."""
        match option:
            case "cpu":
                return "{cpu}" in self.machine
            case "flash" | "constants" | "ram" | "stack_bytes":
                return bool(self.memories)
            case "icount":
                return bool(self.emulator)
        return True


_HARD_FLOAT_FLAGS = "-mthumb -mfloat-abi=hard"
_QEMU_OPTIONS = ("-display", "none", "-monitor", "none", "-serial", "stdio", "-semihosting-config",
                 "enable=on,target=native", "-kernel")  # fmt: skip
TEMPLATES: dict[str, Template] = {
    row.name: row
    for row in (
        Template(
            "host",
            "this machine: a program that serves sessions by its standard input and output",
            ("ek_micro_host.c", *RPC_SERVER_SOURCES),
            cc="cc",
        ),
        Template(
            "qemu-mps2-an500",
            "Arm's board with a Cortex-M7, in QEMU: sessions over its UART",
            (STARTUP_SOURCE, "ek_micro_mps.c", *RPC_SERVER_SOURCES, *BOARD_HEADERS),
            machine=f"-mcpu=cortex-m7 -mfpu=fpv5-d16 {_HARD_FLOAT_FLAGS}",
            flags="-DEK_BOARD_MPS2_AN500 -DEK_SEMIHOSTING",
            memories={"flash": MemoryRegion(0, 4 << 20), "ram": MemoryRegion(0x20000000, 4 << 20)},
            emulator=("qemu-system-arm", "-M", "mps2-an500", *_QEMU_OPTIONS),
        ),
        Template(
            "qemu-mps3-an547",
            "Arm's board with a Cortex-M55, in QEMU: sessions over its UART",
            (STARTUP_SOURCE, "ek_micro_mps.c", *RPC_SERVER_SOURCES, *BOARD_HEADERS),
            machine=f"-mcpu=cortex-m55 {_HARD_FLOAT_FLAGS}",
            flags="-DEK_BOARD_MPS3_AN547 -DEK_SEMIHOSTING",
            memories={
                "flash": MemoryRegion(0, 512 << 10),
                "constants": MemoryRegion(0x38000000, 8 << 20),
                "ram": MemoryRegion(0x31000000, 4 << 20),
            },
            emulator=("qemu-system-arm", "-M", "mps3-an547", *_QEMU_OPTIONS),
        ),
        Template(
            "bare",
            "a Cortex-M of your own: start-up code, a linker's script, a Makefile, your main",
            (STARTUP_SOURCE, "ek_micro_bare.c", "ek_micro_rpc.h", *BOARD_HEADERS),
            machine="-mcpu={cpu} {fpu}",
            memories={
                "flash": MemoryRegion(0, 1 << 20),
                "ram": MemoryRegion(0x20000000, 256 << 10),
            },
            serves=False,
        ),
    )
}
"""By name."""
CPU_FLOAT_FLAGS = {
    "cortex-m3": "-mthumb -mfloat-abi=soft",
    "cortex-m4": f"-mfpu=fpv4-sp-d16 {_HARD_FLOAT_FLAGS}",
    "cortex-m7": f"-mfpu=fpv5-d16 {_HARD_FLOAT_FLAGS}",
    "cortex-m33": f"-mfpu=fpv5-sp-d16 {_HARD_FLOAT_FLAGS}",
    "cortex-m55": _HARD_FLOAT_FLAGS,
}
"""Processor -> what its floating-point unit is called for the compiler."""

MODEL_C_FLAGS = (
    "-std=c99 -fwrapv -ffp-contract=off -fno-math-errno -ffunction-sections -fdata-sections"
)
"""What a model's C is compiled with whatever the project."""
MAKEFILE_TEMPLATE = """\
# make builds the program; make CC=... with another compiler, CFLAGS=... with other options.
CC = {cc}
CFLAGS ?= -O2
MACHINE = {machine}
FLAGS = {c_flags} \\
  {flags} -Imodel/codegen/host/include -Isrc
LINK = {link}
SOURCES = $(wildcard model/codegen/host/src/*.c) $(wildcard src/*.c)
OBJECTS = $(patsubst %.c,build/%.o,$(SOURCES))

build/firmware: $(OBJECTS) {script}
\t$(CC) $(MACHINE) $(CFLAGS) $(OBJECTS) $(LINK) -Wl,-Map=build/firmware.map -o $@

build/%.o: %.c $(wildcard src/*.h) $(wildcard model/codegen/host/include/*.h)
\t@mkdir -p $(@D)
\t$(CC) $(MACHINE) $(FLAGS) $(CFLAGS) -c $< -o $@

clean:
\trm -rf build
"""
LINKER_SCRIPT_TEMPLATE = """\
/* Where things lie on the board. */
ENTRY(ek_reset)
MEMORY {{
  flash (rx) : ORIGIN = {flash.origin:#x}, LENGTH = {flash.length:#x}
  ram (rwx) : ORIGIN = {ram.origin:#x}, LENGTH = {ram.length:#x}
  {constants}
}}
{alias}
ek_stack_top = ORIGIN(ram) + LENGTH(ram);
SECTIONS {{
  .text : {{
    KEEP(*(.ekiden.vectors))
    *(.text .text.*)
    *(EXCLUDE_FILE(*_lib2.o) .rodata EXCLUDE_FILE(*_lib2.o) .rodata.*)
    . = ALIGN(8);
  }} > flash
  .constants : {{ *_lib2.o(.rodata .rodata.*) }} > constants
  .ARM.exidx : {{ *(.ARM.exidx*) }} > flash
  .data : {{
    . = ALIGN(8);
    ek_data_begin = .;
    *(.data .data.*)
    . = ALIGN(8);
    ek_data_end = .;
  }} > ram AT > flash
  ek_data_from = LOADADDR(.data);
  .bss (NOLOAD) : {{
    . = ALIGN(16);
    ek_bss_begin = .;
    *(.bss .bss.[!n]*)
    *(COMMON)
    . = ALIGN(16);
    ek_bss_end = .;
    *(.bss.noinit.*)
    . = ALIGN(8);
    end = .;
    ek_memory_end = .;
  }} > ram
  ASSERT(end + {stack:#x} <= ek_stack_top, "there is no room for the stack")
}}
"""
CONFIG_HEADER_TEMPLATE = """\
/* Which model the program has, and the memory that it gives it. Made with the project. */
#ifndef EK_MICRO_CONFIG_H_
#define EK_MICRO_CONFIG_H_

#include <stddef.h>

#include "ekiden_{name}.h"

#define EK_MICRO_MODEL ekiden_{name}
{pools}
static uint8_t ek_frame[{frame}] __attribute__((aligned(16), section(".bss.noinit.frame")));
static uint8_t ek_heap[{heap}] __attribute__((aligned(16), section(".bss.noinit.heap")));
#define EK_MICRO_MEMORY {{ek_frame, sizeof ek_frame, ek_heap, sizeof ek_heap, {pool_table}}}

#endif /* EK_MICRO_CONFIG_H_ */
"""

__all__ = [
    "CONFIG_HEADER_TEMPLATE",
    "CPU_FLOAT_FLAGS",
    "LINKER_SCRIPT_TEMPLATE",
    "MAKEFILE_TEMPLATE",
    "TEMPLATES",
    "MemoryRegion",
    "Template",
]
