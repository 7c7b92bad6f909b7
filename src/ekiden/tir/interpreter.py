"""Reference interpreter of PrimFuncs in Python and NumPy: a slow test oracle that checks every
access for out-of-range indices.

The program is translated to Python source (one line per statement) and executed. Blocks must have
been lowered.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import INTRINSICS, find_intrinsic
from ekiden.ir.prim import (
    BinaryExpr,
    Cast,
    Div,
    FloatImm,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Not,
    PrimExpr,
    Select,
    StringImm,
    Var,
)
from ekiden.ir.prim_visitor import children, post_order
from ekiden.runtime import errors
from ekiden.tir.c_functions import call_c
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp, VectorReduce
from ekiden.tir.interpreter_limits import StepBudget
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
)
from ekiden.tir.visitor import conditional_nodes

Array: TypeAlias = npt.NDArray[np.generic]
Index: TypeAlias = Array | int
"""Index of one element, or with lanes of several."""

_NUMPY_REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


class _InterpreterRuntime:
    """The functions that the generated source calls."""

    @staticmethod
    def load(array: Array, index: Index, name: str) -> Any:  # noqa: ANN401  # one, or lanes
        _check_bounds(array, index, name)
        return np.asarray(array[index])[()] if isinstance(index, np.ndarray) else array[index]

    @staticmethod
    def store(
        array: Array, index: Index, value: Array, name: str, mask: Array | None = None
    ) -> None:
        """Store an element, or the lanes enabled by the mask. Raises as `_check_bounds` does for an
        index outside; disabled lanes may have any index.
        """
        if mask is not None:
            enabled = np.asarray(mask, bool)
            index, value = np.asarray(index)[enabled], np.asarray(value)[enabled]
        _check_bounds(array, index, name)
        array[index] = value

    @staticmethod
    def truncating_div(a: Array, b: Array) -> Array:
        """Divide towards zero for integers, as in C; floats divide exactly."""
        if not np.issubdtype(np.asarray(a).dtype, np.integer):
            return np.asarray(np.divide(a, b))[()]
        # NumPy rounds down; C truncates: add 1 where the quotient is negative and inexact.
        below = np.floor_divide(a, b)
        differ = np.sign(a) != np.sign(b)
        is_less = (np.remainder(a, b) != 0) & differ
        return np.asarray(below + is_less.astype(below.dtype))[()]

    @staticmethod
    def bit_cast(value: Array, dtype: str) -> Array:
        lanes = np.atleast_1d(np.asarray(value)).view(dt.to_numpy(dt.element_dtype(dtype)))
        return lanes if dt.lanes(dtype) > 1 else np.asarray(lanes[0])[()]

    @staticmethod
    def error_class(kind: str) -> type[Exception]:
        """Return the exception class for an error's kind, resolved as the FFI resolves it."""
        candidate = getattr(errors, kind, None) or getattr(builtins, kind, None)
        if isinstance(candidate, type) and issubclass(candidate, Exception):
            return candidate
        return errors.RunError

    @staticmethod
    def cast(value: Array, dtype: str) -> Array:
        return np.asarray(value).astype(dt.to_numpy(dt.element_dtype(dtype)))[()]


def _check_bounds(array: Array, index: Index, name: str) -> None:
    """Raise IndexError if an index, or any lane of a vector of indices, is outside the array."""
    if not isinstance(index, np.ndarray) and 0 <= index < len(array):  # what most accesses are
        return
    where = np.asarray(index)
    if where.size and (where.min() < 0 or where.max() >= len(array)):
        raise IndexError(
            f"buffer {name!r} of {len(array)} elements: access at {where.min()}..{where.max()}"
        )


