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
from ekiden.tir.visitor import walk

FRAGMENT_DIM = 16
"""Rows and columns of each matrix."""
PTX_LAYOUTS = {"row_major": "row", "col_major": "col"}
"""TVM's words -> those of PTX."""


@dataclass(frozen=True, slots=True)
class MmaType:
    """Type combination of a tensor-core instruction: names of the factors' type in PTX and C,
    registers per factor, names of the accumulator's type in PTX and C, and its register
    constraint.
    """

    word: str
    kind: str
    registers: int
    total: str
    accumulator_kind: str
    letter: str

    @property
    def types(self) -> str:
        """Return the type suffix of the `wmma.mma` instruction; for float16 factors it names the
        accumulators alone.
        """
        between = "" if self.word == "f16" else f".{self.word}.{self.word}"
        return f".{self.total}{between}.{self.total}"


# fmt: off
MMA_BY_FACTOR: Mapping[str, MmaType] = {
    "float16":  MmaType("f16",  "uint16_t", 8, "f32", "float",   "f"),
    "bfloat16": MmaType("bf16", "uint16_t", 4, "f32", "float",   "f"),
    "int8":     MmaType("s8",   "int8_t",   2, "s32", "int32_t", "r"),
    "uint8":    MmaType("u8",   "uint8_t",  2, "s32", "int32_t", "r"),
}
"""By the type of the factors."""
MMA_BY_ACCUMULATOR: Mapping[str, MmaType] = {"float32": MMA_BY_FACTOR["float16"],
                                             "int32": MMA_BY_FACTOR["int8"]}
"""By that of the sums."""
# fmt: on
ACCUMULATOR_REGISTERS = 8
"""Registers of the sums."""


def is_fragment(buffer: Buffer) -> bool:
    """Return whether a buffer holds matrix fragments."""
    return buffer.scope in FRAGMENTS


def layouts_of(body: Stmt) -> dict[Buffer, str]:
    """Return the memory layout ("row", "col") from which each fragment buffer is loaded."""
    layouts: dict[Buffer, str] = {}
    for call in calls_of(body):
        if call.op != "tvm_load_matrix_sync":
            continue
        buffer, layout = _buffer(call.args[0]), _layout(call.args[7])
        if layouts.setdefault(buffer, layout) != layout:
            raise CompileError(f"fragment {buffer.name!r} is loaded by rows and by columns")
    return layouts


def calls_of(body: Stmt) -> Iterator[Intrinsic]:
    """Yield the fragment intrinsics of a statement."""
    for s in walk(body):
        if (
            isinstance(s, Evaluate)
            and isinstance(s.value, Intrinsic)
            and s.value.op in FRAGMENT_CALLS
        ):
            yield s.value


def declared(buffer: Buffer, name: str) -> str:
    """Return the declaration of a fragment buffer."""
    count = 1
    for d in buffer.shape:
        if not isinstance(d, IntImm):
            raise CompileError(f"fragment {buffer.name!r} has no constant size")
        count *= d.value
    if count % (FRAGMENT_DIM * FRAGMENT_DIM):
        raise CompileError(
            f"fragment {buffer.name!r}: expected matrices of {FRAGMENT_DIM} x {FRAGMENT_DIM}, "
            f"got {count} elements"
        )
    return f"{_type(buffer)} {name}[{count // (FRAGMENT_DIM * FRAGMENT_DIM)}];"


def helpers_of(buffer: Buffer) -> tuple[str, str]:
    """Return the helper that defines the type of a fragment buffer: (name, text)."""
    if buffer.scope == "wmma.accumulator":
        product = _mma_type(MMA_BY_ACCUMULATOR, buffer)
        return _type(
            buffer
        ), f"struct {_type(buffer)} {{ {product.accumulator_kind} r[{ACCUMULATOR_REGISTERS}]; }};"
    product = _mma_type(MMA_BY_FACTOR, buffer)
    return _type(buffer), f"struct {_type(buffer)} {{ uint32_t r[{product.registers}]; }};"


