"""Parser of Relay text.

    module  = version? attributes? (type | def | loops)* metadata?
    loops   = "prim_func" @name "{" a loop program in Python newline "}"
    def     = "def" @name type_params? "(" params ")" ("->" type)? "{" block "}"
    block   = ("let" var "=" expr ";" | %0 "=" expr ";" | "free_var" var ";" | expr ";")* expr
    expr    = operators over: literal | %x | @f | Constructor | op | fn | if | match | ref | tuple
              | "{" block "}", each followed by calls "(...)" and projections ".0"

`docs/relay-text.md` is the whole grammar. Functions that read expressions are generators run by
`_run_trampoline`: nesting in the text does not nest Python calls.
"""

from __future__ import annotations

import math
import textwrap
import typing
from collections.abc import Callable, Generator
from contextlib import contextmanager

import numpy as np

from ekiden.ir.diagnostics import report_error
from ekiden.ir.dtype import SCALAR_BITS, to_numpy
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node
from ekiden.ir.op import OPS, get, suggest_op_names
from ekiden.ir.span import Span
from ekiden.ir.type import GlobalTypeVar, IncompleteType
from ekiden.relay import op as operators
from ekiden.relay.attr_reader import read_attrs
from ekiden.relay.declaration_parser import DeclarationParser
from ekiden.relay.expr import (
    Call,
    Clause,
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
    PatternWildcard,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.lexer import LexerToken, SourceText, tokenize
from ekiden.relay.metadata import Entries, read_metadata
from ekiden.relay.type_infer import infer_type
from ekiden.runtime.errors import LoadError, ParseError, TypeInferenceError
from ekiden.target.virtual_device import PARAM_DEVICES_ATTR
from ekiden.tir.script.parser import from_source
from ekiden.tir.stmt import PrimFunc

_ResultT = typing.TypeVar("_ResultT")
Steps = Generator["Steps", Expr, Expr]
"""Parser coroutine: yields the coroutines of subexpressions, receives their results, returns its
own.
"""

# fmt: off
INFIX_OPERATORS: dict[str, tuple[int, str]] = {
    "*":  (12, "multiply"), "/":  (12, "divide"),
    "+":  (10, "add"),      "-":  (10, "subtract"),
    "<":  (8, "less"),      "<=": (8, "less_equal"),
    ">":  (8, "greater"),   ">=": (8, "greater_equal"),
    "==": (7, "equal"),     "!=": (7, "not_equal"),
}
"""Precedence and Relay operator by infix token; all are left-associative. All associate to the
left.
"""
FLOAT_SUFFIX_DTYPES = {"f": "float32", "f16": "float16", "f32": "float32", "f64": "float64"}
# fmt: on
assert operators is not None  # imported so that every operator is registered


def parse(
    source: str,
    src_name: str = "text",
    init_module: IRModule | None = None,
    init_meta_table: Entries | None = None,
) -> IRModule:
    """Parse a module, and infer its types.

    Args:
        source: The text.
        src_name: The name of the text in messages and spans.
        init_module: Has definitions that the text may use, which become part of the result.
        init_meta_table: Is used for the meta data of the text.

    Raises:
        ParseError: The text is wrong; the message has line, column and a caret.
        TypeInferenceError: The types do not fit.
    """
    text = SourceText(source, src_name)
    parser = _RelayParser(text, init_module, init_meta_table)
    try:
        module = parser.run_parser(parser.parse_module)
        return _infer_types(module, text)
    except (ParseError, TypeInferenceError) as error:
        report_error(None, error)
        raise


def _infer_types(module: IRModule, text: SourceText) -> IRModule:
    try:
        return infer_type(module, annotate=False)  # so that the text can be had back
    except TypeInferenceError as error:
        raise text.with_source_line(error) from None


def fromtext(data: str, source_name: str = "text") -> IRModule:
    """Parse a module, as `parse`, under TVM's older name."""
    return parse(data, source_name)


def parse_expr(source: str, src_name: str = "text") -> Expr:
    """Parse a single expression.

    Types are not inferred, and functions it calls need no definition.
    """
    parser = _RelayParser(SourceText(source, src_name))
    return parser.run_parser(parser.parse_single_expr)


def _run_trampoline(start: Steps) -> Expr:
    """Run a parser coroutine and those it yields on an explicit stack (trampoline)."""
    stack = [start]
    sent: Expr | None = None
    while True:
        try:
            # A reader that yields another waits on the stack for its result.
            stack.append(stack[-1].send(sent))  # type: ignore[arg-type]
            sent = None
        except StopIteration as end:
            stack.pop()
            sent = end.value
            if not stack:
                return end.value  # type: ignore[no-any-return]


class _RelayParser(DeclarationParser):
    """Recursive-descent parser over one token stream with lexical scopes."""

    def __init__(
        self, source: SourceText, init: IRModule | None = None, meta: Entries | None = None
    ) -> None:
        tokens, metadata = tokenize(source)
        super().__init__(source, tokens, init or IRModule())
        self.param_devices: dict[Var, object] = {}
        """Device annotation by parameter."""
        self.meta = _read_metadata(source, metadata) or meta or {}
        self.has_free_globals = False
        self.scopes: list[dict[str, Expr]] = [{}]
        self.graph: list[dict[str, Expr]] = [{}]

    def run_parser(self, start: Callable[[], _ResultT]) -> _ResultT:
        """Run a parser coroutine. Types, patterns and attribute values nest Python calls, to a
        limit.
        """
        try:
            return start()
        except RecursionError:
            self.raise_error("types, patterns or attribute values are nested too deeply")

    # Modules

    def parse_module(self) -> IRModule:
        """Parse a module up to the end of the text."""
        self._parse_version()
        attrs = self._parse_module_attrs()
        begins = self._scan_definitions()
        # Definitions of the initial module stay; those of the text come after them.
        functions: dict[GlobalVar | str, BaseFunc] = dict(self.init_module.functions.items())
        types: dict[GlobalTypeVar, Node] = dict(self.init_module.type_definitions)
        # Types first: functions may use constructors that are defined after them.
        for is_type in (True, False):
            for position in begins:
                self.position = position
                if is_type and self.next_token.text in ("type", "extern"):
                    data = self._parse_type_data()
                    types[data.header] = data
                elif not is_type and self.next_is("def"):
                    name, function = self._parse_definition()
                    functions[name] = function
                elif not is_type and self.next_is("prim_func"):
                    name, loops = self._parse_prim_func()
                    functions[name] = loops
        return IRModule(functions, types, {**self.init_module.attrs, **attrs})

    def parse_single_expr(self) -> Expr:
        """Parse one expression up to the end of the text."""
        self._parse_version()
        self.has_free_globals = True
        result = _run_trampoline(self.parse_block())
        if self.next_token.kind != "end":
            self.raise_error(f"expected the end of the text, got {self.token_description()}")
        return result

    def _parse_definition(self) -> tuple[GlobalVar, Function]:
        self.expect("def")
        name = self.globals[self.expect_kind("global", "a global name").text]
        function = _run_trampoline(self.parse_function_rest())
        assert isinstance(function, Function)
        return name, function

    # Functions and blocks

    @contextmanager
    def open_scope(self) -> Generator[None, None, None]:
        """Open a lexical scope."""
        self.scopes.append({})
        self.graph.append({})
        try:
            yield
        finally:
            self.scopes.pop()
            self.graph.pop()

    def parse_function_rest(self) -> Steps:
        """Parse a function from its type parameters on."""
        position = self.next_token.at
        with self.parse_type_params() as type_params, self.open_scope():
            params, attrs = self._parse_params()
            ret = self.parse_type() if self.accept("->") else None
            self.expect("{")
            body = yield self.parse_block()
            self.expect("}")
        return Function(params, body, ret, type_params, attrs or None, span=self.span(position))

    def _parse_prim_func(self) -> tuple[GlobalVar, PrimFunc]:
        """Parse `prim_func @name { ... }`, a loop program in Python syntax."""
        self.expect("prim_func")
        name = self.globals[self.expect_kind("global", "a global name").text]
        self.expect("{")
        body = self.expect_kind("loops", "a loop program")
        self.expect("}")
        # Blank lines in front keep the line numbers of Python's parser those of the file.
        above = "\n" * (
            self.source.line_and_column(body.at)[0] - 1
        )  # so that errors name its lines
        program = from_source(above + textwrap.dedent(body.text), name=self.source.name)
        if not isinstance(program, PrimFunc):
            self.source.raise_parse_error(
                body.at, f"@{name.name_hint}: expected one loop program, got a module"
            )
        return name, program

    def _parse_params(self) -> tuple[tuple[Var, ...], dict[str, object]]:
        self.expect("(")
        params: list[Var] = []
        attrs: dict[str, object] = {}
        while not self.accept(")"):
            if self.next_token.kind == "local":
                params.append(self.bind_new_var())
            else:
                key = self._parse_attr_key()
                attrs[key] = self.parse_attr_value()
            if not self.next_is(")"):
                self.expect(",")
        devices = tuple(map(self.param_devices.get, params))
        if any(devices):
            attrs[PARAM_DEVICES_ATTR] = devices
        return tuple(params), attrs

    def _parse_attr_key(self) -> str:
        if self.next_token.kind not in ("name", "string"):
            self.raise_error(f"expected a parameter or key=value, got {self.token_description()}")
        key = self.advance().text
        self.expect("=")
        return key

    def parse_new_var(self) -> Var:
        """Parse `%x` or `%x: type`, not yet in scope."""
        name = self.expect_kind("local", "a variable")
        device = None
        if self.accept("{"):
            self._parse_attr_key()
            device = self.parse_attr_value()
            self.expect("}")
        annotation = self.parse_type() if self.accept(":") else None
        if isinstance(annotation, IncompleteType):
            # `_` as an annotation is none: the type is to be inferred.
            annotation = None
        variable = Var(name.text, annotation, span=self.span(name.at))
        if device is not None:
            self.param_devices[variable] = device
        return variable

    def bind_new_var(self, scope: int = -1) -> Var:
        """Parse a new variable, and bring it into scope."""
        variable = self.parse_new_var()
        self.scopes[scope][variable.name_hint] = variable
        return variable

    def parse_block(self) -> Steps:
        """Parse bindings and a result, without braces."""
        lets: list[tuple[Var, Expr, int]] = []
        scope = self.open_scope()
        # By hand: a generator may be dropped between its steps, and `finally` leaves the scope
        # then.
        scope.__enter__()
        try:
            while True:
                position = self.next_token.at
                if self.accept("let"):
                    lets.append((yield from self._parse_let(position)))
                elif self.accept("free_var"):
                    self.bind_new_var(scope=0)
                    self.expect(";")
                elif self._is_graph_binding():
                    name = self.advance().text
                    self.advance()
                    self.graph[-1][name] = yield self.parse_infix()
                    self.expect(";")
                else:
                    result = yield self.parse_infix()
                    if not self.accept(";"):
                        break
                    lets.append((Var("_", None), result, position))
        finally:
            scope.__exit__(None, None, None)
        # A let contains all that follows it, so the chain is built from its end.
        for var, value, position in reversed(lets):
            result = Let(var, value, result, span=self.span(position))
        return result

    def _is_graph_binding(self) -> bool:
        """Return whether `%0 =` follows."""
        after = self.peek_token(1)
        return self.next_token.kind == "graph" and after.text == "=" and after.kind == "mark"

    def _parse_let(self, at: int) -> Generator[Steps, Expr, tuple[Var, Expr, int]]:
        var = self.parse_new_var()
        self.expect("=")
        # Other values do not see the variable, but an outer one of its name.
        if self.next_is("fn"):  # a function may call itself
            self.scopes[-1][var.name_hint] = var
        value = yield self.parse_infix()
        self.expect(";")
        self.scopes[-1][var.name_hint] = var
        return var, value, at

    # Expressions

    def parse_infix(self, tightest: int = 0) -> Steps:
        """Parse infix operators of at least the given precedence (precedence climbing)."""
        result = yield self.parse_postfix()
        while self.next_token.kind == "mark" and self.next_token.text in INFIX_OPERATORS:
            level, name = INFIX_OPERATORS[self.next_token.text]
            if level < tightest:
                break
            position = self.advance().at
            # One level tighter: operators of one level associate to the left.
            operand = yield self.parse_infix(level + 1)
            result = Call(get(name), (result, operand), None, span=self.span(position))
        return result

    def parse_postfix(self) -> Steps:
        """Parse an atom with its calls and projections."""
        position = self.next_token.at
        result = yield self.parse_atom()
        while self.next_token.kind == "mark":
            if self.next_token.text == "(":
                result = yield self.parse_call(result, (), position)
            elif self.next_token.text == "[" and not isinstance(result, Constant):
                kinds = self.parse_types_in_brackets()
                result = (
                    (yield self.parse_call(result, kinds, position))
                    if self.next_is("(")
                    else Call(result, (), None, kinds)
                )
            elif self.next_token.text == ".":
                self.advance()
                token = self.expect_kind("int", "the number of a field")
                for index in token.text.split("."):  # ".1.0" is one token after the point
                    if not index.isdigit():
                        self.source.raise_parse_error(
                            token.at, f"expected the number of a field, got {token.text!r}"
                        )
                    result = TupleGetItem(result, int(index), span=self.span(position))
            else:
                break
        if isinstance(result, Constructor) and not result.inputs:
            # A constructor without fields is written without parentheses, and is a call
            # nevertheless.
            result = Call(result, (), None, span=self.span(position))
        return result

    def parse_call(self, callee: Expr, type_args: tuple[typing.Any, ...], at: int) -> Steps:
        """Parse the arguments and attributes of a call."""
        self.expect("(")
        args: list[Expr] = []
        attrs: dict[str, tuple[object, int]] = {}
        while not self.accept(")"):
            token = self.next_token
            if (
                token.kind in ("name", "string")
                and self.peek_token(1).text == "="
                and self.peek_token(1).kind == "mark"
            ):
                key = self._parse_attr_key()
                attrs[key] = (self.parse_attr_value(), token.at)
            elif attrs:
                self.raise_error(
                    f"expected key=value after an attribute, got {self.token_description()}"
                )
            elif token.kind in ("local", "graph") and self.peek_token(1).text in (",", ")"):
                args.append(self._resolve_name(self.advance()))
            else:
                args.append((yield self.parse_infix()))
            if not self.next_is(")"):
                self.expect(",")
        return Call(
            callee,
            tuple(args),
            read_attrs(self.source, callee, attrs, at),
            tuple(type_args),
            span=self.span(at),
        )

    def _resolve_name(self, token: LexerToken) -> Expr:
        """Resolve a name in an expression."""
        where = self.graph if token.kind == "graph" else self.scopes
        for scope in reversed(where):
            if token.text in scope:
                return scope[token.text]
        self.source.raise_parse_error(token.at, f"%{token.text} is not bound here")

    def parse_atom(self) -> Steps:
        """Parse a primary expression."""
        token = self.next_token
        if token.kind in ("local", "graph"):
            return self._resolve_name(self.advance())
        if token.kind == "global":
            self.advance()
            # An expression alone may call functions that nothing here defines.
            if token.text not in self.globals:
                if not self.has_free_globals:
                    self.source.raise_parse_error(token.at, f"no function @{token.text}")
                self.globals[token.text] = GlobalVar(token.text)
            return self.globals[token.text]
        if token.kind in ("int", "float"):
            return self._parse_literal(self.next_token.at, "")
        if self.next_is("-"):
            return (yield from self._parse_negation())
        if token.kind == "mark" and token.text == "{":
            return (yield from self._parse_braces())
        if token.kind == "mark" and token.text == "(":
            return (yield from self._parse_parentheses())
        if token.kind != "name":
            self.raise_error(f"expected an expression, got {self.token_description()}")
        reader = _KEYWORD_PARSERS.get(token.text)
        if reader is not None:
            self.advance()
            return (yield from reader(self, token))
        return self._resolve_identifier(self.advance())

    def _resolve_identifier(self, token: LexerToken) -> Expr:
        if token.text in self.constructors:
            return self.constructors[token.text]
        if token.text in OPS:
            return get(token.text)
        if token.text in ("True", "False"):
            return Constant(np.array(token.text == "True"))
        hint = suggest_op_names(token.text)
        self.source.raise_parse_error(
            token.at, f"no operator, constructor or keyword {token.text!r}{hint}"
        )

    def _parse_negation(self) -> Steps:
        """Parse unary minus; a literal absorbs it, other operands are negated."""
        signs = [self.advance()]
        while self.next_is("-"):
            signs.append(self.advance())
        if self.next_token.kind in ("int", "float"):
            # -2147483648 is a literal, whose positive half is none.
            return self._parse_literal(signs[0].at, "-" * (len(signs) % 2))
        result = yield self.parse_postfix()
        for sign in reversed(signs):
            result = Call(get("negative"), (result,), None, span=self.span(sign.at))
        return result

    def _parse_literal(self, start: int, sign: str) -> Constant:
        token = self.advance()
        if token.kind == "float":
            digits, _, suffix = token.text.rpartition("f")
            return self._parse_float(float(sign + digits), FLOAT_SUFFIX_DTYPES["f" + suffix], start)
        digits, _, suffix = token.text.partition("i")
        if not digits.isdigit():
            self.source.raise_parse_error(
                token.at, f"{token.text} needs a suffix: f (float32), f16 or f64"
            )
        value = int(sign + digits)
        # Without a suffix: int32 unless it is too large for that.
        fits = -(2**31) <= value < 2**31 or "i" in token.text
        dtype = f"int{suffix}" if suffix else "int32" if fits else "int64"
        if not -(2 ** (SCALAR_BITS[dtype] - 1)) <= value < 2 ** (SCALAR_BITS[dtype] - 1):
            self.source.raise_parse_error(start, f"{value} is out of the range of {dtype}")
        return Constant(np.array(value, dtype), self.span(start))

    def _parse_float(self, value: float, dtype: str, at: int) -> Constant:
        # An overflow to infinity would be another program than the text says.
        if not math.isinf(value) and abs(value) > float(np.finfo(dtype).max):
            self.source.raise_parse_error(at, f"{value} is out of the range of {dtype}")
        return Constant(np.array(value, to_numpy(dtype)), self.span(at))

    def _parse_braces(self) -> Steps:
        self.expect("{")
        body = yield self.parse_block()
        self.expect("}")
        return body

    def _parse_parentheses(self) -> Steps:
        position = self.expect("(").at
        fields: list[Expr] = []
        while not self.accept(")"):
            is_block = self.next_is("let") or self.next_is("free_var") or self._is_graph_binding()
            fields.append((yield self.parse_block() if is_block else self.parse_infix()))
            if self.accept(")"):
                return (
                    fields[0]
                    if len(fields) == 1
                    else Tuple(tuple(fields), span=self.span(position))
                )
            self.expect(",")
        return Tuple(tuple(fields), span=self.span(position))

    def _parse_fn(self, start: LexerToken) -> Steps:
        return (yield self.parse_function_rest())

    def _parse_if(self, start: LexerToken) -> Steps:
        self.expect("(")
        cond = yield self.parse_infix()
        self.expect(")")
        true_value = yield self._parse_braces()
        self.expect("else")
        false_value = yield self._parse_braces()
        return If(cond, true_value, false_value, span=self.span(start.at))

    def _parse_match(self, start: LexerToken) -> Steps:
        self.expect("(")
        data = yield self.parse_infix()
        self.expect(")")
        self.expect("{")
        clauses: list[Clause] = []
        while not self.accept("}"):
            with self.open_scope():
                pattern = self.parse_pattern()
                self.expect("=>")
                clauses.append(Clause(pattern, (yield self.parse_block())))
            if not self.next_is("}"):
                self.expect(",")
        return Match(data, tuple(clauses), start.text == "match", span=self.span(start.at))

    def parse_pattern(self) -> Pattern:
        """Parse a pattern: `_`, `%x`, `C(p, q)` or `(p, q)`."""
        token = self.next_token
        if token.kind == "local":
            return PatternVar(self.bind_new_var())
        if token.kind == "mark" and token.text == "(":
            return PatternTuple(self._parse_patterns())
        self.advance()
        if token.kind == "name" and token.text == "_":
            return PatternWildcard()
        if token.kind != "name" or token.text not in self.constructors:
            self.source.raise_parse_error(token.at, f"expected a pattern, got {token.text!r}")
        constructor = self.constructors[token.text]
        return PatternConstructor(constructor, self._parse_patterns() if self.next_is("(") else ())

    def _parse_patterns(self) -> tuple[Pattern, ...]:
        self.expect("(")
        patterns: list[Pattern] = []
        while not self.accept(")"):
            patterns.append(self.parse_pattern())
            if not self.next_is(")"):
                self.expect(",")
        return tuple(patterns)

    def _parse_reference(self, start: LexerToken) -> Steps:
        """Parse `ref(a)`, `ref_read(r)` or `ref_write(r, a)`."""
        self.expect("(")
        first = yield self.parse_infix()
        if start.text == "ref_write":
            self.expect(",")
            second = yield self.parse_infix()
        self.expect(")")
        span = self.span(start.at)
        if start.text == "ref_write":
            return RefWrite(first, second, span=span)
        return (
            RefRead(first, span=span) if start.text == "ref_read" else RefCreate(first, span=span)
        )

    def _parse_meta(self, start: LexerToken) -> Steps:
        """Parse `meta[relay.Constant][3]`."""
        # A reader is a generator, also one that needs no other.
        yield from ()
        entry = self.parse_meta_entry(start)
        if not isinstance(entry, Constant):
            self.source.raise_parse_error(
                start.at, f"expected meta data that is a constant, got {entry!r}"
            )
        return entry

    def span(self, at: int) -> Span:
        """Return the span from a position of this text to the last token read."""
        line, column = self.line_and_column(at)
        end_line, end_column = self.line_and_column(self.tokens[max(self.position - 1, 0)].end)
        return Span(self.source.name, line, end_line, column, end_column)


_KEYWORD_PARSERS: dict[str, Callable[[_RelayParser, LexerToken], Steps]] = {
    "fn": _RelayParser._parse_fn,
    "if": _RelayParser._parse_if,
    "match": _RelayParser._parse_match,
    "match?": _RelayParser._parse_match,
    "ref": _RelayParser._parse_reference,
    "ref_read": _RelayParser._parse_reference,
    "ref_write": _RelayParser._parse_reference,
    "meta": _RelayParser._parse_meta,
}


def _read_metadata(source: SourceText, text: str) -> Entries:
    try:
        return read_metadata(text)
    except LoadError as error:
        start = len(source.text) - len(text)
        source.raise_parse_error(start, f"the meta data cannot be read: {error}")


def _read_script_text(
    data: str, source_name: str = "text", init_module: IRModule | None = None
) -> IRModule:
    """Parse the Relay text of a script, whose loop programs `init_module` holds."""
    return parse(data, source_name, init_module)


IRModule.relay_reader = staticmethod(_read_script_text)

__all__ = ["fromtext", "parse", "parse_expr"]