class _PythonEmitter:
    """An emitter that writes statements as Python lines."""

    def __init__(self, functions: Mapping[str, PrimFunc], budget: StepBudget | None) -> None:
        self.functions = functions
        self.budget = budget
        self.num_steps = 0
        """Nodes evaluated per execution of the lines so far, without those that loops charge
        themselves.
        """
        self.lines: list[str] = []
        self.depth = 0
        self.names: dict[object, str] = {}
        self.values: dict[str, object] = {
            "np": np,
            "rt": _InterpreterRuntime,
            "reduce": _NUMPY_REDUCTIONS,
        }

    def call_function(self, name: str, *arrays: Array) -> int:
        """Run another function of the module."""
        run_prim_func(self.functions[name], *arrays, functions=self.functions, budget=self.budget)
        return 0

    def name_of(self, binding: Var | Buffer) -> str:
        """Return the name in the source: the node's own name and a number, since names need not be
        unique.
        """
        if binding not in self.names:
            clean = "".join(c if c.isalnum() else "_" for c in binding.name)
            self.names[binding] = f"{clean}_{len(self.names)}"
        return self.names[binding]

    def emit_line(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def emit_stmt(self, s: Stmt, depth: int) -> None:
        """Emit the lines of a statement, which must have been lowered (TypeError)."""
        self.depth = depth
        match s:
            case SeqStmt():
                for child in s.seq:
                    self.emit_stmt(child, depth)
            case For():
                low, extent = self.emit_expr(s.min), self.emit_expr(s.extent)
                header = f"for {self.name_of(s.loop_var)} in range({low}, {low} + {extent}):"
                position, steps = len(self.lines), self.num_steps
                self.emit_line(depth, header)
                self.emit_stmt(s.body, depth + 1)
                if isinstance(s.extent, IntImm):
                    self.num_steps = steps + s.extent.value * (self.num_steps - steps)
                else:
                    self.charge(position, depth, steps, f"max({extent}, 0)")
            case While():
                self.emit_line(depth, "while True:")
                position, steps = len(self.lines), self.num_steps
                self.depth = depth + 1
                self.emit_line(depth + 1, f"if not {self.emit_expr(s.condition)}:")
                self.emit_line(depth + 2, "break")
                self.emit_stmt(s.body, depth + 1)
                self.charge(position, depth + 1, steps, "1")
            case IfThenElse():
                self.emit_line(depth, f"if {self.emit_expr(s.condition)}:")
                self.emit_stmt(s.then_case, depth + 1)
                if s.else_case is not None:
                    self.emit_line(depth, "else:")
                    self.emit_stmt(s.else_case, depth + 1)
            case LetStmt():
                self.emit_line(depth, f"{self.name_of(s.var)} = {self.emit_expr(s.value)}")
                self.emit_stmt(s.body, depth)
            case Allocate():
                self.emit_allocate(s.buffer, depth)
                self.emit_stmt(s.body, depth)
            case AttrStmt():
                self.emit_stmt(s.body, depth)
            case BufferStore():
                self.emit_store(s, depth)
            case Evaluate():
                self.emit_line(depth, self.emit_expr(s.value))
            case Prefetch():
                self.emit_line(depth, "pass")
            case AssertStmt():
                values = ", ".join(map(self.emit_expr, s.values))
                message = f"{s.message!r}.format({values})" if values else repr(s.message)
                self.emit_line(depth, f"if not {self.emit_expr(s.condition)}:")
                self.emit_line(depth + 1, f"raise rt.error_class({s.kind!r})({message})")
            case _:
                raise TypeError(f"interpreter: {type(s).__name__} must be lowered first")

    def charge(self, at: int, depth: int, before: int, times: str) -> None:
        """Insert a line at `at` that charges the step budget for the steps since `before`, so many
        times.

        They are then no steps of what is around the loop.
        """
        if self.budget is not None:
            steps = self.num_steps - before + 1
            charge = self.intern_constant(self.budget.charge)
            self.lines.insert(at, "    " * depth + f"{charge}(int({times}) * {steps})")
        self.num_steps = before + 1

    def emit_allocate(self, buffer: Buffer, depth: int) -> None:
        """Emit an allocation filled with NaN or 77, so that reading uninitialised memory shows."""
        lanes, kind = dt.lanes(buffer.dtype), dt.element_dtype(buffer.dtype)
        count = " * ".join(f"({self.emit_expr(d)})" for d in buffer.shape) or "1"
        shape = f"({count},)" if lanes == 1 else f"({count}, {lanes})"
        # NaN and 77 are canaries: a program that reads an element it never wrote yields a visibly
        # wrong result.
        fill = "np.nan" if dt.is_float(kind) else "77" if kind != "bool" else "False"
        name, dtype = self.name_of(buffer), self.intern_constant(dt.to_numpy(kind))
        self.emit_line(depth, f"{name} = np.full({shape}, {fill}, {dtype})")

    def intern_constant(self, value: object) -> str:
        """Return a global name of the generated source that holds a value without a literal."""
        name = f"c{len(self.values)}"
        self.values[name] = value
        return name

    def emit_store(self, s: BufferStore, depth: int) -> None:
        """Emit a store; the buffer's name is passed for the message of an out-of-range index."""
        mask = "" if s.predicate is None else f", {self.emit_expr(s.predicate)}"
        target, index = self.name_of(s.buffer), self.emit_expr(s.indices[0])
        self.emit_line(
            depth,
            f"rt.store({target}, {index}, {self.emit_expr(s.value)}, {s.buffer.name!r}{mask})",
        )

    def emit_expr(self, e: PrimExpr) -> str:
        """Return the expression as Python; a sub-expression used twice gets a line of its own
        before, unless it is evaluated conditionally.
        """
        order = post_order(e)
        uses: dict[int, int] = {}
        for sub_expr in order:
            for child in children(sub_expr):
                uses[id(child)] = uses.get(id(child), 0) + 1
        guarded = conditional_nodes(e, order)
        text_by_id: dict[int, str] = {}
        for sub_expr in order:
            text = self.emit_node(sub_expr, [text_by_id[id(c)] for c in children(sub_expr)])
            # A guarded node must not be hoisted: its load may be out of range where the condition
            # is false.
            if uses.get(id(sub_expr), 0) > 1 and children(sub_expr) and id(sub_expr) not in guarded:
                name = f"t{len(self.lines)}"
                self.emit_line(self.depth, f"{name} = {text}")
                text = name
            text_by_id[id(sub_expr)] = text
        return text_by_id[id(e)]

    def emit_node(self, e: PrimExpr, x: list[str]) -> str:
        """Return one node as Python; `x` holds the text of its children."""
        self.num_steps += 1
        match e:
            case Var():
                return self.name_of(e)
            case IntImm() | FloatImm():
                return (
                    str(e.value)
                    if e.dtype == "int64"
                    else self.intern_constant(dt.to_numpy(e.dtype).type(e.value))
                )
            case Min() | Max():
                return f"np.{'minimum' if isinstance(e, Min) else 'maximum'}({x[0]}, {x[1]})"
            case Div():
                return f"rt.truncating_div({x[0]}, {x[1]})"
            case BinaryExpr():
                symbol = {"and": "&", "or": "|"}.get(e.symbol, e.symbol)
                return f"({x[0]} {symbol} {x[1]})"
            case Not():
                return f"np.logical_not({x[0]})"
            case Cast():
                return f"rt.cast({x[0]}, {e.dtype!r})"
            case Select():
                return f"np.where({x[0]}, {x[1]}, {x[2]})[()]"
            case Ramp():
                return f"({x[0]} + np.arange({e.lanes}) * {x[1]})"
            case Broadcast():
                return f"np.full({e.lanes}, {x[0]})"
            case VectorReduce():
                return f"reduce[{e.kind!r}]({x[0]})"
            case BufferLoad():
                return f"rt.load({self.name_of(e.buffer)}, {x[0]}, {e.buffer.name!r})"
            case Intrinsic():
                return self.emit_intrinsic(e, x)
            case StringImm():
                return repr(e.value)
            case BufferAddress():
                return self.emit_address(e, x)
            case _:
                raise TypeError(f"interpreter: {type(e).__name__} has no meaning here")

    def emit_address(self, e: BufferAddress, x: list[str]) -> str:
        """Return a view of a buffer, or of a region of it."""
        shape = ", ".join(self.emit_expr(d) for d in e.buffer.shape)
        reshaped = f"{self.name_of(e.buffer)}.reshape(({shape},))"
        if not e.extents:
            return reshaped
        view = self.intern_constant(_region_view)
        return f"{view}({reshaped}, {x[0]}, ({', '.join(x[len(e.indices) :])},))"

    def emit_intrinsic(self, e: Intrinsic, x: list[str]) -> str:
        """Return a call of an intrinsic's NumPy reference; with a scalar condition only the chosen
        side is evaluated.
        """
        if e.op == "call_function":
            return f"{self.intern_constant(self.call_function)}({', '.join(x)})"
        if e.op in ("call_extern", "call_pure_extern"):
            kinds = tuple(a.dtype for a in e.args[1:])
            arguments = f"{x[0]}, {e.dtype!r}, {kinds!r}, {', '.join(x[1:])}"
            call = f"{self.intern_constant(call_c)}({arguments})"
            return call if e.dtype == "handle" else f"rt.cast({call}, {e.dtype!r})"
        if e.op == "reinterpret":
            return f"rt.bit_cast({x[0]}, {e.dtype!r})"
        if e.op in ("call_llvm_intrin", "call_llvm_pure_intrin"):
            raise errors.RunError(f"interpreter: {e.op} {x[0]}: NumPy has no intrinsics of LLVM")
        if not find_intrinsic(e.op).has_reference_semantics and e.op != "if_then_else":
            raise TypeError(f"interpreter: {e.op} has no meaning without what is around it")
        if e.op != "if_then_else":
            reference = self.intern_constant(INTRINSICS[e.op].reference)
            return f"rt.cast({reference}({', '.join(x)}), {e.dtype!r})"
        # A conditional expression evaluates one side: the other may read out of range.
        if dt.lanes(e.args[0].dtype) == 1:
            return f"({x[1]} if {x[0]} else {x[2]})"
        return self.emit_masked_select(e, x[0])

    def emit_masked_select(self, e: Intrinsic, mask: str) -> str:
        """Return a per-lane conditional: each side is evaluated only in the lanes that chose it."""
        masked = _MaskedExprEmitter(self)
        true_value = masked.emit_masked(e.args[1], mask)
        false_value = masked.emit_masked(e.args[2], f"np.logical_not({mask})")
        return f"np.where({mask}, {true_value}, {false_value})"


class _MaskedExprEmitter:
    """A printer of vector expressions whose loads are masked per lane."""

    def __init__(self, source: _PythonEmitter) -> None:
        self._source = source

    def emit_masked(self, e: PrimExpr, mask: str) -> str:
        """Return the text with vector loads restricted to the lanes that a mask enables."""
        text_by_id: dict[int, str] = {}
        for sub_expr in post_order(e):
            x = [text_by_id[id(c)] for c in children(sub_expr)]
            vector = isinstance(sub_expr, BufferLoad) and dt.lanes(sub_expr.indices[0].dtype) > 1
            if vector:
                assert isinstance(sub_expr, BufferLoad)
                text_by_id[id(sub_expr)] = self._emit_masked_load(sub_expr, x[0], mask)
            elif (
                isinstance(sub_expr, Intrinsic)
                and sub_expr.op == "if_then_else"
                and dt.lanes(sub_expr.args[0].dtype) > 1
            ):
                both_masks = f"({mask} & {x[0]})"
                true_value = self.emit_masked(sub_expr.args[1], both_masks)
                false_value = self.emit_masked(sub_expr.args[2], f"({mask} & ~{x[0]})")
                text_by_id[id(sub_expr)] = f"np.where({x[0]}, {true_value}, {false_value})"
            else:
                text_by_id[id(sub_expr)] = self._source.emit_node(sub_expr, x)
        return text_by_id[id(e)]

    def _emit_masked_load(self, e: BufferLoad, index: str, mask: str) -> str:
        name = self._source.name_of(e.buffer)
        where = self._source.intern_constant(_masked_load)
        return f"{where}({name}, {index}, {mask}, {e.buffer.name!r})"


def _region_view(array: Array, offset: int, extents: tuple[int, ...]) -> Array:
    """Return the region of given extents that begins at a flat offset."""
    begin = np.unravel_index(int(offset), array.shape)
    return array[tuple(slice(b, b + int(n)) for b, n in zip(begin, extents, strict=True))]


def _masked_load(array: Array, index: Array, mask: Array, name: str) -> Array:
    out = np.zeros(len(index), array.dtype)
    enabled = np.broadcast_to(np.asarray(mask, bool), out.shape)
    _check_bounds(array, index[enabled], name)
    out[enabled] = array[index[enabled]]
    return out


Argument: TypeAlias = Array | int | float


def _bind_params(func: PrimFunc, arrays: Sequence[Argument]) -> dict[Var, Any]:
    """Return the values of scalar parameters and of symbolic sizes."""
    pairs = list(zip(func.params, arrays, strict=True))
    numbers = {p: v for p, v in pairs if isinstance(p, Var)}
    values: dict[Var, Any] = {p: dt.to_numpy(p.dtype).type(v) for p, v in numbers.items()}
    for buffer, array in pairs:
        if isinstance(buffer, Var):
            continue
        for dim, size in zip(buffer.shape, np.shape(array), strict=True):
            # A symbolic size is bound by the first array that has it; every other array must agree.
            if isinstance(dim, Var) and values.setdefault(dim, size) != size:
                raise ValueError(f"interpreter: {dim.name!r} is {values[dim]} and {size}")
    return values


def run_prim_func(
    func: PrimFunc,
    *arrays: Argument,
    functions: Mapping[str, PrimFunc] | None = None,
    budget: StepBudget | None = None,
) -> None:
    """Run a lowered function on contiguous arrays and numbers; outputs are written in place.

    Args:
        func: The function.
        arrays: A value for each of its parameters.
        functions: Those it may call by name, lowered too.
        budget: What the run may take. Loops of known extents are charged before it begins, others
            when they are entered.

    Raises:
        IndexError: The program would access memory outside a buffer.
        StepLimitError: The run takes more steps than the budget has.
    """
    source = _PythonEmitter(functions or {}, budget)
    sizes = _bind_params(func, arrays)
    for var, size in sizes.items():
        source.values[source.name_of(var)] = size
    held: dict[Buffer, Array] = {}
    tensors = [
        (p, np.asarray(v))
        for p, v in zip(func.params, arrays, strict=True)
        if isinstance(p, Buffer)
    ]
    for buffer, array in tensors:
        # Results are written through reshape(-1), which is a view of contiguous arrays only.
        assert array.flags.c_contiguous, buffer.name
        held[buffer] = _to_kernel_storage(array.reshape(-1), buffer.dtype)
        source.values[source.name_of(buffer)] = held[buffer]
    source.emit_stmt(func.body, 0)
    if budget is not None:
        budget.charge(source.num_steps)
    # Compiled code overflows and divides by zero silently, too.
    with np.errstate(all="ignore"):
        exec(compile("\n".join(source.lines), f"<{func.name}>", "exec"), source.values)
    for buffer, array in tensors:
        if dt.is_packed(buffer.dtype):
            array.reshape(-1)[:] = _unpack_elements(held[buffer], buffer.dtype, array.size)


def _to_kernel_storage(array: Array, dtype: str) -> Array:
    """Return the array as a kernel sees it: small types are bytes, and sub-byte types are packed
    into bytes (a copy).
    """
    if not dt.is_byte_stored(dtype):
        return array
    if not dt.is_packed(dtype):
        return array.view(np.uint8)
    bits = dt.SCALAR_BITS[dtype]
    codes = array.view(np.uint8) & ((1 << bits) - 1)
    # Rounded up to whole bytes; element i is at bit (i * bits) % 8, least significant first.
    padded = np.zeros(-(-array.size * bits // 8) * (8 // bits), np.uint8)
    padded[: array.size] = codes
    rows = padded.reshape(-1, 8 // bits) << (np.arange(8 // bits, dtype=np.uint8) * bits)
    return np.asarray(np.bitwise_or.reduce(rows, axis=1), np.uint8)


def _unpack_elements(packed: Array, dtype: str, count: int) -> Array:
    """Unpack `count` sub-byte elements from bytes."""
    bits = dt.SCALAR_BITS[dtype]
    held = packed.astype(np.uint8)
    spread = held[:, None] >> (np.arange(8 // bits, dtype=np.uint8) * bits)
    codes = (spread & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.uint8)
    target = dt.to_numpy(dtype)
    if dtype in dt.SMALL_FLOATS:
        return np.asarray(codes.view(target))
    if dt.storage_dtype(dtype) == "int8":
        # Sign extension: move the sign bit to bit 7, then shift back arithmetically.
        return np.asarray((codes << (8 - bits)).astype(np.int8) >> (8 - bits)).astype(target)
    return np.asarray(codes.astype(target))
