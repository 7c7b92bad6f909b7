"""Parse hybrid scripts to statements. Python's parser gives the tree, this walks it once per call.

A name assigned a number is a variable of one element; a loop of `const_range` and a condition known
from the arguments are gone when the statements are made.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType

import numpy as np

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    BinaryExpr,
    Div,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Not,
    Or,
    PrimExpr,
    Sub,
    Var,
    cast,
    const,
    convert,
    fold_binary,
    is_const,
    logical_and,
)
from ekiden.runtime.errors import ParseError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te.hybrid.runtime import CAST_NAMES, HYBRID_GLOBALS, MATH_INTRINSICS
from ekiden.te.tensor import Tensor, extern_op
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.op import unify_operands
from ekiden.tir.script.evaluate import ScriptSource
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    Stmt,
    seq,
)

_BINARY_NODES: dict[type[ast.AST], type[BinaryExpr]] = {
    ast.Add: Add, ast.Sub: Sub, ast.Mult: Mul, ast.Div: Div, ast.FloorDiv: FloorDiv,
    ast.Mod: FloorMod, ast.Eq: EQ, ast.NotEq: NE, ast.Lt: LT, ast.LtE: LE, ast.Gt: GT, ast.GtE: GE,
}  # fmt: skip
_PYTHON_OPERATORS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_BITWISE_INTRINSICS = {
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
}
_LOOP_KINDS = {
    "range": ForKind.SERIAL,
    "serial": ForKind.SERIAL,
    "parallel": ForKind.PARALLEL,
    "vectorize": ForKind.VECTORIZED,
    "unroll": ForKind.UNROLLED,
    "bind": ForKind.THREAD_BINDING,
}


class HybridFunction:
    """Function decorated by `@te.hybrid.script`."""

    def __init__(self, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        lines, first = inspect.getsourcelines(function)
        text = textwrap.dedent("".join(lines))
        self.source = ScriptSource(text, function.__name__, first)
        self.node = ast.parse(text).body[0]
        self._function = function
        closed = inspect.getclosurevars(function)
        self.captured: dict[str, object] = {**closed.globals, **closed.nonlocals}

    def __call__(self, *args: object) -> object:
        """Return tensors if an argument is a te tensor; else the Python function's result."""
        if any(isinstance(a, (Tensor, Var)) for a in args):
            return _compile_call(self, args)
        function = self._function
        names = {**HYBRID_GLOBALS, **function.__globals__}  # the function's own stay as they are
        run = FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        run.__kwdefaults__ = function.__kwdefaults__
        return run(*args)


def script(pyfunc: FunctionType) -> HybridFunction:
    """Decorate a function as a hybrid script: see `ekiden.te.hybrid`."""
    return HybridFunction(pyfunc)


def _compile_call(function: HybridFunction, args: Sequence[object]) -> Tensor | list[Tensor]:
    inputs = [a for a in args if isinstance(a, Tensor)]
    buffers = {t: Buffer(t.name, t.shape, t.dtype) for t in inputs}
    arguments = [buffers[a] if isinstance(a, Tensor) else a for a in args]
    reader = _HybridParser(function.source, function.captured)
    returned = reader.parse_function(function.node, arguments)
    outputs = [b for b in returned if isinstance(b, Buffer)]
    if len(outputs) != len(returned) or set(outputs) != set(reader.outputs):
        function.source.raise_error(function.node, "what it returns must be its output_tensors")
    # The statements exist already: the operation is built around a placeholder, then filled.
    operation = extern_op(
        [b.shape for b in outputs],
        inputs,
        lambda ins, outs: Evaluate(const(0)),
        [b.dtype for b in outputs],
        function.source.name,
        "hybrid",
    )[0].op.with_fields(
        input_buffers=tuple(buffers[t] for t in inputs),
        output_buffers=tuple(outputs),
        body=reader.parse_script(),
    )
    output_tensors = [operation.output(n) for n in range(len(outputs))]
    return output_tensors[0] if len(output_tensors) == 1 else output_tensors


@dataclass(frozen=True, slots=True)
class _LoopRange:
    """Range of a loop, such as `range(n)` or `bind("threadIdx.x", n)`."""

    kind: ForKind | None
    low: PrimExpr
    extent: PrimExpr
    thread: str = ""


