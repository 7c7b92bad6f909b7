"""Printer of Relay text in TVM's format 0.0.5, which `ekiden.relay.parser` reads.

    def @main(%x: Tensor[(n, 3), float32]) {
      %0 = nn.relu(%x);
      add(%0, 1f)
    }

An expression is bound to `%<number>` in the innermost block that contains all its uses; what is
used once as the result of a block, the value of a let, or a projection stays in place. Where TVM's
format has no form, this one adds: named dimensions and arithmetic on them in shapes, quoted names
(`%"input.1"`), `attributes {...}` of a module, types in front of a call's arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node
from ekiden.ir.op import OPS, Array, Op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.structural import structural_equal
from ekiden.ir.text import prim_text, type_params_text, type_text
from ekiden.ir.type import Type, TypeVar
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Expr,
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
    TypeData,
    Var,
)
from ekiden.relay.metadata import write_metadata
from ekiden.relay.print_scopes import Block, Scopes
from ekiden.relay.visitor import free_vars
from ekiden.target.virtual_device import PARAM_PLACES, VirtualDevice
from ekiden.tir.printer import SCRIPT_HEADER
from ekiden.tir.printer import astext as loops_text
from ekiden.tir.stmt import PrimFunc

VERSION = "0.0.5"
_PLAIN = re.compile(r"[A-Za-z_]\w*(?:/\w+)*(?:\.[A-Za-z_]\w*(?:/\w+)*)*", re.ASCII)
LITERAL_SUFFIX = {
    "float32": "f",
    "float16": "f16",
    "float64": "f64",
    "int32": "",
    "int16": "i16",
    "int64": "i64",
}
"""dtype of a scalar constant -> what follows its digits."""


def astext(
    value: RelayExpr | IRModule | Type,
    show_meta_data: bool = True,
    annotate: Annotate | None = None,
    show_spans: bool = False,
) -> str:
    """Print a module or expression.

    Args:
        value: The module, expression or type.
        show_meta_data: Include meta data; without it, constants that are no scalars are only
        referred
            to.
        annotate: Returns the comment after each expression, instead of its type.
        show_spans: Add the position in a text that each expression came from; the node of a model
        is
            always shown.
    """
    if isinstance(value, Type):
        return type_text(value)
    printer = _Printer(annotate, show_spans)
    is_module = isinstance(value, IRModule)
    body = printer.module(value) if isinstance(value, IRModule) else printer.root(value)
    lines = [f'#[version = "{VERSION}"]', *body]
    if show_meta_data and printer.constants:
        lines += ["", "#[metadata]", write_metadata(printer.constants)]
    return "\n".join(lines) + ("\n" if is_module else "")


def quote_name(name: str) -> str:
    """Quote a name after % or @ unless it is a plain identifier."""
    # Names of models have spaces and slashes; JSON's quoting is read back by the lexer.
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


Annotate = Callable[[RelayExpr], str]


class UniqueNames(dict[Node, str]):
    """Unique names of nodes: the first claims a name, later ones get numbers."""

    def __init__(self, quote: Callable[[str], str] = str, reserved: Iterable[str] = ()) -> None:
        super().__init__()
        self._taken = dict.fromkeys(reserved, 0)
        self._quote = quote

    def get(self, key: Node, default: str = "") -> str:  # type: ignore[override]
        """Return the unique name of a node, derived from `default` on first use."""
        name = super().get(key)
        if name is None:
            name = self[key] = self._quote(self._unique(default))
        return name

    def forget_type_vars(self) -> None:
        """Release the names of type parameters at the end of a definition."""
        for key in [k for k in self if isinstance(k, TypeVar)]:
            self._taken.pop(self.pop(key), None)

    def _unique(self, name: str) -> str:
        candidate = name
        # The counter goes on from the last number: many variables have one name.
        while candidate in self._taken:
            self._taken[name] += 1
            candidate = f"{name}_{self._taken[name]}"
        self._taken[candidate] = 0
        return candidate


class _Printer:
    """State of printing one text."""

    def __init__(self, annotate: Annotate | None = None, show_spans: bool = False) -> None:
        self.annotate = annotate
        self.show_spans = show_spans
        self.type_names = UniqueNames()
        self.constants: list[Constant] = []
        self.constant_index: dict[int, int] = {}
        self.var_names = UniqueNames(quote_name)

    # Modules

    def module(self, module: IRModule) -> list[str]:
        """Print a module."""
        lines = []
        if module.attrs:
            inside = ", ".join(
                f"{json.dumps(k)} = {self.value(v)}" for k, v in module.attrs.items()
            )
            lines.append(f"attributes {{{inside}}}")
        for data in module.type_definitions.values():
            assert isinstance(data, TypeData)
            lines += self.type_data(data)
            self.type_names.forget_type_vars()
        for name, function in module.functions.items():
            # Names of variables begin anew in each function.
            self.var_names = UniqueNames(quote_name)
            lines += self.definition(name, function)
            self.type_names.forget_type_vars()
        return lines

    def definition(self, name: GlobalVar, function: BaseFunc) -> list[str]:
        """Print a global function; other kinds only by name."""
        if isinstance(function, PrimFunc):
            lines = loops_text(function).removeprefix(f"{SCRIPT_HEADER}\n").strip("\n").split("\n")
            return [f"prim_func @{quote_name(name.name_hint)} {{", *_indent(lines), "}"]
        if not isinstance(function, Function):
            return [f"/* @{quote_name(name.name_hint)}: {type(function).__name__} */"]
        return self.text_of_function(function, f"def @{quote_name(name.name_hint)}")

    def type_data(self, data: TypeData) -> list[str]:
        """Print a data type: `type List[A] { Cons(A, List[A]), Nil, }`."""
        params = type_params_text(data.type_vars, self.type_names)
        if not data.constructors:
            return [f"extern type {data.header.name_hint}{params}"]
        lines = [f"type {data.header.name_hint}{params} {{"]
        for constructor in data.constructors:
            inputs = ", ".join(map(self.type, constructor.inputs))
            lines.append(
                f"  {constructor.name_hint}({inputs}),"
                if constructor.inputs
                else f"  {constructor.name_hint},"
            )
        return [*lines, "}"]

    def root(self, expr: RelayExpr) -> list[str]:
        """Print an expression, after declarations of its free variables."""
        if isinstance(expr, BaseFunc) and not isinstance(expr, Function):
            return [f"/* {type(expr).__name__} */"]
        # An expression alone declares its free variables, so that its text can be parsed.
        free = [f"free_var {self.param(v)};" for v in free_vars(expr)]
        if isinstance(expr, Function):
            return [*free, *self.text_of_function(expr, "fn ")]
        return [*free, *self.block(expr)]

    # Pieces

    def type(self, kind: Type) -> str:
        """Print a type with unique names."""
        return type_text(kind, self.type_names)

    def var(self, var: Var) -> str:
        """Print a variable, such as `%x`."""
        return f"%{self.var_names.get(var, var.name_hint)}"

    def param(self, var: Var, device: object = None) -> str:
        """Print a parameter such as `%x: Tensor[(3,), float32]`, with its device."""
        name = self.var(var)
        if device is not None:
            name += f" {{virtual_device={self.value(device)}}}"
        return name if var.type_annotation is None else f"{name}: {self.type(var.type_annotation)}"

    def atom(self, expr: Expr) -> str:
        """Print an atomic expression."""
        match expr:
            case Var():
                return self.var(expr)
            case GlobalVar(name_hint=name):
                return f"@{quote_name(name)}"
            case Op(name=name) | Constructor(name_hint=name):
                return name
            case Constant():
                return scalar_text(expr.data) or self.meta(expr)
            case _:
                return f"/* {type(expr).__name__} */"

    def meta(self, constant: Constant) -> str:
        """Print a constant's reference, such as `meta[relay.Constant][3]`."""
        # By identity: a constant that is used twice is written once.
        index = self.constant_index.setdefault(id(constant), len(self.constants))
        if index == len(self.constants):
            self.constants.append(constant)
        kind = f"Tensor[{tuple(constant.data.shape)}, {constant.data.dtype}]"
        return f"meta[relay.Constant][{index}] /* ty={kind} */"

    def value(self, value: object) -> str:
        """Print an attribute value."""
        match value:
            case PrimExpr():
                return prim_text(value, self.type_names)
            case bool() | int() | None:
                return str(value)
            case float():
                return f"{repr(value).removesuffix('.0')}f"
            case str():
                return json.dumps(value)
            case tuple() | list():
                return f"[{', '.join(map(self.value, value))}]"
            case Type():
                return self.type(value)
            case VirtualDevice():
                return str(value)
            case Attrs():  # as a list of the class, then names and values
                pairs = (item for pair in non_defaults(value) for item in pair)
                return self.value((value.type_key, *pairs))
        return json.dumps(str(value))

    def attrs(self, call: Call) -> list[str]:
        """Print `key=value` for all attributes that differ from their defaults."""
        attrs = call.attrs
        if attrs is None:
            return []
        expected = (
            OPS[call.op.name].attrs if isinstance(call.op, Op) and call.op.name in OPS else None
        )
        # Read back, attributes are of the operator's class unless the text says another.
        key = [] if type(attrs) is expected else [f'attrs_type_key="{attrs.type_key}"']
        return key + [f"{name}={self.value(value)}" for name, value in non_defaults(attrs)]

    def function_attrs(self, attrs: Mapping[str, object] | None) -> list[str]:
        """Print a function's attributes, such as `Primitive=1`."""
        shown = [(k, v) for k, v in (attrs or {}).items() if k != PARAM_PLACES]
        return [f"{quote_name(k)}={self.value(v)}" for k, v in shown]

    def pattern(self, pattern: Pattern) -> str:
        """Print a pattern, such as `Cons(%head, _)`."""
        match pattern:
            case PatternVar(var=var):
                return self.param(var)
            case PatternConstructor(constructor=constructor, patterns=inner):
                return (
                    f"{constructor.name_hint}({', '.join(map(self.pattern, inner))})"
                    if inner
                    else constructor.name_hint
                )
            case PatternTuple(patterns=inner):
                return f"({', '.join(map(self.pattern, inner))}{',' if len(inner) == 1 else ''})"
            case _:
                return "_"

    def head(self, function: Function, start: str) -> str:
        """Print a function's header."""
        devices = function.attr(PARAM_PLACES)
        device_of_param = devices if isinstance(devices, tuple) else (None,) * len(function.params)
        params = [
            *map(self.param, function.params, device_of_param),
            *self.function_attrs(function.attrs),
        ]
        ret = f" -> {self.type(function.ret_type)}" if function.ret_type is not None else ""
        type_params = type_params_text(function.type_params, self.type_names)
        return f"{start}{type_params}({', '.join(params)}){ret} {{"

    def text_of_function(self, function: Function, start: str) -> list[str]:
        """Print a top-level function."""
        return [self.head(function, start), *_indent(self.block(function.body)), "}"]

    # Blocks

    def block(self, root: Expr) -> list[str]:
        """Print the bindings and the result of a block."""
        return _Body(self, root).lines()


