"""Calls of functions that the runtime knows by name.

Arguments travel as 16-byte values on the stack, buffers as tensors over them. The function is found
at the first call, through a call site that the loader of images makes; see runtime.h, sections 4,
10 and 11.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.codegen.common import pack_dtype
from ekiden.codegen.llvm.builder import LlvmModule, Operand
from ekiden.codegen.llvm.expression import ExpressionEmitter
from ekiden.codegen.llvm.image import CALL_SITE_PREFIX
from ekiden.codegen.llvm.quoting import quote_name
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.codegen.llvm.types import memory_type
from ekiden.ir import dtype as dt
from ekiden.ir.prim import Intrinsic, PrimExpr, StringImm, const
from ekiden.runtime.binding.layout import DeviceType, TypeIndex, Value
from ekiden.runtime.errors import InternalError
from ekiden.tir.expr import BufferAddress

STACK_WORD_BYTES = 8
VALUE_WORDS, PAYLOAD_WORD = Value.BYTES // STACK_WORD_BYTES, Value.V // STACK_WORD_BYTES
"""VALUE_WORDS: number of 64-bit words of an ek_value. PAYLOAD_WORD: index of the payload word in an
ek_value.
"""


class PackedCallEmitter(ExpressionEmitter):
    """Emitter of `call_packed`; a subclass handles failing calls."""

    def __init__(self, module: LlvmModule) -> None:
        super().__init__(module)
        self.module = module

    def fail_unless(self, condition: Operand, say: Callable[[], None] | None = None) -> None:
        """Return from the function unless the condition holds; subclasses implement it."""
        raise NotImplementedError

    def call_packed(self, e: Intrinsic) -> Operand:
        """Emit a packed call and return its result; a status of -1 of the callee is propagated."""
        name, b = e.args[0], self.builder
        if not isinstance(name, StringImm):
            raise InternalError(f"llvm: call_packed: expected a name first, got {name!r}")
        values = [self.pack_argument(a) for a in e.args[1:]]
        arguments = self.allocate_words(VALUE_WORDS * len(values))
        for n, (kind, payload) in enumerate(values):
            self.store_word(arguments, VALUE_WORDS * n, f"i64 {kind}")
            self.store_word(arguments, VALUE_WORDS * n + PAYLOAD_WORD, payload)
        result = self.allocate_words(VALUE_WORDS)
        # The callee may leave the result unset, and type index 0 is None.
        self.store_word(result, 0, "i64 0")
        self.store_word(result, PAYLOAD_WORD, "i64 0")
        call_arguments = f"ptr {arguments}, i32 {len(values)}, ptr {result}"
        status = b.append_value(f"call i32 {self.callee(e.op, name.value)}, {call_arguments})")
        # The callee may have written to any buffer.
        b.touch_memory()
        self.fail_unless(b.append_value(f"icmp eq i32 {status}, 0"))
        return self.load_result(result, e.dtype)

    def callee(self, op: str, name: str) -> str:
        """Return the called function and its first argument: the call site, or null for a function
        of the same module.
        """
        types = ["ptr", "ptr", "i32", "ptr"]
        if op == "call_function":
            self.module.declare(quote_name(name), "i32", types)
            return f"@{quote_name(name)}(ptr null"
        site = f"@{quote_name(CALL_SITE_PREFIX + name)}"
        self.module.declarations.setdefault(site, f"{site} = external global i8")
        self.module.declare("ek_call_packed", "i32", types)
        return f"@ek_call_packed(ptr {site}"

    def allocate_words(self, count: int) -> Operand:
        """Allocate 64-bit words on the stack."""
        name = f"%{self.builder.fresh_name('words')}"
        # The entry block allocates once, so that a call in a loop reuses its words.
        self.builder.entry.append(f"  {name} = alloca [{max(count, 1)} x i64], align 16")
        return name

    def store_word(self, base: Operand, slot: int, value: str) -> None:
        """Store a typed operand in a 64-bit word of a stack array."""
        address = self.builder.pure(f"getelementptr i64, ptr {base}, i64 {slot}")
        self.builder.append_void(f"store {value}, ptr {address}, align 8")

    def pack_argument(self, a: PrimExpr) -> tuple[int, str]:
        """Return (type index, typed payload) of an argument."""
        if isinstance(a, StringImm):
            return TypeIndex.RAW_STR, f"ptr {self.module.string_constant(a.value)}"
        if isinstance(a, BufferAddress):
            return TypeIndex.DLTENSOR_PTR, f"ptr {self.build_dltensor(a)}"
        if dt.lanes(a.dtype) > 1:
            raise InternalError(f"llvm: call_packed: an argument is a vector: {a!r}")
        if a.dtype == "handle":
            return TypeIndex.OPAQUE_PTR, f"ptr {self.emit_expr(a)}"
        if dt.is_float(a.dtype):
            return (
                TypeIndex.FLOAT,
                f"double {emit_cast(self.builder, self.emit_expr(a), a.dtype, 'float64')}",
            )
        kind = TypeIndex.BOOL if a.dtype == "bool" else TypeIndex.INT
        return kind, f"i64 {emit_cast(self.builder, self.emit_expr(a), a.dtype, 'int64')}"

    def build_dltensor(self, a: BufferAddress) -> Operand:
        """Build a DLTensor over a buffer or a region of it on the stack."""
        buffer, b = a.buffer, self.builder
        data = self.pointer(buffer)
        if a.indices:
            position = self.emit_expr(a.indices[0])
            data = b.pure(f"getelementptr {memory_type(buffer.dtype)}, ptr {data}, i64 {position}")
        extents = a.extents or buffer.shape
        shape, strides = self.allocate_words(len(extents)), self.allocate_words(len(extents))
        step: PrimExpr = const(1)
        for axis in reversed(range(len(extents))):
            self.store_word(shape, axis, f"i64 {self.emit_expr(extents[axis])}")
            stride = buffer.strides[axis] if buffer.strides else step
            self.store_word(strides, axis, f"i64 {self.emit_expr(stride)}")
            # A region is strided as its buffer, so that steps come from the buffer's own shape.
            step = step * buffer.shape[axis]
        layout = self.module.tensor
        descriptor = self.allocate_words(layout.BYTES // STACK_WORD_BYTES)
        for offset, word in (
            (layout.DATA, f"ptr {data}"),
            (layout.DEVICE, f"i32 {DeviceType.CPU}"),
            (layout.DEVICE + 4, "i32 0"),
            (layout.NDIM, f"i32 {len(extents)}"),
            (layout.DTYPE, f"i32 {pack_dtype(buffer.dtype)}"),
            (layout.SHAPE, f"ptr {shape}"),
            (layout.STRIDES, f"ptr {strides}"),
            (layout.BYTE_OFFSET, "i64 0"),
        ):
            member_address = b.pure(f"getelementptr i8, ptr {descriptor}, i64 {offset}")
            b.append_void(f"store {word}, ptr {member_address}, align 4")
        return descriptor

    def load_result(self, slot: Operand, dtype: str) -> Operand:
        """Return the value that a call has returned; an object in it is released."""
        b = self.builder
        kind = b.append_value(f"load i32, ptr {slot}, align 8")
        payload = b.pure(f"getelementptr i64, ptr {slot}, i64 {PAYLOAD_WORD}")
        integer = b.append_value(f"load i64, ptr {payload}, align 8")
        number = b.append_value(f"load double, ptr {payload}, align 8")
        self.module.declare("ek_value_drop", "void", ["ptr"])
        # Dropped after the payload was read: this may free an object.
        b.append_void(f"call void @ek_value_drop(ptr {slot})")
        is_float = b.append_value(f"icmp eq i32 {kind}, {TypeIndex.FLOAT}")
        if dt.is_float(dtype):
            value = b.select(is_float, "float64", number, emit_cast(b, integer, "int64", "float64"))
            return emit_cast(b, value, "float64", dtype)
        value = b.select(is_float, "int64", emit_cast(b, number, "float64", "int64"), integer)
        return emit_cast(b, value, "int64", dtype)