class _HybridParser:
    """A parser of one call of a hybrid script."""

    def __init__(self, source: ScriptSource, captured: Mapping[str, object]) -> None:
        self.source = source
        self.names: dict[str, object] = dict(captured)
        self.statements: list[list[Stmt]] = [[]]
        self.outputs: list[Buffer] = []
        self.allocated_buffers: list[Buffer] = []
        self.returned: list[object] | None = None

    def parse_script(self) -> Stmt:
        """Return all statements within the allocations of variables and buffers."""
        body = seq(*self.statements[0])
        for buffer in reversed(self.allocated_buffers):
            body = Allocate(buffer, body)
        return body

    def parse_function(self, node: ast.AST, args: Sequence[object]) -> list[object]:
        """Parse the function's body with the arguments; return the values of its return
        statement.
        """
        assert isinstance(node, ast.FunctionDef)
        names = [a.arg for a in node.args.args]
        if len(names) != len(args):
            self.source.raise_error(node, f"it takes {len(names)} arguments, got {len(args)}")
        self.names.update(zip(names, args, strict=True))
        self.parse_body(node.body)
        if self.returned is None:
            self.source.raise_error(node, "it returns nothing")
        return self.returned

    def parse_body(self, nodes: Sequence[ast.stmt]) -> None:
        """Parse statements into the innermost block."""
        for node in nodes:
            if self.returned is not None:
                self.source.raise_error(node, "nothing may follow a return")
            method = getattr(self, f"_{type(node).__name__.lower()}", None)
            if method is None:
                kind = type(node).__name__.lower()
                self.source.raise_error(node, f"a hybrid script has no such statement: {kind}")
            method(node)

    def _emit(self, stmt: Stmt) -> None:
        self.statements[-1].append(stmt)

    def _parse_block(self, nodes: Sequence[ast.stmt]) -> Stmt:
        """Return the statements of an indented block; numeric names defined in it end with it."""
        before = dict(self.names)
        self.statements.append([])
        self.parse_body(nodes)
        self.names = before
        return seq(*self.statements.pop())

    # Statements.

    def _pass(self, node: ast.Pass) -> None:
        pass

    def _expr(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self._emit(Evaluate(self.evaluate_scalar(node.value)))

    def _return(self, node: ast.Return) -> None:
        if len(self.statements) > 1 or node.value is None:
            self.source.raise_error(node, "return stands at the end, with the output tensors")
        returned_value = self.evaluate(node.value)
        self.returned = (
            list(returned_value) if isinstance(returned_value, (tuple, list)) else [returned_value]
        )

    def _assert(self, node: ast.Assert) -> None:
        message = "an assertion of a hybrid script does not hold"
        if node.msg is not None:
            message = str(self.evaluate(node.msg))
        self._emit(AssertStmt(self.evaluate_condition(node.test), message))

    def _assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            self.source.raise_error(node, "assign to one name at a time")
        self._store(node.targets[0], self.evaluate(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        expanded = ast.copy_location(ast.BinOp(_as_load(node.target), node.op, node.value), node)
        self._store(node.target, self.evaluate(expanded))

    def _store(self, target: ast.expr, value: object) -> None:
        match target:
            case ast.Tuple() | ast.List():
                values = list(value) if isinstance(value, (tuple, list)) else []
                if len(values) != len(target.elts):
                    self.source.raise_error(
                        target, f"expected {len(target.elts)} values, got {len(values)}"
                    )
                for target_element, one in zip(target.elts, values, strict=True):
                    self._store(target_element, one)
            case ast.Subscript():
                buffer = self.evaluate(target.value)
                if not isinstance(buffer, Buffer):
                    self.source.raise_error(
                        target, "only elements of outputs and allocations are stored"
                    )
                indices = self.evaluate_indices(target)
                self._emit(
                    BufferStore(buffer, self._convert_to(buffer.dtype, target, value), indices)
                )
            case ast.Name():
                self._define_name(target, value)
            case _:
                self.source.raise_error(target, "cannot assign to this")

    def _define_name(self, target: ast.Name, value: object) -> None:
        """Define a name for a buffer or a tuple, or a variable for a number."""
        if isinstance(value, Buffer):
            # A buffer gets its name from the assignment, after it was listed without one.
            if value.name == "":
                new = value.with_fields(name=target.id)
                self.outputs = [new if b is value else b for b in self.outputs]
                self.allocated_buffers = [new if b is value else b for b in self.allocated_buffers]
                value = new
            self.names[target.id] = value
            return
        if not isinstance(value, (PrimExpr, int, float)):
            self.names[target.id] = value
            return
        number = _make_constant(value)
        existing = self.names.get(target.id)
        if not isinstance(existing, _MutableScalar):
            buffer = Buffer(target.id, (const(1),), number.dtype, "local")
            existing = self.names[target.id] = _MutableScalar(buffer)
            self.allocated_buffers.append(buffer)
        stored = self._convert_to(existing.buffer.dtype, target, number)
        self._emit(BufferStore(existing.buffer, stored, (const(0),)))

    def _convert_to(self, dtype: str, node: ast.AST, value: object) -> PrimExpr:
        if not isinstance(value, (PrimExpr, int, float)):
            self.source.raise_error(node, f"expected a number, got {type(value).__name__}")
        number = value if isinstance(value, PrimExpr) else _make_constant(value)
        return cast(number, dtype)

    def _if(self, node: ast.If) -> None:
        test = self.evaluate(node.test)
        if not isinstance(test, PrimExpr) or is_const(test):
            chosen = bool(getattr(test, "value", test))
            self.parse_body(node.body if chosen else node.orelse)
            return
        true_value = self._parse_block(node.body)
        false_value = self._parse_block(node.orelse) if node.orelse else None
        self._emit(IfThenElse(test, true_value, false_value))

    def _for(self, node: ast.For) -> None:
        if not isinstance(node.target, ast.Name) or node.orelse:
            self.source.raise_error(
                node, "expected 'for name in range(...)' or another kind of loop"
            )
        loop = self.evaluate(node.iter)
        if not isinstance(loop, _LoopRange):
            self.source.raise_error(
                node.iter, "expected range, parallel, vectorize, unroll, bind, ..."
            )
        if loop.kind is None:
            self._unroll_const_range(node, node.target.id, loop)
            return
        var = Var(node.target.id)
        before = self.names.get(node.target.id)
        self.names[node.target.id] = var
        inner = self._parse_block(node.body)
        self.names[node.target.id] = before
        notes: dict[str, object] | None = {"thread": loop.thread} if loop.thread else None
        self._emit(For(var, loop.low, loop.extent, loop.kind, inner, notes))

    def _unroll_const_range(self, node: ast.For, name: str, loop: _LoopRange) -> None:
        """Expand a const_range loop: its body once per number."""
        low, count = loop.low, loop.extent
        if not isinstance(low, IntImm) or not isinstance(count, IntImm):
            self.source.raise_error(node.iter, "const_range takes numbers")
        for step in range(low.value, low.value + count.value):
            self.names[name] = step
            self.parse_body(node.body)

    # Expressions.

    def evaluate(self, node: ast.expr) -> object:
        """Evaluate an expression to a number, an IR expression, a buffer, a tuple or a
        loop range.
        """
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._evaluate_element(node)
            case ast.Tuple() | ast.List():
                return tuple(self.evaluate(e) for e in node.elts)
            case ast.BinOp():
                return self._evaluate_binary(
                    node, type(node.op), self.evaluate(node.left), node.right
                )
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp():
                return self._evaluate_bool_op(node)
            case ast.UnaryOp():
                return self._evaluate_unary(node)
            case ast.IfExp():
                true_value, false_value = unify_operands(
                    [self._evaluate_number(node.body), self._evaluate_number(node.orelse)]
                )
                return if_then_else(self.evaluate_condition(node.test), true_value, false_value)
            case ast.Call():
                return self._call(node)
            case _:
                kind = type(node).__name__.lower()
                self.source.raise_error(node, f"a hybrid script has no such expression: {kind}")

    def _evaluate_number(self, node: ast.expr) -> PrimExpr | int | float:
        evaluated = self.evaluate(node)
        if not isinstance(evaluated, (PrimExpr, int, float)):
            self.source.raise_error(node, f"expected a number, got {type(evaluated).__name__}")
        return evaluated

    def evaluate_scalar(self, node: ast.expr) -> PrimExpr:
        """Evaluate an expression that must be a scalar."""
        return _make_constant(self._evaluate_number(node))

    def evaluate_condition(self, node: ast.expr) -> PrimExpr:
        """Evaluate an expression as a bool."""
        evaluated = convert(self._evaluate_number(node), None)
        return (
            evaluated
            if dt.element_dtype(evaluated.dtype) == "bool"
            else fold_binary(NE, evaluated, 0)
        )

    def evaluate_indices(self, node: ast.Subscript) -> tuple[PrimExpr, ...]:
        """Return the indices of an element."""
        index_nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return tuple(convert(self._evaluate_number(p), "int64") for p in index_nodes)

    def _name(self, node: ast.Name) -> object:
        if node.id in self.names and self.names[node.id] is not None:
            bound_value = self.names[node.id]
            if isinstance(bound_value, _MutableScalar):
                return BufferLoad(bound_value.buffer, (const(0),), bound_value.buffer.dtype)
            return bound_value.item() if isinstance(bound_value, np.generic) else bound_value
        if node.id in HYBRID_GLOBALS:
            return _HybridBuiltin(node.id)
        self.source.raise_error(node, f"undefined name '{node.id}'")

    def _attribute(self, node: ast.Attribute) -> object:
        owner = self.evaluate(node.value)
        if isinstance(owner, Buffer) and node.attr in ("shape", "dtype"):
            return getattr(owner, node.attr)
        self.source.raise_error(
            node, f"only shape and dtype of tensors are known, not '{node.attr}'"
        )

    def _evaluate_element(self, node: ast.Subscript) -> object:
        owner = self.evaluate(node.value)
        if isinstance(owner, Buffer):
            position = self.evaluate_indices(node)
            if len(position) != len(owner.shape):
                rank = len(owner.shape)
                self.source.raise_error(
                    node, f"'{owner.name}' has {rank} axes, got {len(position)} indices"
                )
            return BufferLoad(owner, position, owner.dtype)
        index = self.evaluate(node.slice)
        at_number = index.value if isinstance(index, IntImm) else index
        if isinstance(owner, (tuple, list)) and isinstance(at_number, int):
            return owner[at_number]
        self.source.raise_error(node, "an element of this cannot be taken by that index")

    def _evaluate_binary(
        self, node: ast.AST, kind: type[ast.AST], a: object, right: ast.expr
    ) -> object:
        b = self.evaluate(right)
        if kind in _BITWISE_INTRINSICS:
            return call_intrin(
                _BITWISE_INTRINSICS[kind],
                *unify_operands([_require_number(self, node, v) for v in (a, b)]),
            )
        if kind not in _BINARY_NODES:
            self.source.raise_error(
                node, f"a hybrid script has no such operator: {kind.__name__.lower()}"
            )
        if not isinstance(a, PrimExpr) and not isinstance(b, PrimExpr):
            return _PYTHON_OPERATORS[kind](a, b)
        x, y = _require_number(self, node, a), _require_number(self, node, b)
        try:
            return fold_binary(_BINARY_NODES[kind], x, y)
        except TypeError as error:
            self.source.raise_error(node, str(error))

    def _compare(self, node: ast.Compare) -> object:
        lhs, conjunction = node.left, None
        for op, right in zip(node.ops, node.comparators, strict=True):
            one = self._evaluate_binary(node, type(op), self.evaluate(lhs), right)
            if conjunction is None:
                conjunction = one
            else:
                conjunction = logical_and(convert(conjunction), convert(one))  # type: ignore[arg-type]
            lhs = right
        return conjunction

    def _evaluate_bool_op(self, node: ast.BoolOp) -> object:
        conditions = [self.evaluate_condition(v) for v in node.values]
        total = conditions[0]
        for condition in conditions[1:]:
            both = isinstance(node.op, ast.And)
            total = logical_and(total, condition) if both else fold_binary(Or, total, condition)
        return total

    def _evaluate_unary(self, node: ast.UnaryOp) -> object:
        if isinstance(node.op, ast.Not):
            test = self.evaluate_condition(node.operand)
            return not test.value if isinstance(test, IntImm) else Not(test, test.dtype)
        operand = self._evaluate_number(node.operand)
        return -operand if isinstance(node.op, ast.USub) else operand

    # Calls.

    def _call(self, node: ast.Call) -> object:
        called = self.evaluate(node.func)
        if node.keywords:
            self.source.raise_error(node, "arguments are given by position")
        if isinstance(called, HybridFunction):
            return self._inline_script(node, called, [self.evaluate(a) for a in node.args])
        if not isinstance(called, _HybridBuiltin):
            self.source.raise_error(
                node, "only names of hybrid scripts and other scripts are called"
            )
        name = called.name
        if name in _LOOP_KINDS or name == "const_range":
            return self._evaluate_loop_range(node, name)
        if name in ("output_tensor", "allocate"):
            return self._allocate_buffer(node, name)
        args = [self.evaluate(a) for a in node.args]
        if name == "len":
            subject = args[0]
            return subject.shape[0] if isinstance(subject, Buffer) else len(subject)  # type: ignore[arg-type]
        if name == "max_num_threads":
            return 1024
        values = [_require_number(self, node, a) for a in args]
        if name in ("max", "min"):
            kind = Max if name == "max" else Min
            return functools.reduce(lambda a, b: fold_binary(kind, a, b), values)
        if name in CAST_NAMES:
            return cast(_make_constant(values[0]), name)
        if name == "ceil_div":
            a, b = unify_operands(values)
            return (a + b - 1) // b
        return call_intrin(MATH_INTRINSICS.get(name, name), *unify_operands(values))

    def _evaluate_loop_range(self, node: ast.Call, name: str) -> _LoopRange:
        thread = ""
        range_args = list(node.args)
        if name == "bind":
            thread = str(self.evaluate(range_args.pop(0)))
        ends = [convert(self._evaluate_number(p), "int64") for p in range_args]
        if len(ends) not in (1, 2):
            self.source.raise_error(node, f"{name} takes (stop) or (start, stop)")
        low = ends[0] if len(ends) == 2 else const(0)
        return _LoopRange(
            _LOOP_KINDS.get(name), low, ends[-1] - low if len(ends) == 2 else ends[0], thread
        )

    def _allocate_buffer(self, node: ast.Call, name: str) -> Buffer:
        values = [self.evaluate(a) for a in node.args]
        shape = values[0] if isinstance(values[0], tuple) else (values[0],)
        dtype = str(values[1]) if len(values) > 1 else "float32"
        scope = str(values[2]) if len(values) > 2 else "global"
        dims = tuple(convert(_require_number(self, node, d), "int64") for d in shape)
        buffer = Buffer("", dims, dtype, scope)
        (self.outputs if name == "output_tensor" else self.allocated_buffers).append(buffer)
        return buffer

    def _inline_script(
        self, node: ast.Call, called: HybridFunction, args: Sequence[object]
    ) -> object:
        """Inline a script that another one calls: its statements here, its outputs as
        allocations.
        """
        reader = _HybridParser(called.source, called.captured)
        returned = reader.parse_function(called.node, args)
        self.allocated_buffers += reader.allocated_buffers + reader.outputs
        for stmt in reader.statements[0]:
            self._emit(stmt)
        return returned[0] if len(returned) == 1 else tuple(returned)


@dataclass(frozen=True, slots=True)
class _MutableScalar:
    """A mutable number, stored in a buffer of one element."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class _HybridBuiltin:
    """A built-in name of hybrid scripts."""

    name: str


def _as_load(target: ast.expr) -> ast.expr:
    return target  # a target is read as the expression it looks like


def _make_constant(value: PrimExpr | int | float) -> PrimExpr:
    """Return a number as an expression: ints are int32, as in TVM, floats float32."""
    if isinstance(value, PrimExpr):
        return value
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return const(value, "int32" if is_int else None)


def _require_number(reader: _HybridParser, node: ast.AST, value: object) -> PrimExpr | int | float:
    if isinstance(value, (PrimExpr, int, float)):
        return value
    reader.source.raise_error(node, f"expected a number, got {type(value).__name__}")


__all__ = ["HybridFunction", "ParseError", "script"]
