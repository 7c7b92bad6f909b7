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
from ekiden.ir.expr_text import format_prim_expr, format_type, format_type_params
from ekiden.ir.module import IRModule
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.ir.node import Node
from ekiden.ir.op import OPS, Array, Op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.structural import structural_equal
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
from ekiden.relay.print_scopes import PrintBlock, PrintScopes
from ekiden.relay.visitor import free_vars
from ekiden.target.virtual_device import PARAM_DEVICES_ATTR, VirtualDevice
from ekiden.tir.printer import SCRIPT_HEADER
from ekiden.tir.printer import astext as loops_text
from ekiden.tir.stmt import PrimFunc

TEXT_FORMAT_VERSION = "0.0.5"
_PLAIN_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:/\w+)*(?:\.[A-Za-z_]\w*(?:/\w+)*)*", re.ASCII)
LITERAL_SUFFIX_BY_DTYPE = {
    "float32": "f",
    "float16": "f16",
    "float64": "f64",
    "int32": "",
    "int16": "i16",
    "int64": "i64",
}
"""Literal suffix of scalar constants by dtype."""


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
        return format_type(value)
    printer = _RelayPrinter(annotate, show_spans)
    is_module = isinstance(value, IRModule)
    body = printer.print_module(value) if isinstance(value, IRModule) else printer.print_root(value)
    lines = [f'#[version = "{TEXT_FORMAT_VERSION}"]', *body]
    if show_meta_data and printer.constants:
        lines += ["", "#[metadata]", write_metadata(printer.constants)]
    return "\n".join(lines) + ("\n" if is_module else "")


def quote_name(name: str) -> str:
    """Quote a name after % or @ unless it is a plain identifier."""
    # Names of models have spaces and slashes; JSON's quoting is read back by the lexer.
    return name if _PLAIN_IDENTIFIER.fullmatch(name) else json.dumps(name)


Annotate = Callable[[RelayExpr], str]


class UniqueNames(dict[Node, str]):
    """Unique names of nodes: the first claims a name, later ones get numbers."""

    def __init__(self, quote: Callable[[str], str] = str, reserved: Iterable[str] = ()) -> None:
        super().__init__()
        self._uniquer = NameUniquer(reserved)
        self._quote = quote

    def get(self, key: Node, default: str = "") -> str:  # type: ignore[override]
        """Return the unique name of a node, derived from `default` on first use."""
        name = super().get(key)
        if name is None:
            name = self[key] = self._quote(self._uniquer.fresh(default))
        return name

    def forget_type_vars(self) -> None:
        """Release the names of type parameters at the end of a definition."""
        for key in [k for k in self if isinstance(k, TypeVar)]:
            self._uniquer.release(self.pop(key))


