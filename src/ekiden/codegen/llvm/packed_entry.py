"""Emit the packed entry point of a kernel; checks its arguments, binds symbolic dimensions, and
unpacks addresses.
"""

from __future__ import annotations

from ekiden.codegen.common import (
    DEVICE_ID_VAR,
    ShapeCheck,
    argument_label,
    device_type_of,
    expected_scalar,
    flushes_subnormals,
    in_place_params,
    is_device_argument,
    not_contiguous_message,
    out_of_range_message,
    pack_dtype,
    shape_checks,
)
from ekiden.codegen.llvm import subnormals
from ekiden.codegen.llvm.alias_metadata import AliasScopes
from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.debug_info import DebugLocations
from ekiden.codegen.llvm.quoting import quote_name
from ekiden.codegen.llvm.statement import StatementEmitter, function_text
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.ir import dtype as dt
from ekiden.ir.prim import SizeVar, Var, cast
from ekiden.runtime.binding.layout import DLTensor, DLTensor32, Tensor, TypeIndex, Value
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc

PACKED_SIGNATURE = "ptr %self, ptr %args, i32 %nargs, ptr %ret"


class EntryEmitter(StatementEmitter):
    """Emitter of the function that is called as ek_packed."""

    @property
    def dltensor_layout(self) -> type[DLTensor] | type[DLTensor32]:
        """Return the DLTensor layout of the target's pointer width."""
        return self.module.tensor

    def write(self, func: PrimFunc) -> None:
        """Emit entry and body, and add them to the module."""
        self.builder.entry = []
        self.fast_math = fast_math_flags(func)
        if (func.attrs or {}).get("tir.noalias"):
            # Inputs that the output may overwrite in place share its alias scope.
            homes = {func.buffers[n]: func.buffers[-1] for n in in_place_params(func)}
            self.alias = AliasScopes(self.module.metadata, homes)
        if self.module.debug is not None:
            line = self.module.debug.first_line(func)
            self.lines = DebugLocations(self.module.debug, self.name, line)
            self.builder.location = self.lines.header()
        if flushes_subnormals(func):
            self.flush_mode = subnormals.enter_flush_to_zero(self.builder)
        count = len(func.params)
        right = self.builder.append_value(f"icmp eq i32 %nargs, {count}")
        self.check(right, "TypeError", f"{self.name}: expected {count} arguments")
        self.device_type = device_type_of(func)
        shapes: dict[int, Operand] = {}
        for i, param in enumerate(func.params):
            if isinstance(param, Buffer):
                shapes[i] = self.unpack_tensor(func, i, param)
            else:
                self.variables[param] = self.unpack_scalar(func, i, param)
        # After all arguments are unpacked: a dimension may depend on any of them.
        for shape_check in shape_checks(func):
            self.check_dimension(
                shape_check, self.load_field(shapes[shape_check.index], 8 * shape_check.axis, "i64")
            )
        self.emit_stmt(func.body)
        self.emit_return(0)
        # A noalias list names all other buffers, which are known only after the body.
        if self.alias is not None:
            self.alias.finish()
        name = quote_name(self.name)
        self.module.defined.add(name)
        self.module.functions.append(function_text(name, PACKED_SIGNATURE, self))

    def load_field(self, base: Operand, offset: int, kind: str) -> Operand:
        """Load a member of a structure."""
        return self.builder.pure(f"load {kind}, ptr {self._field_address(base, offset)}")

    def unpack_tensor(self, func: PrimFunc, i: int, buffer: Buffer) -> Operand:
        """Emit the check that argument i is a tensor of the parameter's dtype and rank; return the
        address of its shape.
        """
        b, name = self.builder, argument_label(func, i, buffer)
        index = self.load_field("%args", i * Value.BYTES, "i32")
        is_object = b.append_value(f"icmp eq i32 {index}, {TypeIndex.TENSOR}")
        is_pointer = b.append_value(f"icmp eq i32 {index}, {TypeIndex.DLTENSOR_PTR}")
        self.check(
            b.append_value(f"or i1 {is_object}, {is_pointer}"),
            "TypeError",
            f"{name} must be a tensor",
        )
        payload = self.load_field("%args", i * Value.BYTES + Value.V, "ptr")
        # A Tensor object contains its DLTensor behind a header; a DLTensor pointer has none.
        inner = b.append_value(f"getelementptr i8, ptr {payload}, i64 {Tensor.DL}")
        tensor = b.append_value(f"select i1 {is_object}, ptr {inner}, ptr {payload}")
        rank = self.load_field(tensor, self.dltensor_layout.NDIM, "i32")
        right = b.append_value(f"icmp eq i32 {rank}, {len(buffer.shape)}")
        self.check(right, "ValueError", f"{name} must have {len(buffer.shape)} dimensions")
        dtype = self.load_field(tensor, self.dltensor_layout.DTYPE, "i32")
        right = b.append_value(f"icmp eq i32 {dtype}, {pack_dtype(buffer.dtype)}")
        self.check(right, "TypeError", f"{name} must have dtype {buffer.dtype}")
        if buffer.shape and not buffer.strides:
            self.check(
                self.is_contiguous(tensor, len(buffer.shape)),
                "ValueError",
                not_contiguous_message(name),
            )
        if self.device_type is not None and is_device_argument(func, buffer):
            self.check_device(tensor, name)
        data, offset = (
            self.load_field(tensor, self.dltensor_layout.DATA, "ptr"),
            self.load_field(tensor, self.dltensor_layout.BYTE_OFFSET, "i64"),
        )
        self.pointers[buffer] = b.append_value(f"getelementptr i8, ptr {data}, i64 {offset}")
        return self.load_field(tensor, self.dltensor_layout.SHAPE, "ptr")

    def unpack_scalar(self, func: PrimFunc, i: int, param: Var) -> Operand:
        """Emit the check that argument i is a number representable in its parameter's dtype; return
        its value. True and False are the integers 1 and 0; integers are accepted for floats.
        """
        b, name, kind = self.builder, argument_label(func, i, param), expected_scalar(param, func)
        index = self.load_field("%args", i * Value.BYTES, "i32")
        is_int = b.append_value(f"icmp eq i32 {index}, {TypeIndex.INT}")
        is_bool = b.append_value(f"icmp eq i32 {index}, {TypeIndex.BOOL}")
        right = is_integer = b.append_value(f"or i1 {is_int}, {is_bool}")
        if dt.is_float(param.dtype):
            is_float = b.append_value(f"icmp eq i32 {index}, {TypeIndex.FLOAT}")
            right = b.append_value(f"or i1 {is_integer}, {is_float}")
        self.check(right, "TypeError", f"{name} must be {kind}")
        integer = self.load_field("%args", i * Value.BYTES + Value.V, "i64")
        if dt.is_float(param.dtype):
            real = self.load_field("%args", i * Value.BYTES + Value.V, "double")
            widened = emit_cast(b, integer, "int64", "float64")
            chosen = b.append_value(f"select i1 {is_integer}, double {widened}, double {real}")
            return emit_cast(b, chosen, "float64", param.dtype)
        narrowed = emit_cast(b, integer, "int64", param.dtype)
        # Narrowing and widening again restores the value exactly if it is in range.
        back = emit_cast(b, narrowed, param.dtype, "int64")
        fits = b.append_value(f"icmp eq i64 {back}, {integer}")
        # At equal width the round trip is always exact, but negative numbers do not fit.
        if param.dtype == "uint64":
            fits = b.append_value(f"icmp sge i64 {integer}, 0")
        self.check(fits, "ValueError", f"{name} {out_of_range_message(param)}")
        return narrowed

    def check_device(self, tensor: Operand, name: str) -> None:
        """Emit the check that an argument is on the first argument's device, and that the device
        has the right type.
        """
        b = self.builder
        kind = self.load_field(tensor, self.dltensor_layout.DEVICE, "i32")
        right = b.append_value(f"icmp eq i32 {kind}, {self.device_type}")
        self.check(right, "ValueError", f"{name} must lie on a device of type {self.device_type}")
        number = b.pure(
            f"sext i32 {self.load_field(tensor, self.dltensor_layout.DEVICE + 4, 'i32')} to i64"
        )
        first_device = self.variables.setdefault(DEVICE_ID_VAR, number)
        right = b.append_value(f"icmp eq i64 {number}, {first_device}")
        self.check(right, "ValueError", f"{name} must lie on the device of the first argument")

    def is_contiguous(self, tensor: Operand, rank: int) -> Operand:
        """Emit the test whether a tensor is contiguous in row-major order: `strides` is NULL or
        matches the shape. Strides of dimensions of 1 and of empty tensors do not matter.
        """
        b = self.builder
        shape, strides = (
            self.load_field(tensor, self.dltensor_layout.SHAPE, "ptr"),
            self.load_field(tensor, self.dltensor_layout.STRIDES, "ptr"),
        )
        absent = b.append_value(f"icmp eq ptr {strides}, null")
        readable_strides = b.append_value(
            f"select i1 {absent}, ptr {shape}, ptr {strides}"
        )  # may be read, any case
        fits, empty, expected = "true", "false", "1"
        for axis in reversed(range(rank)):
            extent = self.load_field(shape, 8 * axis, "i64")
            stride = b.append_value(
                f"load i64, ptr {self._field_address(readable_strides, 8 * axis)}"
            )
            right = b.append_value(f"icmp eq i64 {stride}, {expected}")
            single = b.append_value(f"icmp eq i64 {extent}, 1")
            none = b.append_value(f"icmp eq i64 {extent}, 0")
            fits = b.append_value(f"and i1 {fits}, {b.append_value(f'or i1 {right}, {single}')}")
            empty = b.append_value(f"or i1 {empty}, {none}")
            expected = b.append_value(f"mul i64 {expected}, {extent}")
        return b.append_value(f"or i1 {absent}, {b.append_value(f'or i1 {fits}, {empty}')}")

    def _field_address(self, base: Operand, offset: int) -> Operand:
        return self.builder.pure(f"getelementptr i8, ptr {base}, i64 {offset}") if offset else base

    def check_dimension(self, row: ShapeCheck, actual: Operand) -> None:
        """Bind a symbolic dimension, or compare a dimension with its required extent."""
        if not row.binds_var:
            right = self.builder.append_value(
                f"icmp eq i64 {actual}, {self.emit_expr(cast(row.extent, 'int64'))}"
            )
            self.check(right, "ValueError", row.message)
            return
        assert isinstance(row.extent, Var)
        self.variables[row.extent] = emit_cast(self.builder, actual, "int64", row.extent.dtype)
        if isinstance(row.extent, SizeVar):
            self.nonnegative_vars.add(row.extent)


FAST_MATH_FLAGS = ("nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc")
"""LLVM's fast-math flags."""


def fast_math_flags(func: PrimFunc) -> str:
    """Return the LLVM flags that the attribute `tir.fast_math` allows on a function's additions,
    products, quotients, minima and maxima; none by default. Mathematical functions, whose
    polynomials depend on the order of operations, and fused multiply-adds never get any. Raises
    CompileError for an unknown flag.
    """
    flags = str((func.attrs or {}).get("tir.fast_math", "")).split()
    unknown = [f for f in flags if f not in FAST_MATH_FLAGS]
    if unknown:
        raise CompileError(
            f"function {func.name!r}: 'tir.fast_math' has unknown flags {', '.join(unknown)}; "
            f"there are {', '.join(FAST_MATH_FLAGS)}"
        )
    return " ".join(flags)
