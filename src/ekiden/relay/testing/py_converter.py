"""Conversion of Relay to a Python program, for debugging (TVM's names).

    add(%x, 1f)   ->   v0 = call('add', None, x, c0)

`to_python` gives the syntax tree; `ast.unparse` of it is text to read. `run_as_python` runs it.
Operators compute by their reference semantics; tensors, tuples (`ADT`), constructors and references
are the values of TVM's interpreter. Each scope of the program is a block of statements, its
expressions in the order of evaluation, shared ones once.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ekiden import runtime
from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, Op
from ekiden.relay.evaluate_call import evaluate_call
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.interpreter_values import ConstructorValue, RefValue
from ekiden.relay.transform.graph.simplify_inference import SimplifyInference
from ekiden.relay.transform.language.scope_tree import RelayScope, find_scopes
from ekiden.runtime import ADT
from ekiden.runtime.errors import RunError

RESULT_NAME = "__result"
"""Variable of the generated program that holds its result."""


def _to_arrays(value: object) -> object:
    """Convert a value to arrays, or tuples of them, as operators expect."""
    if isinstance(value, tuple):
        return tuple(map(_to_arrays, value))
    return value.numpy() if isinstance(value, runtime.Tensor) else value


def _to_tensor(data: Array) -> runtime.Tensor:
    return runtime.tensor(np.array(data, order="C"))


def _to_runtime_value(result: object) -> object:
    if isinstance(result, tuple):
        return ADT(0, [_to_runtime_value(m) for m in result])
    return _to_tensor(result) if isinstance(result, np.ndarray) else result


def _call_operator(op: Op, attrs: Attrs | None, *args: object) -> object:
    """Evaluate an operator."""
    return _to_runtime_value(evaluate_call(op, attrs, [_to_arrays(a) for a in args]))


def _raise_unmatched(line: str) -> None:
    raise RunError(f"match: no clause fits a value in {line}")


class _PythonWriter:
    """Writer of one Python program; `names` holds the objects its statements refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, object] = {}
        self.name_by_key: dict[object, str] = {}
        self.scopes: dict[RelayExpr, RelayScope] = {}

    def name_of(self, key: object, hint: str = "v") -> str:
        """Return the stable name of a variable, a constant or an expression's value."""
        if key not in self.name_by_key:
            plain = "".join(c if c.isalnum() else "_" for c in hint)
            self.name_by_key[key] = f"{plain}_{len(self.name_by_key)}"
        return self.name_by_key[key]

    def refer_to(self, value: object, hint: str) -> str:
        """Return the name under which the program refers to an object."""
        name = self.name_of(value, hint)
        self.names[name] = value
        return name

    def write_line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def operand_text(self, expr: RelayExpr) -> str:
        """Return the text of an already computed value."""
        match expr:
            case Constant(data=data):
                name = self.name_of(expr, "c")
                self.names[name] = _to_tensor(data)
                return name
            case Var(name_hint=hint) | GlobalVar(name_hint=hint):
                return self.name_of(expr, hint)
            case Constructor(name_hint=hint):
                return f"constructor({self.refer_to(expr, hint)})"
            case Op(name=hint):
                return f"operator({self.refer_to(expr, hint)}, None)"
            case _:
                return self.name_of(expr)

    # Statements are written by generators that give the generators of what stands inside, so that
    # no depth of the program is one of Python's stack.

    def write_block(self, scope: RelayScope, depth: int, target: str) -> Iterator[Any]:
        """Write the statements of a scope; the last assigns its result to `target`."""
        for expr in scope.nodes:
            yield self.write_statement(expr, scope, depth)
        self.write_line(depth, f"{target} = {self.operand_text(scope.result)}")

    def write_statement(self, expr: RelayExpr, scope: RelayScope, depth: int) -> Iterator[Any]:
        """Write the statements that assign a node's value to its name.

        Generators are yielded for `program` to run next, so that the depth of a program is no depth
        of Python's stack.
        """
        inner = scope.child_scopes.get(expr, [])
        name = self.operand_text(expr)
        match expr:
            case Let(var=var, value=value):
                if not isinstance(value, Function):
                    self.write_line(depth, f"{self.operand_text(var)} = {self.operand_text(value)}")
                yield self.write_block(inner[0], depth, name)
            case If(cond=cond):
                self.write_line(depth, f"if is_true({self.operand_text(cond)}):")
                yield self.write_block(inner[0], depth + 1, name)
                self.write_line(depth, "else:")
                yield self.write_block(inner[1], depth + 1, name)
            case Match():
                yield self.write_match(expr, inner, depth, name)
            case Function(params=params):
                yield self.write_function(name, params, inner[0], depth)
                for let in self.binding_name.get(expr, ()):
                    self.write_line(depth, f"{self.operand_text(let)} = {name}")
            case _:
                self.write_line(depth, f"{name} = {self.expression_text(expr)}")

    def write_function(self, name: str, params: Any, body: RelayScope, depth: int) -> Iterator[Any]:  # noqa: ANN401
        """Write a function; its parameters are names of its own scope."""
        self.write_line(depth, f"def {name}({', '.join(map(self.operand_text, params))}):")
        result = f"{name}_result"
        yield self.write_block(body, depth + 1, result)
        self.write_line(depth + 1, f"return {result}")

    def write_match(
        self, expr: Match, inner: list[RelayScope], depth: int, name: str
    ) -> Iterator[Any]:
        """Write match clauses as if and elif.

        A value that fits none is an error with the span.
        """
        data = self.operand_text(expr.data)
        for number, (clause, body) in enumerate(zip(expr.clauses, inner, strict=True)):
            tests: list[str] = []
            bound: list[str] = []
            self.write_pattern(clause.lhs, data, tests, bound)
            self.write_line(depth, f"{'elif' if number else 'if'} {' and '.join(tests) or 'True'}:")
            for assignment in bound:
                self.write_line(depth + 1, assignment)
            yield self.write_block(body, depth + 1, name)
        self.write_line(depth, "else:" if expr.clauses else "if True:")
        self.write_line(depth + 1, f"unmatched({str(expr.span or 'the program')!r})")

    def write_pattern(
        self, pattern: Pattern, data: str, tests: list[str], bound: list[str]
    ) -> None:
        """Collect the tests that `data` must pass, and the resulting assignments."""
        match pattern:
            case PatternVar(var=var):
                bound.append(f"{self.operand_text(var)} = {data}")
            case PatternConstructor(constructor=constructor, patterns=patterns):
                constructor_name = self.refer_to(constructor, constructor.name_hint)
                tests.append(f"{data}.constructor is {constructor_name}")
                for i, subpattern in enumerate(patterns):
                    self.write_pattern(subpattern, f"{data}.fields[{i}]", tests, bound)
            case PatternTuple(patterns=patterns):
                for i, subpattern in enumerate(patterns):
                    self.write_pattern(subpattern, f"{data}[{i}]", tests, bound)

    def expression_text(self, expr: RelayExpr) -> str:
        """Return the Python text of an expression without scopes."""
        match expr:
            case Call(op=op, args=args, attrs=attrs):
                operands = [self.operand_text(a) for a in args]
                if isinstance(op, Op):
                    attrs_name = self.refer_to(attrs, "attrs") if attrs is not None else "None"
                    return f"call({', '.join([self.refer_to(op, op.name), attrs_name, *operands])})"
                if isinstance(op, Constructor):
                    fields = "".join(f"{g}, " for g in operands)
                    return f"ConstructorValue({self.refer_to(op, op.name_hint)}, ({fields}))"
                return f"{self.operand_text(op)}({', '.join(operands)})"
            case Tuple(fields=fields):
                return f"ADT(0, [{', '.join(map(self.operand_text, fields))}])"
            case TupleGetItem(tuple_value=value, index=index):
                return f"{self.operand_text(value)}[{index}]"
            case RefCreate(value=value):
                return f"RefValue({self.operand_text(value)})"
            case RefRead(ref=ref):
                return f"{self.operand_text(ref)}.value"
            case RefWrite(ref=ref, value=value):
                return f"write({self.operand_text(ref)}, {self.operand_text(value)})"
        raise RunError(f"to_python: no form for a {type(expr).__name__}")

    binding_name: Mapping[RelayExpr, list[Var]] = {}

    def write_program(self, root: RelayExpr, target: str, depth: int) -> None:
        """Write the statements of an expression and its subexpressions."""
        scopes = find_scopes(root)
        lets = [e for s in scopes for e in s.nodes if isinstance(e, Let)]
        bound: dict[RelayExpr, list[Var]] = {}
        for let in lets:
            if isinstance(let.value, Function):
                bound.setdefault(let.value, []).append(let.var)
        self.binding_name = bound
        stack: list[Iterator[Any]] = [self.write_block(scopes[0], depth, target)]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
            else:
                stack.append(following)


