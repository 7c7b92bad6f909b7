"""Warp-level matrix fragments of 16 x 16 elements (CUDA's tensor cores, PTX `wmma`).

    tvm_load_matrix_sync(a, 16, 16, 16, 0, &left[8], 40, "row_major")
        ->  ek_load_a_f16_row(&a[0], &left[8], 40);

A buffer of the scopes wmma.* is an array of such matrices; which element a thread has of one is the
hardware's. All threads of a warp make each call, with the same arguments. What they are written in
is PTX, which needs no header of CUDA's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, StringImm
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import FRAGMENTS, Buffer, BufferAddress
from ekiden.tir.stmt import Evaluate, Stmt
from ekiden.tir.visitor import pre_order_stmts

FRAGMENT_DIM = 16
"""Number of rows and columns of a fragment."""
PTX_LAYOUTS = {"row_major": "row", "col_major": "col"}
"""PTX's layout names by TVM's."""


@dataclass(frozen=True, slots=True)
class MmaType:
    """Type combination of a tensor-core instruction: names of the factors' type in PTX and C,
    registers per factor, names of the accumulator's type in PTX and C, and its register
    constraint.
    """

    ptx_factor_type: str
    c_factor_type: str
    factor_registers: int
    ptx_accumulator_type: str
    c_accumulator_type: str
    register_constraint: str

    @property
    def types(self) -> str:
        """Return the type suffix of the `wmma.mma` instruction; for float16 factors it names the
        accumulators alone.
        """
        between = (
            ""
            if self.ptx_factor_type == "f16"
            else f".{self.ptx_factor_type}.{self.ptx_factor_type}"
        )
        return f".{self.ptx_accumulator_type}{between}.{self.ptx_accumulator_type}"


# fmt: off
MMA_BY_FACTOR: Mapping[str, MmaType] = {
    "float16":  MmaType("f16",  "uint16_t", 8, "f32", "float",   "f"),
    "bfloat16": MmaType("bf16", "uint16_t", 4, "f32", "float",   "f"),
    "int8":     MmaType("s8",   "int8_t",   2, "s32", "int32_t", "r"),
    "uint8":    MmaType("u8",   "uint8_t",  2, "s32", "int32_t", "r"),
}
"""Type combinations by factor dtype."""
# Only the accumulator's columns are read: float32 sums serve bfloat16 factors too, int32 uint8.
MMA_BY_ACCUMULATOR: Mapping[str, MmaType] = {"float32": MMA_BY_FACTOR["float16"],
                                             "int32": MMA_BY_FACTOR["int8"]}
"""Type combinations by accumulator dtype."""
# fmt: on
ACCUMULATOR_REGISTERS = 8
"""Registers per thread of an accumulator fragment."""


def is_fragment(buffer: Buffer) -> bool:
    """Return whether a buffer holds matrix fragments."""
    return buffer.scope in FRAGMENTS


def fragment_layouts(body: Stmt) -> dict[Buffer, str]:
    """Return the memory layout ("row", "col") from which each fragment buffer is loaded."""
    layouts: dict[Buffer, str] = {}
    for call in fragment_calls(body):
        if call.op != "tvm_load_matrix_sync":
            continue
        buffer, layout = _fragment_argument(call.args[0]), _ptx_layout(call.args[7])
        # wmma.mma names the layouts of its operands, so that a fragment must have one throughout.
        if layouts.setdefault(buffer, layout) != layout:
            raise CompileError(f"fragment {buffer.name!r} is loaded by rows and by columns")
    return layouts


def fragment_calls(body: Stmt) -> Iterator[Intrinsic]:
    """Yield the fragment intrinsics of a statement."""
    for s in pre_order_stmts(body):
        if (
            isinstance(s, Evaluate)
            and isinstance(s.value, Intrinsic)
            and s.value.op in FRAGMENT_CALLS
        ):
            yield s.value


def declare_fragment(buffer: Buffer, name: str) -> str:
    """Return the declaration of a fragment buffer."""
    count = 1
    for d in buffer.shape:
        if not isinstance(d, IntImm):
            raise CompileError(f"fragment {buffer.name!r} has no constant size")
        count *= d.value
    # The registers of a warp hold whole matrices, never a part of one.
    if count % (FRAGMENT_DIM * FRAGMENT_DIM):
        raise CompileError(
            f"fragment {buffer.name!r}: expected matrices of {FRAGMENT_DIM} x {FRAGMENT_DIM}, "
            f"got {count} elements"
        )
    return f"{_fragment_type(buffer)} {name}[{count // (FRAGMENT_DIM * FRAGMENT_DIM)}];"


def fragment_type_helper(buffer: Buffer) -> tuple[str, str]:
    """Return the helper that defines the type of a fragment buffer: (name, text)."""
    name = _fragment_type(buffer)
    if buffer.scope == "wmma.accumulator":
        product = _mma_type(MMA_BY_ACCUMULATOR, buffer)
        members = f"{product.c_accumulator_type} r[{ACCUMULATOR_REGISTERS}];"
        return name, f"struct {name} {{ {members} }};"
    product = _mma_type(MMA_BY_FACTOR, buffer)
    return name, f"struct {name} {{ uint32_t r[{product.factor_registers}]; }};"


def _fragment_type(buffer: Buffer) -> str:
    if buffer.scope == "wmma.accumulator":
        return f"ek_sums_{_mma_type(MMA_BY_ACCUMULATOR, buffer).ptx_accumulator_type}"
    return f"ek_factor_{_mma_type(MMA_BY_FACTOR, buffer).ptx_factor_type}"


def _mma_type(table: Mapping[str, MmaType], buffer: Buffer) -> MmaType:
    mma_type = table.get(dt.element_dtype(buffer.dtype))
    if mma_type is None:
        raise CompileError(
            f"fragment {buffer.name!r}: scope {buffer.scope!r} is of {', '.join(table)}, not "
            f"{buffer.dtype}"
        )
    return mma_type


def _fragment_argument(e: PrimExpr) -> Buffer:
    assert isinstance(e, BufferAddress), e
    return e.buffer


def _ptx_layout(e: PrimExpr) -> str:
    text = e.value if isinstance(e, StringImm) else ""
    if text not in PTX_LAYOUTS:
        raise CompileError(f"fragments lie in memory as {' or '.join(PTX_LAYOUTS)}, not {text!r}")
    return PTX_LAYOUTS[text]


@dataclass(frozen=True, slots=True)
class FragmentCall:
    """Fragment operation as a C call: the helper function's name and text, and its arguments, of
    which some are still expressions.
    """

    name: str
    text: str
    args: tuple[PrimExpr | tuple[Buffer, PrimExpr], ...]
    """An expression, or the address of an element of a buffer."""


def _asm_operands(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + n}" for n in range(count)) + "}"


def _asm_constraints(letter: str, of: str, count: int) -> str:
    return ", ".join(f'"{letter}"({of}->r[{n}])' for n in range(count))


def _asm_helper(name: str, parameters: str, code: str, outputs: str, inputs: str) -> str:
    # `volatile` and the memory clobber keep the compiler from moving accesses across barriers.
    return (
        f"EK_DEVICE void {name}({parameters}) {{\n"
        f'  asm volatile("{code};"\n'
        f'               : {outputs} : {inputs} : "memory");\n}}'
    )


def _check_fragment_shape(e: Intrinsic) -> None:
    sides = [a.value if isinstance(a, IntImm) else a for a in e.args[1:4]]
    if sides != [FRAGMENT_DIM] * 3:
        raise CompileError(
            f"{e.op}: matrices have {FRAGMENT_DIM} x {FRAGMENT_DIM} x {FRAGMENT_DIM}, got {sides}"
        )


def _lower_fill_fragment(e: Intrinsic, layouts: Mapping[Buffer, str]) -> FragmentCall:
    """Lower `tvm_fill_fragment(sums, m, n, k, index, value)`."""
    _check_fragment_shape(e)
    buffer = _fragment_argument(e.args[0])
    row = _mma_type(MMA_BY_ACCUMULATOR, buffer)
    name = f"ek_fill_{row.ptx_accumulator_type}"
    text = (
        f"EK_DEVICE void {name}({_fragment_type(buffer)} *d, {row.c_accumulator_type} x) {{\n"
        f"#pragma unroll\n  for (int i = 0; i < {ACCUMULATOR_REGISTERS}; i++) d->r[i] = x;\n}}"
    )
    return FragmentCall(name, text, ((buffer, e.args[4]), e.args[5]))


def _lower_load_matrix(e: Intrinsic, layouts: Mapping[Buffer, str]) -> FragmentCall:
    """Lower `tvm_load_matrix_sync(fragment, m, n, k, index, address, stride, layout)`."""
    _check_fragment_shape(e)
    buffer, source = _fragment_argument(e.args[0]), e.args[5]
    assert isinstance(source, BufferAddress), e
    if buffer.scope == "wmma.accumulator":
        raise CompileError(f"fragment {buffer.name!r}: sums are filled, not loaded")
    row, layout = _mma_type(MMA_BY_FACTOR, buffer), _ptx_layout(e.args[7])
    # Scopes are wmma.matrix_a and wmma.matrix_b: their last letter is PTX's name.
    which = buffer.scope[-1]
    name = f"ek_load_{which}_{row.ptx_factor_type}_{layout}"
    code = f"wmma.load.{which}.sync.aligned.{layout}.m16n16k16.{row.ptx_factor_type} "
    registers = row.factor_registers
    code += f"{_asm_operands(0, registers)}, [%{registers}], %{registers + 1}"
    text = _asm_helper(
        # PTX takes the stride as a 32-bit register, though offsets are int64 elsewhere.
        name,
        f"{_fragment_type(buffer)} *d, const {row.c_factor_type} *p, int64_t stride",
        code,
        _asm_constraints("=r", "d", row.factor_registers),
        '"l"(p), "r"((int)stride)',
    )
    return FragmentCall(name, text, ((buffer, e.args[4]), _address_argument(source), e.args[6]))


def _lower_store_matrix(e: Intrinsic, layouts: Mapping[Buffer, str]) -> FragmentCall:
    """Lower `tvm_store_matrix_sync(sums, m, n, k, index, address, stride, layout)`."""
    _check_fragment_shape(e)
    buffer, target = _fragment_argument(e.args[0]), e.args[5]
    assert isinstance(target, BufferAddress), e
    row, layout = _mma_type(MMA_BY_ACCUMULATOR, buffer), _ptx_layout(e.args[7])
    name = f"ek_store_{row.ptx_accumulator_type}_{layout}"
    code = f"wmma.store.d.sync.aligned.{layout}.m16n16k16.{row.ptx_accumulator_type} "
    registers = _asm_operands(0, ACCUMULATOR_REGISTERS)
    code += f"[%{ACCUMULATOR_REGISTERS}], {registers}, %{ACCUMULATOR_REGISTERS + 1}"
    text = _asm_helper(
        name,
        f"const {_fragment_type(buffer)} *d, {row.c_accumulator_type} *p, int64_t stride",
        code,
        "",
        f'{_asm_constraints(row.register_constraint, "d", ACCUMULATOR_REGISTERS)}, "l"(p), '
        '"r"((int)stride)',
    )
    return FragmentCall(name, text, ((buffer, e.args[4]), _address_argument(target), e.args[6]))


def _lower_mma(e: Intrinsic, layouts: Mapping[Buffer, str]) -> FragmentCall:
    """Lower `tvm_mma_sync(d, index, a, index, b, index, c, index)`: d = a b + c."""
    d, a, b, c = (_fragment_argument(e.args[n]) for n in (0, 2, 4, 6))
    row = _mma_type(MMA_BY_FACTOR, a)
    if (
        a.dtype != b.dtype
        or _mma_type(MMA_BY_ACCUMULATOR, d).ptx_accumulator_type != row.ptx_accumulator_type
        or c.dtype != d.dtype
    ):
        raise CompileError(
            f"tvm_mma_sync: no tensor core multiplies {a.dtype} by {b.dtype} into {d.dtype}"
        )
    missing = [fragment.name for fragment in (a, b) if fragment not in layouts]
    if missing:
        raise CompileError(f"tvm_mma_sync: nothing loads fragment {missing[0]!r}")
    layout_pair = f"{layouts[a]}_{layouts[b]}"
    name = f"ek_multiply_{row.ptx_factor_type}_{layout_pair}"
    indices = [
        0,
        ACCUMULATOR_REGISTERS,
        ACCUMULATOR_REGISTERS + row.factor_registers,
        ACCUMULATOR_REGISTERS + 2 * row.factor_registers,
    ]
    counts = [
        ACCUMULATOR_REGISTERS,
        row.factor_registers,
        row.factor_registers,
        ACCUMULATOR_REGISTERS,
    ]
    registers = ", ".join(_asm_operands(n, count) for n, count in zip(indices, counts, strict=True))
    factor, total = f"const ek_factor_{row.ptx_factor_type}", f"ek_sums_{row.ptx_accumulator_type}"
    text = _asm_helper(
        name,
        f"{total} *d, {factor} *a, {factor} *b, const {total} *c",
        f"wmma.mma.sync.aligned.{layout_pair.replace('_', '.')}.m16n16k16{row.types} {registers}",
        _asm_constraints(f"={row.register_constraint}", "d", ACCUMULATOR_REGISTERS),
        ", ".join(
            (
                _asm_constraints("r", "a", row.factor_registers),
                _asm_constraints("r", "b", row.factor_registers),
                _asm_constraints(row.register_constraint, "c", ACCUMULATOR_REGISTERS),
            )
        ),
    )
    arguments = tuple((_fragment_argument(e.args[n]), e.args[n + 1]) for n in (0, 2, 4, 6))
    return FragmentCall(name, text, arguments)


def _address_argument(e: BufferAddress) -> tuple[Buffer, PrimExpr]:
    return e.buffer, e.indices[0] if e.indices else IntImm(0, "int64")


FRAGMENT_CALLS: Mapping[str, Callable[[Intrinsic, Mapping[Buffer, str]], FragmentCall]] = {
    "tvm_fill_fragment": _lower_fill_fragment,
    "tvm_load_matrix_sync": _lower_load_matrix,
    "tvm_store_matrix_sync": _lower_store_matrix,
    "tvm_mma_sync": _lower_mma,
}
"""Emitter of each fragment intrinsic."""

__all__ = [
    "FRAGMENT_CALLS",
    "FragmentCall",
    "declare_fragment",
    "fragment_calls",
    "fragment_layouts",
    "fragment_type_helper",
    "is_fragment",
]
