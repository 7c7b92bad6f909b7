"""Builder of the text of one LLVM function; fresh names, blocks, and value numbering within scopes.

Operands are strings ("%v7", "42", "splat (float 0x...)"); their data type is passed beside them. An
instruction without effects is written once: asking for the same text again inside the scope where
it was written gives the same value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ekiden.codegen.llvm.debug_info import DebugInfo
from ekiden.codegen.llvm.program_intrinsics import PROGRAM_INTRINSICS
from ekiden.codegen.llvm.quoting import escape_bytes
from ekiden.codegen.llvm.types import intrinsic_suffix, llvm_constant, register_type
from ekiden.ir import dtype as dt
from ekiden.runtime.binding.layout import DLTensor, DLTensor32
from ekiden.target import Target
from ekiden.target.features import POINTER_BYTES, RISCV, WASM, X86

AVX_REGISTER_BITS = 256
Operand = str
Arguments = Sequence[tuple[str, Operand]]


class LlvmModule:
    """State that the functions of one module share: declarations, string constants, finished
    functions, debug lines. `target` decides which instructions are available; without one, only
    those of every machine.
    """

    def __init__(self, target: Target | None = None, debug: DebugInfo | None = None) -> None:
        self.target, self.debug = target, debug
        self.tensor: type[DLTensor] | type[DLTensor32]
        self.tensor = DLTensor if self.pointer_bytes == 8 else DLTensor32
        self.declarations: dict[str, str] = {}
        self.strings: dict[bytes, str] = {}
        self.tables: dict[tuple[float, ...], str] = {}
        self.vectors: dict[str, str] = {}
        self.functions: list[str] = []
        self.defined: set[str] = set()
        self.metadata: list[str] = []
        self.intrinsics: set[str] = set()
        """Names of the LLVM intrinsics that the user's program calls."""
        self.constant_address_space = 0
        """Address space of constant tables."""
        self.has_gather = True
        """Whether the target has gather and scatter instructions."""
        self._names: dict[str, int] = {}

    @property
    def pointer_bytes(self) -> int:
        """Return the size of a pointer in bytes."""
        return POINTER_BYTES[self.target.architecture] if self.target is not None else 8

    @property
    def is_wasm(self) -> bool:
        """Return whether code is for WebAssembly."""
        return self.target is not None and self.target.architecture == WASM

    @property
    def has_separate_broadcast(self) -> bool:
        """Return whether broadcasting a scalar from memory takes an instruction of its own. AVX has
        that; SSE loads whole vectors, and AVX-512 broadcasts in the using instruction.
        """
        target = self.target
        is_x86 = target is not None and target.architecture == X86
        return is_x86 and self.has("broadcasts") and not self.has("masks")

    def has(self, ability: str) -> bool:
        """Return whether the target has a feature, as `Target.has`; LLVM expands what is
        missing.
        """
        return self.target is None or self.target.has(ability)

    def declare(self, name: str, result: str, arguments: Sequence[str]) -> None:
        """Declare an external function once."""
        # Intrinsics follow no calling convention: only functions extend their arguments.
        if not name.startswith("llvm."):
            result = f"{self.extension(result)}{result}"
            arguments = [f"{a} {self.extension(a)}".rstrip() for a in arguments]
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(arguments)})")

    def extension(self, kind: str) -> str:
        """Return the extension attribute that the C calling convention requires: RISC-V
        sign-extends 32 bits to 64, others leave the upper bits undefined.
        """
        is_riscv = self.target is not None and self.target.architecture == RISCV
        return "signext " if is_riscv and kind == "i32" else ""

    def string_constant(self, text: str) -> Operand:
        """Return a pointer to a zero-terminated constant string."""
        data = text.encode() + b"\0"
        return self.strings.setdefault(data, f"@.str.{len(self.strings)}")

    def float64_table(self, values: tuple[float, ...]) -> Operand:
        """Return a pointer to constant float64 numbers."""
        return self.tables.setdefault(values, f"@.table.{len(self.tables)}")

    def vector_constant(self, kind: str, value: Operand) -> Operand:
        """Return a pointer to a constant vector."""
        return self.vectors.setdefault(f"{kind} {value}", f"@.vector.{len(self.vectors)}")

    def unique(self, name: str) -> str:
        """Return a function name not used before in this module."""
        count = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}.{count}"

    def text(self, head: Sequence[str]) -> str:
        """Return the module as LLVM IR."""
        space = f"addrspace({self.constant_address_space}) " if self.constant_address_space else ""
        strings = [
            f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{escape_bytes(data)}"'
            for data, name in self.strings.items()
        ]
        tables = [
            f"{name} = private unnamed_addr {space}constant [{len(values)} x double]"
            f" [{', '.join('double ' + llvm_constant(v, 'float64') for v in values)}]"
            for values, name in self.tables.items()
        ]
        vectors = [
            f"{name} = private unnamed_addr constant {value}, align 32"
            for value, name in self.vectors.items()
        ]
        if self.intrinsics:
            head = [*head, f"{PROGRAM_INTRINSICS}{', '.join(sorted(self.intrinsics))}"]
        # A function that this module defines must not be declared as well: LLVM rejects
        # redefinition.
        declared = [text for name, text in self.declarations.items() if name not in self.defined]
        return "\n".join(
            [*head, *strings, *tables, *vectors, *self.functions, *declared, *self.metadata, ""]
        )


