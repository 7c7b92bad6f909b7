"""Lower x86-64's AMX tile intrinsics.

A tile configuration (LDTILECFG) sets the rows and the bytes per row of the eight tile registers,
and holds until TILERELEASE. A function that loads one releases the tiles on return: the kernel
saves 8 KiB of tile state at a context switch of a thread that has them in use. LLVM takes tile
numbers as immediates, so the kernel generator allocates the registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand

MAX_TILE_ROW_BYTES = 64
"""Maximum bytes per tile row."""
_ROW_BYTES_OFFSET, _ROW_COUNT_OFFSET = 16, 48
"""_ROW_BYTES_OFFSET: offset of the bytes-per-row fields in the 64-byte tile configuration.
_ROW_COUNT_OFFSET: offset of the row-count fields in the 64-byte tile configuration.
"""
TILE_DOT_INTRINSICS = {
    "matrix_dot4_u8s8": "llvm.x86.tdpbusd",
    "matrix_dot2_bf16": "llvm.x86.tdpbf16ps",
}
"""LLVM intrinsic of each tile dot product."""


class TileConfig:
    """Tile configuration of a function. LDTILECFG takes as long as some hundred multiplications, so
    each configuration has a number, and the current one is not loaded again.
    """

    def __init__(self, b: FunctionBuilder) -> None:
        self.builder = b
        self.config_ids: dict[tuple[Operand | None, ...], int] = {}
        self.current, self.config_address = (
            f"%{b.fresh_name('shaped')}",
            f"%{b.fresh_name('shape')}",
        )
        b.entry.append(f"  {self.current} = alloca i64, align 8")
        b.entry.append(f"  {self.config_address} = alloca [64 x i8], align 64")
        b.entry.append(f"  store i64 0, ptr {self.current}, align 8")

    def invalidate(self) -> None:
        """Invalidate the current configuration: another function may have loaded one."""
        self.builder.append_void(f"store i64 0, ptr {self.current}, align 8")

    def load_config(self, sizes: Sequence[Operand]) -> None:
        """Load a tile configuration (LDTILECFG) unless it is current: rows, and bytes per row, of
        each tile as i64.
        """
        b, number = self.builder, self._config_id(sizes)
        same = b.append_value(f"load i64, ptr {self.current}, align 8")
        load_block, done = b.fresh_name("reshape"), b.fresh_name("shaped")
        # LDTILECFG zeroes all tiles and costs more than a compare: skip it where the configuration
        # is the current one.
        b.branch_if(b.append_value(f"icmp ne i64 {same}, {number}"), load_block, done)
        b.start(load_block)
        b.append_void(f"store i64 {number}, ptr {self.current}, align 8")
        # LDTILECFG faults unless all reserved bytes of the configuration are 0.
        b.append_void(f"store <64 x i8> zeroinitializer, ptr {self.config_address}, align 64")
        # Byte 0 is the palette: number 1 is the one with eight tiles of 1 KiB.
        _store_config_field(b, self.config_address, 0, "i8", "1")
        for n, (rows, bytes_) in enumerate(zip(sizes[::2], sizes[1::2], strict=True)):
            _store_config_field(
                b,
                self.config_address,
                _ROW_BYTES_OFFSET + 2 * n,
                "i16",
                b.append_value(f"trunc i64 {bytes_} to i16"),
            )
            _store_config_field(
                b,
                self.config_address,
                _ROW_COUNT_OFFSET + n,
                "i8",
                b.append_value(f"trunc i64 {rows} to i8"),
            )
        b.module.declare("llvm.x86.ldtilecfg", "void", ["ptr"])
        b.append_void(f"call void @llvm.x86.ldtilecfg(ptr {self.config_address})")
        b.branch(done)
        b.start(done)

    def _config_id(self, sizes: Sequence[Operand]) -> Operand:
        """Return the id of a configuration: an index of its constant sizes, and a byte for each
        dynamic size.
        """
        constant_sizes = tuple(None if s.startswith("%") else s for s in sizes)
        # 0 stands for an unknown configuration, so ids begin at 1.
        first = self.config_ids.setdefault(constant_sizes, len(self.config_ids) + 1)
        number = str(first << 32)
        for n, size in enumerate(dict.fromkeys(s for s in sizes if s.startswith("%"))):
            # Sizes are at most 64: each distinct dynamic one gets a byte below the index at bit 32.
            moved = self.builder.append_value(f"shl i64 {size}, {8 * n}")
            number = self.builder.append_value(f"or i64 {number}, {moved}")
        return number


def _store_config_field(
    b: FunctionBuilder, base: Operand, at: int, kind: str, value: Operand
) -> None:
    where = b.pure(f"getelementptr i8, ptr {base}, i64 {at}")
    b.append_void(f"store {kind} {value}, ptr {where}, align 1")


def tile_release(b: FunctionBuilder) -> None:
    """Release the tiles (TILERELEASE)."""
    b.module.declare("llvm.x86.tilerelease", "void", [])
    b.append_void("call void @llvm.x86.tilerelease()")


def tile_zero(b: FunctionBuilder, number: int) -> None:
    """Zero a tile (TILEZERO)."""
    b.module.declare("llvm.x86.tilezero", "void", ["i8"])
    b.append_void(f"call void @llvm.x86.tilezero(i8 {number})")


def tile_load(b: FunctionBuilder, number: int, address: Operand, stride: Operand) -> None:
    """Load a tile whose rows are `stride` bytes (i64) apart (TILELOADD)."""
    b.module.declare("llvm.x86.tileloadd64", "void", ["i8", "ptr", "i64"])
    b.append_void(f"call void @llvm.x86.tileloadd64(i8 {number}, ptr {address}, i64 {stride})")


def tile_store(b: FunctionBuilder, number: int, address: Operand) -> None:
    """Store the rows of a tile."""
    b.module.declare("llvm.x86.tilestored64", "void", ["i8", "ptr", "i64"])
    b.append_void(
        f"call void @llvm.x86.tilestored64(i8 {number}, ptr {address}, i64 {MAX_TILE_ROW_BYTES})"
    )


def tile_dot_product(b: FunctionBuilder, name: str, numbers: Sequence[int]) -> None:
    """Emit the tile dot product (TDPBUSD, TDPBF16PS): the product of the second and third tile is
    added to the first.
    """
    b.module.declare(TILE_DOT_INTRINSICS[name], "void", ["i8", "i8", "i8"])
    arguments = ", ".join(f"i8 {n}" for n in numbers)
    b.append_void(f"call void @{TILE_DOT_INTRINSICS[name]}({arguments})")


__all__ = [
    "TILE_DOT_INTRINSICS",
    "TileConfig",
    "tile_dot_product",
    "tile_load",
    "tile_release",
    "tile_store",
    "tile_zero",
]
