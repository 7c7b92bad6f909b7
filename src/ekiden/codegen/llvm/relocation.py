"""Relocations of machine code, by architecture; a row for each architecture that images are made
for.

Sources: the psABI of x86-64, ELF for the Arm Architecture of 64 bits (AAELF64) and of 32 (AAELF32),
and the RISC-V ELF psABI.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass

# Image code is loaded anywhere and never patched, so only references relative to their own place
# are taken: everything else is an error here, and not one that shows when the image is called.
# Where the compiler goes through a table of addresses for something that is inside of the image
# after all, the load becomes the computation of an address ("relaxation" in the psABIs).
# fmt: off
R_X86_64_PC64, R_X86_64_PC32, R_X86_64_PLT32 = 24, 2, 4
R_X86_64_GOTPCREL, R_X86_64_GOTPCRELX, R_X86_64_REX_GOTPCRELX = 9, 41, 42
R_AARCH64_PREL64, R_AARCH64_PREL32, R_AARCH64_JUMP26, R_AARCH64_CALL26 = 260, 261, 282, 283
R_AARCH64_ADR_PREL_PG_HI21, R_AARCH64_ADR_GOT_PAGE = 275, 311
R_AARCH64_ADD_ABS_LO12_NC, R_AARCH64_LD64_GOT_LO12_NC = 277, 312
LOAD_LOW12 = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}   # -> log2 of the bytes loaded
R_RISCV_CALL, R_RISCV_CALL_PLT, R_RISCV_GOT_HI20 = 18, 19, 20
R_RISCV_PCREL_HI20, R_RISCV_PCREL_LO12_I, R_RISCV_PCREL_LO12_S = 23, 24, 25
RV_ADD, RV_SUB = {35: "<i", 36: "<q"}, {39: "<i", 40: "<q"}   # -> what is added to
R_ARM_REL32, R_ARM_CALL, R_ARM_JUMP24, R_ARM_GOT_PREL = 3, 28, 29, 96
RISCV_LO12_ADDRESS = -1   # the low half of what goes through no slot
# fmt: on
LDR_INSTRUCTION, ADD_INSTRUCTION = 0xF9400000, 0x91000000
"""LDR_INSTRUCTION: encoding of `ldr x0, [x0, #0]`. ADD_INSTRUCTION: encoding of `add x0, x0, #0`.
"""


@dataclass(frozen=True, slots=True)
class ResolvedReference:
    """Resolved reference: `offset` in the code refers to `target`, both in bytes from the start of
    the text.

    `is_slot`: the target is not what the symbol names but the slot of the address table that holds
    its address.
    """

    kind: int
    offset: int
    target: int
    is_slot: bool
    name: str


def _without_pairing(references: Sequence[ResolvedReference]) -> Sequence[ResolvedReference]:
    """Return the references unchanged: none depends on another."""
    return references


@dataclass(frozen=True, slots=True)
class LinkArchitecture:
    """Machine-code conventions of one architecture that the linker needs."""

    name: str
    """Compilers' name of the architecture, as in `platform.machine`."""
    elf_machine: int
    header_byte: int
    """Byte of the image header that identifies the architecture."""
    trap_instruction: bytes
    """Encoding of a trap instruction."""
    stub_size: int
    encode_stub: Callable[[int, int], bytes]
    """Function (stub offset, slot offset) -> code that jumps to the address in the slot."""
    table_relocations: frozenset[int]
    """Relocation types that go through the address table."""
    apply_relocation: Callable[[bytearray, ResolvedReference], None]
    pair_relocations: Callable[[Sequence[ResolvedReference]], Sequence[ResolvedReference]] = (
        _without_pairing
    )
    """Function that completes relocations that are relative to other relocations."""
    slot_bytes: int = 8
    """Bytes per address-table slot."""
    helpers: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    """Code of the functions that the compiler calls without being asked, by name; it is linked in
    where it is called.
    """


def _unsupported_relocation(r: ResolvedReference) -> InternalError:
    """Build the InternalError for a relocation that is not position independent."""
    return InternalError(
        f"image: relocation type {r.kind} against {r.name!r} is not position independent"
    )


def _branch_immediate(r: ResolvedReference, bits: int) -> int:
    """Return a branch's immediate in instructions of 4 bytes. Raises InternalError if the distance
    does not fit, as truncation would branch into another function.
    """
    words = r.target - r.offset >> 2
    if not -(1 << bits - 1) <= words < 1 << bits - 1:
        raise InternalError(f"image: {r.name!r} is {4 * words} bytes away, too far for a branch")
    return words & (1 << bits) - 1


def _x86_stub(at: int, slot: int) -> bytes:
    # The displacement counts from the end of the jump, which has 6 bytes.
    return b"\xff\x25" + struct.pack("<i", slot - (at + 6)) + b"\xcc\xcc"  # jmp *slot(%rip)