class FunctionBuilder:
    """Builder of the instructions of one function, in order. `block` is the label of the current
    block.
    """

    has_blocks = True
    """Whether the function has basic blocks; helpers written as assignments do not."""

    def __init__(self, module: LlvmModule) -> None:
        self.module = module
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.block = "entry"
        self.location = ""
        self.flags = ""
        self.allows_reassociation = False
        """Whether sums may be reassociated, so that rounding errors must not be relied on."""
        self._scopes: list[dict[str, Operand]] = [{}]
        self._count = 0
        self._memory_epochs = 0
        self._num_epochs: dict[int, int] = {}

    # blocks

    def fresh_name(self, hint: str = "v") -> str:
        """Return a new local name without its percent sign."""
        self._count += 1
        return f"{hint}{self._count}"

    def start(self, label: str) -> None:
        """Begin a block; the one before must have been ended by a branch or return."""
        self.lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        """End the block with a jump."""
        self.append_void(f"br label %{label}")

    def branch_if(self, condition: Operand, then_label: str, otherwise: str) -> None:
        """End the block with a two-way jump."""
        self.append_void(f"br i1 {condition}, label %{then_label}, label %{otherwise}")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Drop the values emitted inside at the end: they do not dominate what follows."""
        self._scopes.append({})
        try:
            yield
        finally:
            self._scopes.pop()

    # instructions

    def append_void(self, text: str) -> None:
        """Append an instruction without a value."""
        self.lines.append(f"  {text}{self.location}")

    def append_value(self, text: str, hint: str = "v") -> Operand:
        """Append an instruction that must not move or merge."""
        name = f"%{self.fresh_name(hint)}"
        self.lines.append(f"  {name} = {text}{self.location}")
        return name

    def pure(self, text: str, epoch: str = "") -> Operand:
        """Append an instruction without side effects, once per scope (local value numbering)."""
        key = text + epoch
        # Outer scopes dominate inner ones, so a value of any of them may be reused.
        for table in reversed(self._scopes):
            previous = table.get(key)
            if previous is not None:
                return previous
        result = self._scopes[-1][key] = self.append_value(text)
        return result

    def load(self, text: str, buffer: int = 0) -> Operand:
        """Append a load, merged with an earlier one unless memory may have changed since."""
        return self.pure(text, f"@{self._memory_epochs}.{self._num_epochs.get(buffer, 0)}")

    def touch_memory(self, buffer: int = 0) -> None:
        """Record that memory may have changed: all of it, or one buffer; loads are not reused
        across this point.
        """
        if buffer:
            self._num_epochs[buffer] = self._num_epochs.get(buffer, 0) + 1
        else:
            self._memory_epochs += 1

    def phi(self, dtype: str, *incoming: tuple[Operand, str]) -> Operand:
        """Append a phi over (value, block) pairs."""
        pairs = ", ".join(f"[ {value}, %{block} ]" for value, block in incoming)
        return self.append_value(f"phi {register_type(dtype)} {pairs}")

    def const(self, number: int | float, dtype: str) -> Operand:
        """Return a constant."""
        return llvm_constant(number, dtype)

    def pooled_const(self, number: float, dtype: str) -> Operand:
        """Return a constant of a long computation. On AVX it is loaded as a vector: registers are
        few, and LLVM would otherwise broadcast it in every iteration of a loop.
        """
        value, element = self.const(number, dtype), dt.element_dtype(dtype)
        one = dt.with_lanes(element, AVX_REGISTER_BITS // dt.SCALAR_BITS[element])
        if number == 0 or dt.lanes(dtype) % dt.lanes(one) or not self.module.has_separate_broadcast:
            return value
        kind = register_type(one)
        constant_pointer = self.module.vector_constant(kind, value)
        # A 32-byte load is folded into the instruction that uses it; a broadcast would take a
        # register.
        loaded = self.pure(f"load {kind}, ptr {constant_pointer}, align 32, !invariant.load !{{}}")
        lanes, own = dt.lanes(dtype), dt.lanes(one)
        if lanes == own:
            return loaded
        order = ", ".join(f"i32 {n % own}" for n in range(lanes))
        return self.pure(f"shufflevector {kind} {loaded}, {kind} poison, <{lanes} x i32> <{order}>")

    def concat_vectors(self, dtype: str, vectors: Sequence[Operand]) -> Operand:
        """Concatenate a power-of-two number of vectors."""
        pieces, lanes = list(vectors), dt.lanes(dtype)
        while len(pieces) > 1:
            kind = register_type(dt.with_lanes(dt.element_dtype(dtype), lanes))
            lanes *= 2
            order = ", ".join(f"i32 {n}" for n in range(lanes))
            pieces = [
                self.pure(f"shufflevector {kind} {a}, {kind} {b}, <{lanes} x i32> <{order}>")
                for a, b in zip(pieces[::2], pieces[1::2], strict=True)
            ]
        return pieces[0]

    def call(self, name: str, result: str, arguments: Arguments) -> Operand:
        """Append a call of a pure intrinsic by its full name, with the operands' data types."""
        types = [register_type(t) for t, _ in arguments]
        self.module.declare(name, register_type(result), types)
        argument_list = ", ".join(f"{t} {v}" for t, (_, v) in zip(types, arguments, strict=True))
        return self.pure(f"call {register_type(result)} @{name}({argument_list})")

    def intrinsic(self, name: str, dtype: str, *operands: Operand) -> Operand:
        """Append a call of `llvm.<name>` overloaded on `dtype`, all operands of that type."""
        return self.call(
            f"llvm.{name}.{intrinsic_suffix(dtype)}", dtype, [(dtype, o) for o in operands]
        )

    # arithmetic on one data type

    def binary(self, opcode: str, dtype: str, a: Operand, b: Operand) -> Operand:
        """Append `opcode a, b`; on floats with the current fast-math flags."""
        flags = f" {self.flags}" if self.flags and opcode[0] == "f" else ""
        return self.pure(f"{opcode}{flags} {register_type(dtype)} {a}, {b}")

    def negate(self, dtype: str, a: Operand) -> Operand:
        """Append `-a` of floats."""
        return self.pure(f"fneg {register_type(dtype)} {a}")

    def compare(self, predicate: str, dtype: str, a: Operand, b: Operand) -> Operand:
        """Append an icmp or fcmp with LLVM's predicate; the result is bool with the lanes of
        `dtype`.
        """
        kind = "fcmp" if dt.is_float(dtype) else "icmp"
        return self.pure(f"{kind} {predicate} {register_type(dtype)} {a}, {b}")

    def select(
        self, condition: Operand, dtype: str, a: Operand, b: Operand, lanes: int = 1
    ) -> Operand:
        """Append `a if condition else b`; the condition has 1 lane or as many as `dtype`."""
        kind = register_type(dtype)
        return self.pure(
            f"select {register_type(dt.with_lanes('bool', lanes))} {condition},"
            f" {kind} {a}, {kind} {b}"
        )

    def convert(self, opcode: str, source: str, target: str, a: Operand) -> Operand:
        """Append a conversion instruction: zext, bitcast, sitofp, ..."""
        if register_type(source) == register_type(target):
            return a
        return self.pure(f"{opcode} {register_type(source)} {a} to {register_type(target)}")

    def splat(self, dtype: str, a: Operand, lanes: int) -> Operand:
        """Broadcast a scalar to all lanes."""
        # Constants have a textual splat form; no instruction is needed.
        if a[0] != "%":
            return f"splat ({register_type(dtype)} {a})"
        kind = register_type(dt.with_lanes(dtype, lanes))
        one = self.pure(f"insertelement {kind} poison, {register_type(dtype)} {a}, i64 0")
        return self.pure(
            f"shufflevector {kind} {one}, {kind} poison, <{lanes} x i32> zeroinitializer"
        )

    def load_table_element(self, values: tuple[float, ...], index: Operand, lanes: int) -> Operand:
        """Load `values[index]` as float64 for each lane; the index (int64) is in range."""
        table, kind = (
            self.module.float64_table(values),
            register_type(dt.with_lanes("float64", lanes)),
        )
        word = register_type(dt.with_lanes("int64", lanes))
        space = self.module.constant_address_space
        pointer = f"ptr addrspace({space})" if space else "ptr"
        if lanes > 1 and not self.module.has_gather:
            return self._load_table_lanes(values, index, lanes)
        pointers = self.pure(f"getelementptr double, {pointer} {table}, {word} {index}")
        if lanes == 1:
            return self.pure(f"load double, {pointer} {pointers}")
        pointer_type, bits = f"<{lanes} x {pointer}>", f"<{lanes} x i1>"
        name = f"llvm.masked.gather.v{lanes}f64.v{lanes}p{space}"
        self.module.declare(name, kind, [pointer_type, "i32", bits, kind])
        return self.pure(
            f"call {kind} @{name}({pointer_type} {pointers}, i32 8, {bits} splat (i1 true), "
            f"{kind} poison)"
        )

    def _load_table_lanes(self, values: tuple[float, ...], index: Operand, lanes: int) -> Operand:
        kind, word = (register_type(dt.with_lanes(t, lanes)) for t in ("float64", "int64"))
        vector = "poison"
        for n in range(lanes):
            position = self.pure(f"extractelement {word} {index}, i64 {n}")
            one = self.load_table_element(values, position, 1)
            vector = self.pure(f"insertelement {kind} {vector}, double {one}, i64 {n}")
        return vector

    def has_scalef(self, dtype: str) -> bool:
        """Return whether `scalef` is available: AVX-512, on whole 512-bit vectors, a power of two
        of them.
        """
        target = self.module.target
        bits = dt.lanes(dtype) * 8 * dt.itemsize(dt.element_dtype(dtype))
        is_whole = bits >= 512 and bits & (bits - 1) == 0
        return target is not None and target.has("scalef") and is_whole

    def scalef(self, dtype: str, a: Operand, exponent: Operand) -> Operand | None:
        """Compute `a * 2**floor(exponent)` with AVX-512's VSCALEF; return None where it is
        unavailable.
        """
        if not self.has_scalef(dtype):
            return None
        lanes = 512 // dt.SCALAR_BITS[dt.element_dtype(dtype)]
        # The intrinsic exists for 512-bit registers; wider vectors are split and joined again.
        mask, one = f"i{lanes}", dt.with_lanes(dt.element_dtype(dtype), lanes)
        kind = register_type(one)
        name = f"llvm.x86.avx512.mask.scalef.p{'s' if lanes == 16 else 'd'}.512"
        self.module.declare(name, kind, [kind, kind, kind, mask, "i32"])
        # _MM_FROUND_CUR_DIRECTION: rounding as MXCSR says.
        current_rounding = 4

        def scale_register(x: Operand, n: Operand) -> Operand:
            """Scale one register."""
            return self.pure(
                f"call {kind} @{name}({kind} {x}, {kind} {n}, {kind} {x}, {mask} -1,"
                f" i32 {current_rounding})"
            )

        registers = [self.split_vector(dtype, operand, lanes) for operand in (a, exponent)]
        return self.concat_vectors(
            one, [scale_register(x, n) for x, n in zip(*registers, strict=True)]
        )

    def split_vector(self, dtype: str, value: Operand, lanes: int) -> list[Operand]:
        """Split a vector into vectors of `lanes` lanes."""
        if dt.lanes(dtype) == lanes:
            return [value]
        kind = register_type(dtype)
        orders = [
            ", ".join(f"i32 {n}" for n in range(first, first + lanes))
            for first in range(0, dt.lanes(dtype), lanes)
        ]
        return [
            self.pure(f"shufflevector {kind} {value}, {kind} poison, <{lanes} x i32> <{order}>")
            for order in orders
        ]

    def any_lane(self, mask: Operand, lanes: int) -> Operand:
        """Emit the test whether any lane of a bool vector is true."""
        name = f"llvm.vector.reduce.or.v{lanes}i1"
        return self.call(name, "bool", [(dt.with_lanes("bool", lanes), mask)])
