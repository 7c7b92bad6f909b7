"""Relay programs as text, in TVM's format 0.0.5; `ekiden.relay.parser` reads it back.

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
from ekiden.tir.printer import HEADER
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
    """A module or expression as text; without meta data, constants that are no scalars are only
    referred to.

    `annotate` gives the comment after each expression in place of its type. `show_spans` adds the
    place in a text that each came from; the node of a model is always shown.
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
    """A name as it stands after % or @: in quotes unless it is a plain identifier."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


Annotate = Callable[[RelayExpr], str]


class UniqueNames(dict[Node, str]):
    """Names for nodes: the first to ask for a name gets it, later ones a number after it."""

    def __init__(self, quote: Callable[[str], str] = str, taken: Iterable[str] = ()) -> None:
        super().__init__()
        self._taken = dict.fromkeys(taken, 0)
        self._quote = quote

    def get(self, key: Node, default: str = "") -> str:  # type: ignore[override]
        """The name of a node, made from `default` when it is asked for first."""
        found = super().get(key)
        if found is None:
            found = self[key] = self._quote(self._unique(default))
        return found

    def forget_type_vars(self) -> None:
        """Free the names of type parameters, which end with the definition they belong to."""
        for key in [k for k in self if isinstance(k, TypeVar)]:
            self._taken.pop(self.pop(key), None)

    def _unique(self, name: str) -> str:
        candidate = name
        while candidate in self._taken:
            self._taken[name] += 1
            candidate = f"{name}_{self._taken[name]}"
        self._taken[candidate] = 0
        return candidate


class _Printer:
    """The state of printing one text."""

    def __init__(self, annotate: Annotate | None = None, show_spans: bool = False) -> None:
        self.annotate = annotate
        self.show_spans = show_spans
        self.type_names = UniqueNames()
        self.constants: list[Constant] = []
        self.constant_index: dict[int, int] = {}
        self.var_names = UniqueNames(quote_name)

    # Modules

    def module(self, module: IRModule) -> list[str]:
        """The lines of a module."""
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
            self.var_names = UniqueNames(quote_name)
            lines += self.definition(name, function)
            self.type_names.forget_type_vars()
        return lines

    def definition(self, name: GlobalVar, function: BaseFunc) -> list[str]:
        """One global function; one that is neither Relay's nor a loop program is only named."""
        if isinstance(function, PrimFunc):
            lines = loops_text(function).removeprefix(f"{HEADER}\n").strip("\n").split("\n")
            return [f"prim_func @{quote_name(name.name_hint)} {{", *_indent(lines), "}"]
        if not isinstance(function, Function):
            return [f"/* @{quote_name(name.name_hint)}: {type(function).__name__} */"]
        return self.text_of_function(function, f"def @{quote_name(name.name_hint)}")

    def type_data(self, data: TypeData) -> list[str]:
        """`type List[A] { Cons(A, List[A]), Nil, }`"""
        params = type_params_text(data.type_vars, self.type_names)
        if not data.constructors:
            return [f"extern type {data.header.name_hint}{params}"]
        lines = [f"type {data.header.name_hint}{params} {{"]
        for made in data.constructors:
            inputs = ", ".join(map(self.type, made.inputs))
            lines.append(
                f"  {made.name_hint}({inputs})," if made.inputs else f"  {made.name_hint},"
            )
        return [*lines, "}"]

    def root(self, expr: RelayExpr) -> list[str]:
        """The lines of an expression, after declarations of its free variables."""
        if isinstance(expr, BaseFunc) and not isinstance(expr, Function):
            return [f"/* {type(expr).__name__} */"]
        free = [f"free_var {self.param(v)};" for v in free_vars(expr)]
        if isinstance(expr, Function):
            return [*free, *self.text_of_function(expr, "fn ")]
        return [*free, *self.block(expr)]

    # Pieces

    def type(self, kind: Type) -> str:
        """A type with names kept apart."""
        return type_text(kind, self.type_names)

    def var(self, var: Var) -> str:
        """`%x`"""
        return f"%{self.var_names.get(var, var.name_hint)}"

    def param(self, var: Var, place: object = None) -> str:
        """`%x: Tensor[(3,), float32]`; with a device behind the name where one is given."""
        name = self.var(var)
        if place is not None:
            name += f" {{virtual_device={self.value(place)}}}"
        return name if var.type_annotation is None else f"{name}: {self.type(var.type_annotation)}"

    def atom(self, expr: Expr) -> str:
        """An expression without parts."""
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
        """`meta[relay.Constant][3]`"""
        index = self.constant_index.setdefault(id(constant), len(self.constants))
        if index == len(self.constants):
            self.constants.append(constant)
        kind = f"Tensor[{tuple(constant.data.shape)}, {constant.data.dtype}]"
        return f"meta[relay.Constant][{index}] /* ty={kind} */"

    def value(self, value: object) -> str:
        """An attribute's value."""
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
        """`key=value` for what differs from the defaults."""
        attrs = call.attrs
        if attrs is None:
            return []
        expected = (
            OPS[call.op.name].attrs if isinstance(call.op, Op) and call.op.name in OPS else None
        )
        key = [] if type(attrs) is expected else [f'attrs_type_key="{attrs.type_key}"']
        return key + [f"{name}={self.value(value)}" for name, value in non_defaults(attrs)]

    def function_attrs(self, attrs: Mapping[str, object] | None) -> list[str]:
        """`Primitive=1`"""
        shown = [(k, v) for k, v in (attrs or {}).items() if k != PARAM_PLACES]
        return [f"{quote_name(k)}={self.value(v)}" for k, v in shown]

    def pattern(self, pattern: Pattern) -> str:
        """`Cons(%head, _)`"""
        match pattern:
            case PatternVar(var=var):
                return self.param(var)
            case PatternConstructor(constructor=made, patterns=inner):
                return (
                    f"{made.name_hint}({', '.join(map(self.pattern, inner))})"
                    if inner
                    else made.name_hint
                )
            case PatternTuple(patterns=inner):
                return f"({', '.join(map(self.pattern, inner))}{',' if len(inner) == 1 else ''})"
            case _:
                return "_"

    def head(self, function: Function, start: str) -> str:
        """Everything of a function before its body."""
        places = function.attr(PARAM_PLACES)
        each = places if isinstance(places, tuple) else (None,) * len(function.params)
        params = [*map(self.param, function.params, each), *self.function_attrs(function.attrs)]
        ret = f" -> {self.type(function.ret_type)}" if function.ret_type is not None else ""
        type_params = type_params_text(function.type_params, self.type_names)
        return f"{start}{type_params}({', '.join(params)}){ret} {{"

    def text_of_function(self, function: Function, start: str) -> list[str]:
        """A function at the top of the text."""
        return [self.head(function, start), *_indent(self.block(function.body)), "}"]

    # Blocks

    def block(self, root: Expr) -> list[str]:
        """The bindings and the result of the block of `root`."""
        return _Body(self, root).lines()