def _type(buffer: Buffer) -> str:
    if buffer.scope == "wmma.accumulator":
        return f"ek_sums_{_mma_type(MMA_BY_ACCUMULATOR, buffer).total}"
    return f"ek_factor_{_mma_type(MMA_BY_FACTOR, buffer).word}"


def _mma_type(table: Mapping[str, MmaType], buffer: Buffer) -> MmaType:
    mma_type = table.get(dt.element(buffer.dtype))
    if mma_type is None:
        raise CompileError(
            f"fragment {buffer.name!r}: scope {buffer.scope!r} is of {', '.join(table)}, not "
            f"{buffer.dtype}"
        )
    return mma_type


def _buffer(e: PrimExpr) -> Buffer:
    assert isinstance(e, BufferAddress), e
    return e.buffer


def _layout(e: PrimExpr) -> str:
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


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + n}" for n in range(count)) + "}"


def _listed(letter: str, of: str, count: int) -> str:
    return ", ".join(f'"{letter}"({of}->r[{n}])' for n in range(count))


def _function(name: str, parameters: str, code: str, outputs: str, inputs: str) -> str:
    return (
        f"EK_DEVICE void {name}({parameters}) {{\n"
        f'  asm volatile("{code};"\n'
        f'               : {outputs} : {inputs} : "memory");\n}}'
    )


def _check_sides(e: Intrinsic) -> None:
    sides = [a.value if isinstance(a, IntImm) else a for a in e.args[1:4]]
    if sides != [FRAGMENT_DIM] * 3:
        raise CompileError(
            f"{e.op}: matrices have {FRAGMENT_DIM} x {FRAGMENT_DIM} x {FRAGMENT_DIM}, got {sides}"
        )


def _fill(e: Intrinsic, layouts: Mapping[Buffer, str]) -> FragmentCall:
    """Lower `tvm_fill_fragment(sums, m, n, k, index, value)`."""
    _check_sides(e)
    buffer = _buffer(e.args[0])
    row = _mma_type(MMA_BY_ACCUMULATOR, buffer)
    name = f"ek_fill_{row.total}"
    text = (
        f"EK_DEVICE void {name}({_type(buffer)} *d, {row.accumulator_kind} x) {{\n"
        f"#pragma unroll\n  for (int i = 0; i < {ACCUMULATOR_REGISTERS}; i++) d->r[i] = x;\n}}"
    )
    return FragmentCall(name, text, ((buffer, e.args[4]), e.args[5]))


def _load(e: Intrinsic, layouts: Mapping[Buffer, str]) -> FragmentCall:
    """Lower `tvm_load_matrix_sync(fragment, m, n, k, index, address, stride, layout)`."""
    _check_sides(e)
    buffer, source = _buffer(e.args[0]), e.args[5]
    assert isinstance(source, BufferAddress), e
    if buffer.scope == "wmma.accumulator":
        raise CompileError(f"fragment {buffer.name!r}: sums are filled, not loaded")
    row, layout = _mma_type(MMA_BY_FACTOR, buffer), _layout(e.args[7])
    which = buffer.scope[-1]
    name = f"ek_load_{which}_{row.word}_{layout}"
    code = f"wmma.load.{which}.sync.aligned.{layout}.m16n16k16.{row.word} "
    code += f"{_registers(0, row.registers)}, [%{row.registers}], %{row.registers + 1}"
    text = _function(
        name,
        f"{_type(buffer)} *d, const {row.kind} *p, int64_t stride",
        code,
        _listed("=r", "d", row.registers),
        '"l"(p), "r"((int)stride)',
    )
    return FragmentCall(name, text, ((buffer, e.args[4]), _place(source), e.args[6]))