def _write_reference(ref: RefValue, value: Any) -> object:  # noqa: ANN401 - any value of the program
    ref.value = value
    return ADT(0, [])


SUPPORT_FUNCTIONS: dict[str, Callable[..., object]] = {
    "call": _call_operator,
    "is_true": lambda value: bool(value.numpy()),
    "constructor": lambda declared: lambda *fields: ConstructorValue(declared, fields),
    "operator": lambda op, attrs: lambda *args: _call_operator(op, attrs, *args),
    "unmatched": _raise_unmatched,
    "write": _write_reference,
    "ADT": ADT,
    "ConstructorValue": ConstructorValue,
    "RefValue": RefValue,
}
"""Functions that generated programs call."""


def _translate(expr: RelayExpr, module: IRModule | None) -> tuple[ast.Module, dict[str, object]]:
    base = IRModule() if module is None else module
    entry = GlobalVar(RESULT_NAME)
    with_entry = base.with_functions({**base.functions, entry: Function((), expr)})
    simple = SimplifyInference()(with_entry)
    writer = _PythonWriter()
    for var, function in simple.functions.items():
        if not isinstance(function, Function):
            raise RunError(f"to_python: @{var.name_hint} is no function of Relay")
        name = RESULT_NAME if var.name_hint == RESULT_NAME else writer.operand_text(var)
        params = ", ".join(map(writer.operand_text, function.params))
        writer.write_line(0, f"def {name}({params}):")
        writer.write_program(function.body, f"{name}_value", 1)
        writer.write_line(1, f"return {name}_value")
    return ast.parse("\n".join(writer.lines)), writer.names


def to_python(expr: RelayExpr, mod: IRModule | None = None, target: object = None) -> ast.Module:
    """Convert an expression, and the module's functions it may call, to a Python AST.

    A function `__result` returns its value. `target` is TVM's: nothing is compiled.
    """
    return _translate(expr, mod)[0]


def run_as_python(expr: RelayExpr, mod: IRModule | None = None, target: object = None) -> Any:  # noqa: ANN401
    """Evaluate an expression through its conversion to Python.

    It is a tensor, an `ADT` for a tuple, a `ConstructorValue`, a `RefValue`, or a Python function.
    """
    program, names = _translate(expr, mod)
    space: dict[str, Any] = {**SUPPORT_FUNCTIONS, **names}
    exec(compile(ast.fix_missing_locations(program), "<relay>", "exec"), space)
    return space[RESULT_NAME]()


__all__ = ["run_as_python", "to_python"]