class _RelayPrinter:
    """State of printing one text."""

    def __init__(self, annotate: Annotate | None = None, show_spans: bool = False) -> None:
        self.annotate = annotate
        self.show_spans = show_spans
        self.type_names = UniqueNames()
        self.constants: list[Constant] = []
        self.constant_index: dict[int, int] = {}
        self.var_names = UniqueNames(quote_name)

    # Modules

    def print_module(self, module: IRModule) -> list[str]:
        """Print a module."""
        lines = []
        if module.attrs:
            inside = ", ".join(
                f"{json.dumps(k)} = {self.print_attr_value(v)}" for k, v in module.attrs.items()
            )
            lines.append(f"attributes {{{inside}}}")
        for data in module.type_definitions.values():
            assert isinstance(data, TypeData)
            lines += self.print_type_data(data)
            self.type_names.forget_type_vars()
        for name, function in module.functions.items():
            # Names of variables begin anew in each function.
            self.var_names = UniqueNames(quote_name)
            lines += self.print_definition(name, function)
            self.type_names.forget_type_vars()
        return lines

    def print_definition(self, name: GlobalVar, function: BaseFunc) -> list[str]:
        """Print a global function; other kinds only by name."""
        if isinstance(function, PrimFunc):
            lines = loops_text(function).removeprefix(f"{SCRIPT_HEADER}\n").strip("\n").split("\n")
            return [f"prim_func @{quote_name(name.name_hint)} {{", *_indent_lines(lines), "}"]
        if not isinstance(function, Function):
            return [f"/* @{quote_name(name.name_hint)}: {type(function).__name__} */"]
        return self.print_function(function, f"def @{quote_name(name.name_hint)}")

    def print_type_data(self, data: TypeData) -> list[str]:
        """Print a data type: `type List[A] { Cons(A, List[A]), Nil, }`."""
        params = format_type_params(data.type_vars, self.type_names)
        if not data.constructors:
            return [f"extern type {data.header.name_hint}{params}"]
        lines = [f"type {data.header.name_hint}{params} {{"]
        for constructor in data.constructors:
            inputs = ", ".join(map(self.print_type, constructor.inputs))
            lines.append(
                f"  {constructor.name_hint}({inputs}),"
                if constructor.inputs
                else f"  {constructor.name_hint},"
            )
        return [*lines, "}"]

    def print_root(self, expr: RelayExpr) -> list[str]:
        """Print an expression, after declarations of its free variables."""
        if isinstance(expr, BaseFunc) and not isinstance(expr, Function):
            return [f"/* {type(expr).__name__} */"]
        # An expression alone declares its free variables, so that its text can be parsed.
        free = [f"free_var {self.print_param(v)};" for v in free_vars(expr)]
        if isinstance(expr, Function):
            return [*free, *self.print_function(expr, "fn ")]
        return [*free, *self.print_block(expr)]

    # Pieces

    def print_type(self, kind: Type) -> str:
        """Print a type with unique names."""
        return format_type(kind, self.type_names)

    def print_var(self, var: Var) -> str:
        """Print a variable, such as `%x`."""
        return f"%{self.var_names.get(var, var.name_hint)}"

    def print_param(self, var: Var, device: object = None) -> str:
        """Print a parameter such as `%x: Tensor[(3,), float32]`, with its device."""
        name = self.print_var(var)
        if device is not None:
            name += f" {{virtual_device={self.print_attr_value(device)}}}"
        return (
            name
            if var.type_annotation is None
            else f"{name}: {self.print_type(var.type_annotation)}"
        )

    def print_atom(self, expr: Expr) -> str:
        """Print an atomic expression."""
        match expr:
            case Var():
                return self.print_var(expr)
            case GlobalVar(name_hint=name):
                return f"@{quote_name(name)}"
            case Op(name=name) | Constructor(name_hint=name):
                return name
            case Constant():
                return format_scalar(expr.data) or self.print_meta(expr)
            case _:
                return f"/* {type(expr).__name__} */"

    def print_meta(self, constant: Constant) -> str:
        """Print a constant's reference, such as `meta[relay.Constant][3]`."""
        # By identity: a constant that is used twice is written once.
        index = self.constant_index.setdefault(id(constant), len(self.constants))
        if index == len(self.constants):
            self.constants.append(constant)
        kind = f"Tensor[{tuple(constant.data.shape)}, {constant.data.dtype}]"
        return f"meta[relay.Constant][{index}] /* ty={kind} */"

    def print_attr_value(self, value: object) -> str:
        """Print an attribute value."""
        match value:
            case PrimExpr():
                return format_prim_expr(value, self.type_names)
            case bool() | int() | None:
                return str(value)
            case float():
                return f"{repr(value).removesuffix('.0')}f"
            case str():
                return json.dumps(value)
            case tuple() | list():
                return f"[{', '.join(map(self.print_attr_value, value))}]"
            case Type():
                return self.print_type(value)
            case VirtualDevice():
                return str(value)
            case Attrs():  # as a list of the class, then names and values
                pairs = (item for pair in non_default_fields(value) for item in pair)
                return self.print_attr_value((value.type_key, *pairs))
        return json.dumps(str(value))

    def print_attrs(self, call: Call) -> list[str]:
        """Print `key=value` for all attributes that differ from their defaults."""
        attrs = call.attrs
        if attrs is None:
            return []
        expected = (
            OPS[call.op.name].attrs if isinstance(call.op, Op) and call.op.name in OPS else None
        )
        # Read back, attributes are of the operator's class unless the text says another.
        key = [] if type(attrs) is expected else [f'attrs_type_key="{attrs.type_key}"']
        return key + [
            f"{name}={self.print_attr_value(value)}" for name, value in non_default_fields(attrs)
        ]

    def print_function_attrs(self, attrs: Mapping[str, object] | None) -> list[str]:
        """Print a function's attributes, such as `Primitive=1`."""
        shown = [(k, v) for k, v in (attrs or {}).items() if k != PARAM_DEVICES_ATTR]
        return [f"{quote_name(k)}={self.print_attr_value(v)}" for k, v in shown]

    def print_pattern(self, pattern: Pattern) -> str:
        """Print a pattern, such as `Cons(%head, _)`."""
        match pattern:
            case PatternVar(var=var):
                return self.print_param(var)
            case PatternConstructor(constructor=constructor, patterns=inner):
                return (
                    f"{constructor.name_hint}({', '.join(map(self.print_pattern, inner))})"
                    if inner
                    else constructor.name_hint
                )
            case PatternTuple(patterns=inner):
                return (
                    f"({', '.join(map(self.print_pattern, inner))}{',' if len(inner) == 1 else ''})"
                )
            case _:
                return "_"

    def print_function_head(self, function: Function, start: str) -> str:
        """Print a function's header."""
        devices = function.attr(PARAM_DEVICES_ATTR)
        device_of_param = devices if isinstance(devices, tuple) else (None,) * len(function.params)
        params = [
            *map(self.print_param, function.params, device_of_param),
            *self.print_function_attrs(function.attrs),
        ]
        ret = f" -> {self.print_type(function.ret_type)}" if function.ret_type is not None else ""
        type_params = format_type_params(function.type_params, self.type_names)
        return f"{start}{type_params}({', '.join(params)}){ret} {{"

    def print_function(self, function: Function, start: str) -> list[str]:
        """Print a top-level function."""
        return [
            self.print_function_head(function, start),
            *_indent_lines(self.print_block(function.body)),
            "}",
        ]

    # Blocks

    def print_block(self, root: Expr) -> list[str]:
        """Print the bindings and the result of a block."""
        return _BodyPrinter(self, root).print_lines()