def _x86_relocate(out: bytearray, r: ResolvedReference) -> None:
    if r.kind in X86_64.table_relocations and not r.is_slot:
        # 0x8B is mov, a load from the table: only that can become lea, the address itself.
        if out[r.offset - 2] != 0x8B:
            raise InternalError(
                f"image: {r.name!r} is reached through an address table but lies inside the image"
            )
        out[r.offset - 2] = 0x8D  # mov becomes lea
    if r.kind == R_X86_64_PC64:
        struct.pack_into("<q", out, r.offset, r.target - r.offset)
    elif r.kind in (R_X86_64_PC32, R_X86_64_PLT32) or r.kind in X86_64.table_relocations:
        struct.pack_into("<i", out, r.offset, r.target - r.offset)
    else:
        raise _unsupported_relocation(r)


def _adrp_immediate(at: int, target: int) -> int:
    """Return the immediate bits of an adrp from the page of `at` to that of `target`."""
    pages = (target >> 12) - (at >> 12)
    return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _aarch64_stub(at: int, slot: int) -> bytes:
    low = (slot & 0xFFF) >> 3
    return struct.pack(  # adrp x16, slot; ldr x16, [x16, :lo12:slot]; br x16
        "<III",
        0x90000010 | _adrp_immediate(at, slot),
        LDR_INSTRUCTION | low << 10 | 0x210,
        0xD61F0200,
    )


def _aarch64_relocate(out: bytearray, r: ResolvedReference) -> None:
    if r.kind in (R_AARCH64_PREL32, R_AARCH64_PREL64):
        struct.pack_into(
            "<i" if r.kind == R_AARCH64_PREL32 else "<q", out, r.offset, r.target - r.offset
        )
        return
    (word,) = struct.unpack_from("<I", out, r.offset)
    low = r.target & 0xFFF
    if r.kind in (R_AARCH64_JUMP26, R_AARCH64_CALL26):
        word |= _branch_immediate(r, 26)
    elif r.kind in (R_AARCH64_ADR_PREL_PG_HI21, R_AARCH64_ADR_GOT_PAGE):
        word |= _adrp_immediate(r.offset, r.target)
    elif r.kind == R_AARCH64_ADD_ABS_LO12_NC:
        word |= low << 10
    elif r.kind == R_AARCH64_LD64_GOT_LO12_NC and r.is_slot:
        word |= low >> 3 << 10
    elif r.kind == R_AARCH64_LD64_GOT_LO12_NC:
        word = ADD_INSTRUCTION | low << 10 | word & 0x3FF
    elif r.kind in LOAD_LOW12:
        word |= low >> LOAD_LOW12[r.kind] << 10
    else:
        raise _unsupported_relocation(r)
    struct.pack_into("<I", out, r.offset, word)


# The low half is added with its sign, so that the high half is one more where bit 11 is set.
def _auipc_immediate(delta: int) -> int:
    """Return the immediate bits of an auipc: the upper part that remains after the signed low 12
    bits.
    """
    # The low 12 bits are sign-extended later: adding 0x800 makes up for a borrow.
    return (delta + 0x800) & 0xFFFFF000


def _riscv_stub(at: int, slot: int) -> bytes:
    delta = slot - at
    return struct.pack(  # auipc t3, slot; ld t3, lo(slot)(t3); jr t3
        "<III", 0xE17 | _auipc_immediate(delta), 0xE3E03 | (delta & 0xFFF) << 20, 0xE0067
    )


def _pair_riscv_relocations(references: Sequence[ResolvedReference]) -> Sequence[ResolvedReference]:
    """Resolve low-half relocations, which name the instruction with the high half: they get its
    target, relative to it.
    """
    firsts = {r.offset: r for r in references if r.kind in (R_RISCV_GOT_HI20, R_RISCV_PCREL_HI20)}

    def pair_low_half(r: ResolvedReference) -> ResolvedReference:
        """Return a reference, or the low half of the address that its first instruction begins.
        Raises KeyError where there is no instruction at its target.
        """
        if r.kind not in (R_RISCV_PCREL_LO12_I, R_RISCV_PCREL_LO12_S):
            return r
        first = firsts[r.target]
        is_same = first.kind == R_RISCV_GOT_HI20 and not first.is_slot
        target = r.offset + first.target - first.offset
        return replace(r, kind=RISCV_LO12_ADDRESS if is_same else r.kind, target=target)

    return [pair_low_half(r) for r in references]