class _Body:
    """Printer of everything below one root, innermost blocks first, without recursion."""

    def __init__(self, printer: _Printer, root: Expr) -> None:
        self.printer = printer
        self.scopes = Scopes(root)
        self.text: dict[Expr, list[str]] = {}
        self.count = 0
        self.in_place = self._find_in_place()

    def _find_in_place(self) -> set[Expr]:
        """Return the expressions printed inline instead of being numbered."""
        scopes = self.scopes
        values = {e.value for e, is_binding in scopes.events if is_binding and isinstance(e, Let)}
        in_place: set[Expr] = set()
        for expr, is_binding in scopes.events:
            # What is used twice is bound to a number, or its text would duplicate it.
            if is_binding or scopes.uses[expr] != 1:
                continue
            # A projection of a projection would not show its type.
            is_projection = isinstance(expr, TupleGetItem) and expr.tuple_value not in in_place
            if expr in scopes.results or expr in values or is_projection:
                in_place.add(expr)
        return in_place

    def lines(self) -> list[str]:
        """Return the lines of the root's block."""
        for expr, is_binding in self.scopes.events:
            if is_binding:
                assert isinstance(expr, Let)
                block = self.scopes.inner.get((expr, 0)) or self.scopes.block[expr]
                block.lines += _statement(
                    f"let {self.printer.param(expr.var)} = ", self.of(expr.value)
                )
            elif expr not in self.scopes.tail_lets:
                self._print(expr)
        return self.inside(self.scopes.top)

    def _print(self, expr: Expr) -> None:
        lines = self._render(expr)
        comment = self._comment(expr)
        if (
            comment
            and len(lines) == 1
            and not (isinstance(expr, TupleGetItem) and expr in self.in_place)
        ):
            lines = [f"{lines[0]} {comment}"]
        if expr in self.in_place:
            self.text[expr] = lines
            return
        name = f"%{self.count}"
        self.count += 1
        self.text[expr] = [name]
        self.scopes.block[expr].lines += _statement(f"{name} = ", lines)

    def _comment(self, expr: Expr) -> str:
        if self.printer.annotate is not None:
            return self.printer.annotate(expr)
        kind, span = expr.checked_type_or_none(), expr.span
        # A comment's own end must not occur inside it.
        notes = [f"ty={self.printer.type(kind)}"] if kind is not None else []
        if span is not None and (not span.line or self.printer.show_spans):
            notes.append(f"span={span}")
        return f"/* {', '.join(notes).replace('*/', '* /')} */" if notes else ""

    def of(self, expr: Expr) -> list[str]:
        """Return an expression's text at a use."""
        lines = self.text.get(expr)
        return [self.printer.atom(expr)] if lines is None else lines

    def one(self, expr: Expr) -> str:
        """Return an operand's text, always one line."""
        return "\n".join(self.of(expr))

    def inside(self, block: Block) -> list[str]:
        """Return the lines of a finished block."""
        return [*block.lines, *self.of(block.result)]

    def nested(self, expr: Expr, index: int = 0) -> list[str]:
        """Return the indented lines of an expression's block."""
        return _indent(self.inside(self.scopes.inner[expr, index]))

    def _render(self, expr: Expr) -> list[str]:
        match expr:
            case Call():
                return [self._call(expr)]
            case Tuple(fields=inner):
                return [f"({', '.join(map(self.one, inner))}{',' if len(inner) == 1 else ''})"]
            case TupleGetItem(tuple_value=value, index=index):
                return [f"{self.one(value)}.{index}"]
            case RefCreate(value=value):
                return [f"ref({self.one(value)})"]
            case RefRead(ref=ref):
                return [f"ref_read({self.one(ref)})"]
            case RefWrite(ref=ref, value=value):
                return [f"ref_write({self.one(ref)}, {self.one(value)})"]
            case If(cond=cond):
                return [
                    f"if ({self.one(cond)}) {{",
                    *self.nested(expr),
                    "} else {",
                    *self.nested(expr, 1),
                    "}",
                ]
            case Function():
                return [self.printer.head(expr, "fn "), *self.nested(expr), "}"]
            case Match():
                return self._match(expr)
            case Let():
                return ["{", *self.nested(expr), "}"]
            case _:
                return [self.printer.atom(expr)]

    def _call(self, call: Call) -> str:
        types = f"[{', '.join(map(self.printer.type, call.type_args))}]" if call.type_args else ""
        if isinstance(call.op, Constructor) and not call.args:
            return call.op.name_hint + types
        inside = [*map(self.one, call.args), *self.printer.attrs(call)]
        return f"{self.one(call.op)}{types}({', '.join(inside)})"

    def _match(self, match: Match) -> list[str]:
        lines = [f"match{'' if match.complete else '?'} ({self.one(match.data)}) {{"]
        for index, clause in enumerate(match.clauses):
            lines += [
                f"  {self.printer.pattern(clause.lhs)} => {{",
                *_indent(self.nested(match, index)),
                "  },",
            ]
        return [*lines, "}"]


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _statement(start: str, lines: list[str]) -> list[str]:
    changed = list(lines)
    changed[0] = start + changed[0]
    changed[-1] += ";"
    return changed


def scalar_text(data: Array) -> str | None:
    """Format a scalar constant as a literal, or return None if its dtype has none."""
    if data.ndim:
        return None
    dtype = str(data.dtype)
    if dtype == "bool":
        return str(bool(data))
    # uint8 and others have no literal: they are meta data even as scalars.
    suffix = LITERAL_SUFFIX.get(dtype)
    return None if suffix is None else f"{str(data[()]).removesuffix('.0')}{suffix}"


def non_defaults(attrs: Attrs) -> list[tuple[str, object]]:
    """Return the attribute fields that differ from their defaults, and those always shown."""
    shown = []
    for attribute in fields(attrs):  # type: ignore[arg-type]
        value = getattr(attrs, attribute.name)
        is_shown = attribute.default is MISSING or attribute.metadata.get("shown")
        # As tuples, so that values of any kind can be compared.
        if is_shown or not structural_equal((value,), (attribute.default,)):
            shown.append((attribute.name, value))
    return shown