class _BodyPrinter:
    """Printer of everything below one root, innermost blocks first, without recursion."""

    def __init__(self, printer: _RelayPrinter, root: Expr) -> None:
        self.printer = printer
        self.scopes = PrintScopes(root)
        self.lines_by_expr: dict[Expr, list[str]] = {}
        self.num_bindings = 0
        self.inlined = self._find_inlined()

    def _find_inlined(self) -> set[Expr]:
        """Return the expressions printed inline instead of being numbered."""
        scopes = self.scopes
        values = {e.value for e, is_binding in scopes.events if is_binding and isinstance(e, Let)}
        in_place: set[Expr] = set()
        for expr, is_binding in scopes.events:
            # What is used twice is bound to a number, or its text would duplicate it.
            if is_binding or scopes.use_counts[expr] != 1:
                continue
            # A projection of a projection would not show its type.
            is_projection = isinstance(expr, TupleGetItem) and expr.tuple_value not in in_place
            if expr in scopes.results or expr in values or is_projection:
                in_place.add(expr)
        return in_place

    def print_lines(self) -> list[str]:
        """Return the lines of the root's block."""
        for expr, is_binding in self.scopes.events:
            if is_binding:
                assert isinstance(expr, Let)
                block = self.scopes.nested_blocks.get((expr, 0)) or self.scopes.block_by_expr[expr]
                block.lines += _binding_lines(
                    f"let {self.printer.print_param(expr.var)} = ", self.expr_lines(expr.value)
                )
            elif expr not in self.scopes.tail_lets:
                self._print_expr(expr)
        return self.block_lines(self.scopes.root_block)

    def _print_expr(self, expr: Expr) -> None:
        lines = self._render_expr(expr)
        comment = self._type_comment(expr)
        if (
            comment
            and len(lines) == 1
            and not (isinstance(expr, TupleGetItem) and expr in self.inlined)
        ):
            lines = [f"{lines[0]} {comment}"]
        if expr in self.inlined:
            self.lines_by_expr[expr] = lines
            return
        name = f"%{self.num_bindings}"
        self.num_bindings += 1
        self.lines_by_expr[expr] = [name]
        self.scopes.block_by_expr[expr].lines += _binding_lines(f"{name} = ", lines)

    def _type_comment(self, expr: Expr) -> str:
        if self.printer.annotate is not None:
            return self.printer.annotate(expr)
        kind, span = expr.checked_type_or_none(), expr.span
        # A comment's own end must not occur inside it.
        notes = [f"ty={self.printer.print_type(kind)}"] if kind is not None else []
        if span is not None and (not span.line or self.printer.show_spans):
            notes.append(f"span={span}")
        return f"/* {', '.join(notes).replace('*/', '* /')} */" if notes else ""

    def expr_lines(self, expr: Expr) -> list[str]:
        """Return an expression's text at a use."""
        lines = self.lines_by_expr.get(expr)
        return [self.printer.print_atom(expr)] if lines is None else lines

    def operand_text(self, expr: Expr) -> str:
        """Return an operand's text, always one line."""
        return "\n".join(self.expr_lines(expr))

    def block_lines(self, block: PrintBlock) -> list[str]:
        """Return the lines of a finished block."""
        return [*block.lines, *self.expr_lines(block.result)]

    def nested_lines(self, expr: Expr, index: int = 0) -> list[str]:
        """Return the indented lines of an expression's block."""
        return _indent_lines(self.block_lines(self.scopes.nested_blocks[expr, index]))

    def _render_expr(self, expr: Expr) -> list[str]:
        match expr:
            case Call():
                return [self._render_call(expr)]
            case Tuple(fields=inner):
                return [
                    f"({', '.join(map(self.operand_text, inner))}{',' if len(inner) == 1 else ''})"
                ]
            case TupleGetItem(tuple_value=value, index=index):
                return [f"{self.operand_text(value)}.{index}"]
            case RefCreate(value=value):
                return [f"ref({self.operand_text(value)})"]
            case RefRead(ref=ref):
                return [f"ref_read({self.operand_text(ref)})"]
            case RefWrite(ref=ref, value=value):
                return [f"ref_write({self.operand_text(ref)}, {self.operand_text(value)})"]
            case If(cond=cond):
                return [
                    f"if ({self.operand_text(cond)}) {{",
                    *self.nested_lines(expr),
                    "} else {",
                    *self.nested_lines(expr, 1),
                    "}",
                ]
            case Function():
                return [
                    self.printer.print_function_head(expr, "fn "),
                    *self.nested_lines(expr),
                    "}",
                ]
            case Match():
                return self._render_match(expr)
            case Let():
                return ["{", *self.nested_lines(expr), "}"]
            case _:
                return [self.printer.print_atom(expr)]

    def _render_call(self, call: Call) -> str:
        types = (
            f"[{', '.join(map(self.printer.print_type, call.type_args))}]" if call.type_args else ""
        )
        if isinstance(call.op, Constructor) and not call.args:
            return call.op.name_hint + types
        inside = [*map(self.operand_text, call.args), *self.printer.print_attrs(call)]
        return f"{self.operand_text(call.op)}{types}({', '.join(inside)})"

    def _render_match(self, match: Match) -> list[str]:
        lines = [f"match{'' if match.complete else '?'} ({self.operand_text(match.data)}) {{"]
        for index, clause in enumerate(match.clauses):
            lines += [
                f"  {self.printer.print_pattern(clause.lhs)} => {{",
                *_indent_lines(self.nested_lines(match, index)),
                "  },",
            ]
        return [*lines, "}"]


def _indent_lines(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _binding_lines(start: str, lines: list[str]) -> list[str]:
    changed = list(lines)
    changed[0] = start + changed[0]
    changed[-1] += ";"
    return changed


def format_scalar(data: Array) -> str | None:
    """Format a scalar constant as a literal, or return None if its dtype has none."""
    if data.ndim:
        return None
    dtype = str(data.dtype)
    if dtype == "bool":
        return str(bool(data))
    # uint8 and others have no literal: they are meta data even as scalars.
    suffix = LITERAL_SUFFIX_BY_DTYPE.get(dtype)
    return None if suffix is None else f"{str(data[()]).removesuffix('.0')}{suffix}"


def non_default_fields(attrs: Attrs) -> list[tuple[str, object]]:
    """Return the attribute fields that differ from their defaults, and those always shown."""
    shown = []
    for attribute in fields(attrs):  # type: ignore[arg-type]
        value = getattr(attrs, attribute.name)
        is_shown = attribute.default is MISSING or attribute.metadata.get("shown")
        # As tuples, so that values of any kind can be compared.
        if is_shown or not structural_equal((value,), (attribute.default,)):
            shown.append((attribute.name, value))
    return shown