def _store(e: Intrinsic, layouts: Mapping[Buffer, str]) -> FragmentCall:
    """Lower `tvm_store_matrix_sync(sums, m, n, k, index, address, stride, layout)`."""
    _check_sides(e)
    buffer, target = _buffer(e.args[0]), e.args[5]
    assert isinstance(target, BufferAddress), e
    row, layout = _mma_type(MMA_BY_ACCUMULATOR, buffer), _layout(e.args[7])
    name = f"ek_store_{row.total}_{layout}"
    code = f"wmma.store.d.sync.aligned.{layout}.m16n16k16.{row.total} "
    registers = _registers(0, ACCUMULATOR_REGISTERS)
    code += f"[%{ACCUMULATOR_REGISTERS}], {registers}, %{ACCUMULATOR_REGISTERS + 1}"
    text = _function(
        name,
        f"const {_type(buffer)} *d, {row.accumulator_kind} *p, int64_t stride",
        code,
        "",
        f'{_listed(row.letter, "d", ACCUMULATOR_REGISTERS)}, "l"(p), "r"((int)stride)',
    )
    return FragmentCall(name, text, ((buffer, e.args[4]), _place(target), e.args[6]))


def _multiply(e: Intrinsic, layouts: Mapping[Buffer, str]) -> FragmentCall:
    """Lower `tvm_mma_sync(d, index, a, index, b, index, c, index)`: d = a b + c."""
    d, a, b, c = (_buffer(e.args[n]) for n in (0, 2, 4, 6))
    row = _mma_type(MMA_BY_FACTOR, a)
    if (
        a.dtype != b.dtype
        or _mma_type(MMA_BY_ACCUMULATOR, d).total != row.total
        or c.dtype != d.dtype
    ):
        raise CompileError(
            f"tvm_mma_sync: no tensor core multiplies {a.dtype} by {b.dtype} into {d.dtype}"
        )
    missing = [fragment.name for fragment in (a, b) if fragment not in layouts]
    if missing:
        raise CompileError(f"tvm_mma_sync: nothing loads fragment {missing[0]!r}")
    layout_pair = f"{layouts[a]}_{layouts[b]}"
    name = f"ek_multiply_{row.word}_{layout_pair}"
    at = [
        0,
        ACCUMULATOR_REGISTERS,
        ACCUMULATOR_REGISTERS + row.registers,
        ACCUMULATOR_REGISTERS + 2 * row.registers,
    ]
    counts = [ACCUMULATOR_REGISTERS, row.registers, row.registers, ACCUMULATOR_REGISTERS]
    registers = ", ".join(_registers(n, count) for n, count in zip(at, counts, strict=True))
    factor, total = f"const ek_factor_{row.word}", f"ek_sums_{row.total}"
    text = _function(
        name,
        f"{total} *d, {factor} *a, {factor} *b, const {total} *c",
        f"wmma.mma.sync.aligned.{layout_pair.replace('_', '.')}.m16n16k16{row.types} {registers}",
        _listed(f"={row.letter}", "d", ACCUMULATOR_REGISTERS),
        ", ".join(
            (
                _listed("r", "a", row.registers),
                _listed("r", "b", row.registers),
                _listed(row.letter, "c", ACCUMULATOR_REGISTERS),
            )
        ),
    )
    arguments = tuple((_buffer(e.args[n]), e.args[n + 1]) for n in (0, 2, 4, 6))
    return FragmentCall(name, text, arguments)


def _place(e: BufferAddress) -> tuple[Buffer, PrimExpr]:
    return e.buffer, e.indices[0] if e.indices else IntImm(0, "int64")


FRAGMENT_CALLS: Mapping[str, Callable[[Intrinsic, Mapping[Buffer, str]], FragmentCall]] = {
    "tvm_fill_fragment": _fill,
    "tvm_load_matrix_sync": _load,
    "tvm_store_matrix_sync": _store,
    "tvm_mma_sync": _multiply,
}
"""Intrinsic -> what writes a call of it."""

__all__ = [
    "FRAGMENT_CALLS",
    "FragmentCall",
    "calls_of",
    "declared",
    "helpers_of",
    "is_fragment",
    "layouts_of",
]