def _riscv_relocate(out: bytearray, r: ResolvedReference) -> None:
    delta = r.target - r.offset
    add = RV_ADD.get(r.kind) or RV_SUB.get(r.kind)
    if add is not None:
        (value,) = struct.unpack_from(add, out, r.offset)
        struct.pack_into(add, out, r.offset, value + r.target * (1 if r.kind in RV_ADD else -1))
        return
    (word,) = struct.unpack_from("<I", out, r.offset)
    low = delta & 0xFFF
    if r.kind in (R_RISCV_CALL, R_RISCV_CALL_PLT):  # auipc and jalr
        (jump,) = struct.unpack_from("<I", out, r.offset + 4)
        struct.pack_into("<I", out, r.offset + 4, jump & 0xFFFFF | low << 20)
        word = word & 0xFFF | _auipc_immediate(delta)
    elif r.kind in (R_RISCV_GOT_HI20, R_RISCV_PCREL_HI20):
        word = word & 0xFFF | _auipc_immediate(delta)
    elif r.kind == R_RISCV_PCREL_LO12_I:
        word = word & 0xFFFFF | low << 20
    elif r.kind == RISCV_LO12_ADDRESS:  # ld becomes addi
        word = word & 0xF8F80 | 0x13 | low << 20
    elif r.kind == R_RISCV_PCREL_LO12_S:
        word = word & 0x1FFF07F | (low >> 5) << 25 | (low & 0x1F) << 7
    else:
        raise _unsupported_relocation(r)
    struct.pack_into("<I", out, r.offset, word)


def _armv7_stub(at: int, slot: int) -> bytes:
    # ldr ip, [pc, #4]; add ip, pc, ip; ldr pc, [ip]; the distance from here
    return struct.pack("<IIIi", 0xE59FC004, 0xE08FC00C, 0xE59CF000, slot - (at + 12))


def _armv7_relocate(out: bytearray, r: ResolvedReference) -> None:
    """Patch a reference of ARMv7, whose addend is stored in place."""
    (word,) = struct.unpack_from("<I", out, r.offset)
    if r.kind == R_ARM_REL32 or (r.kind == R_ARM_GOT_PREL and r.is_slot):
        word = word + r.target - r.offset & 0xFFFFFFFF
    elif r.kind in (R_ARM_CALL, R_ARM_JUMP24):
        # REL objects hold the addend in the branch: sign-extend its 24 bits.
        added = (word & 0xFFFFFF ^ 0x800000) - 0x800000
        word = word & 0xFF000000 | _branch_immediate(replace(r, target=r.target + 4 * added), 24)
    else:
        raise _unsupported_relocation(r)
    struct.pack_into("<I", out, r.offset, word)


X86_64 = LinkArchitecture(
    name="x86_64",
    elf_machine=62,
    header_byte=0,
    trap_instruction=b"\xcc",
    stub_size=8,
    encode_stub=_x86_stub,
    table_relocations=frozenset((R_X86_64_GOTPCREL, R_X86_64_GOTPCRELX, R_X86_64_REX_GOTPCRELX)),
    apply_relocation=_x86_relocate,
)
AARCH64 = LinkArchitecture(
    name="aarch64",
    elf_machine=183,
    header_byte=1,
    trap_instruction=b"\0\0\0\0",
    stub_size=12,
    encode_stub=_aarch64_stub,
    table_relocations=frozenset((R_AARCH64_ADR_GOT_PAGE, R_AARCH64_LD64_GOT_LO12_NC)),
    apply_relocation=_aarch64_relocate,
)
RISCV64 = LinkArchitecture(
    name="riscv64",
    elf_machine=243,
    header_byte=2,
    trap_instruction=b"\0\0",
    stub_size=12,
    encode_stub=_riscv_stub,
    table_relocations=frozenset((R_RISCV_GOT_HI20,)),
    apply_relocation=_riscv_relocate,
    pair_relocations=_pair_riscv_relocations,
)
ARMV7 = LinkArchitecture(
    name="armv7",
    elf_machine=40,
    header_byte=4,
    trap_instruction=b"\xf0\0\xf0\xe7",
    stub_size=16,
    encode_stub=_armv7_stub,
    table_relocations=frozenset((R_ARM_GOT_PREL,)),
    apply_relocation=_armv7_relocate,
    slot_bytes=4,
)
_PROBE_STACK = bytes.fromhex(
    "50"  # push rax: the size of the frame, in bytes
    "52"  # push rdx
    "488d542418"  # lea rdx, [rsp + 24]: the caller's stack pointer
    "48f7d8"  # neg rax
    "4801d0"  # add rax, rdx: the end of the frame
    "4881ea00100000"  # next: sub rdx, 4096
    "4839c2"  # cmp rdx, rax
    "7605"  # jbe last
    "800a00"  # or byte [rdx], 0
    "ebef"  # jmp next
    "800800"  # last: or byte [rax], 0
    "5a58c3"  # pop rdx; pop rax; ret
)
"""Code that touches every page of a frame, as Windows gives a stack its pages one after the other;
it changes no register.
"""
X86_64_WINDOWS = replace(
    X86_64, name="x86_64-windows", header_byte=5, helpers={"___chkstk_ms": _PROBE_STACK}
)
LINK_ARCHITECTURES = {arch.elf_machine: arch for arch in (X86_64, AARCH64, RISCV64, ARMV7)}
"""Architectures by ELF machine number."""
IMAGE_ARCHITECTURES = (*LINK_ARCHITECTURES.values(), X86_64_WINDOWS)
"""Architectures that images are linked for, with distinct header bytes."""