class _Body:
    """Prints everything below one root, innermost blocks first, without recursion."""

    def __init__(self, printer: _Printer, root: Expr) -> None:
        self.printer = printer
        self.scopes = Scopes(root)
        self.text: dict[Expr, list[str]] = {}
        self.count = 0
        self.in_place = self._find_in_place()

    def _find_in_place(self) -> set[Expr]:
        """What is printed where it is used instead of being bound to a number."""
        scopes = self.scopes
        values = {e.value for e, is_binding in scopes.events if is_binding and isinstance(e, Let)}
        found: set[Expr] = set()
        for expr, is_binding in scopes.events:
            if is_binding or scopes.uses[expr] != 1:
                continue
            is_projection = isinstance(expr, TupleGetItem) and expr.tuple_value not in found
            if expr in scopes.results or expr in values or is_projection:
                found.add(expr)
        return found

    def lines(self) -> list[str]:
        """All lines of the root's block."""
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
        known, span = expr.checked_type_or_none(), expr.span
        parts = [f"ty={self.printer.type(known)}"] if known is not None else []
        if span is not None and (not span.line or self.printer.show_spans):
            parts.append(f"span={span}")
        return f"/* {', '.join(parts).replace('*/', '* /')} */" if parts else ""

    def of(self, expr: Expr) -> list[str]:
        """The text that stands for an expression where it is used."""
        found = self.text.get(expr)
        return [self.printer.atom(expr)] if found is None else found

    def one(self, expr: Expr) -> str:
        """The same for an operand, which is always one line."""
        return "\n".join(self.of(expr))

    def inside(self, block: Block) -> list[str]:
        """The lines of a finished block."""
        return [*block.lines, *self.of(block.result)]

    def nested(self, expr: Expr, index: int = 0) -> list[str]:
        """The indented lines of one of the blocks of an expression."""
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
    made = list(lines)
    made[0] = start + made[0]
    made[-1] += ";"
    return made


def scalar_text(data: Array) -> str | None:
    """A constant of rank 0 as a literal, None if its dtype has none."""
    if data.ndim:
        return None
    dtype = str(data.dtype)
    if dtype == "bool":
        return str(bool(data))
    suffix = LITERAL_SUFFIX.get(dtype)
    return None if suffix is None else f"{str(data[()]).removesuffix('.0')}{suffix}"


def non_defaults(attrs: Attrs) -> list[tuple[str, object]]:
    """The fields of attributes that differ from their defaults, and those that are shown always."""
    found = []
    for each in fields(attrs):  # type: ignore[arg-type]
        value = getattr(attrs, each.name)
        is_shown = each.default is MISSING or each.metadata.get("shown")
        if is_shown or not structural_equal((value,), (each.default,)):
            found.append((each.name, value))
    return found
