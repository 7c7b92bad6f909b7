"""Lexer of Relay text, with located errors."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NoReturn

from ekiden.ir.span import Span
from ekiden.runtime.errors import ParseError, TypeInferenceError
from ekiden.runtime.lazy_dataclass import dataclass

PUNCTUATION_TOKENS = "=> -> == != <= >= ( ) { } [ ] , ; : = . + - * / < > ?".split()

_TOKEN_PATTERN = re.compile(
    r"""
      (?P<skip>      [\ \t\r\n]+ | //[^\n]* )
    | (?P<comment>   /\* )
    | (?P<version>   \#\[\s*version\s*=\s*"(?P<number>[^"]*)"\s*\] )
    | (?P<metadata>  \#\[\s*metadata\s*\] )
    | (?P<graph>     %[0-9]+ )
    | (?P<local>     %(?:NAME|STRING) )
    | (?P<global>    @(?:NAME|STRING) )
    | (?P<float>     [0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?f(?:16|32|64)?
                     | (?:inf|nan)f(?:16|32|64)?\b )
    | (?P<int>       [0-9]+(?:\.[0-9]+)*(?:[eE][+-]?[0-9]+)?(?:i(?:8|16|32|64)?)? )
    | (?P<string>    STRING )
    | (?P<name>      match\? | NAME )
    | (?P<mark>      => | -> | == | != | <= | >= | [(){}\[\],;:=.+*/<>?-] )
    """.replace("NAME", r"[A-Za-z_]\w*(?:/\w+)*(?:\.[A-Za-z_]\w*(?:/\w+)*)*").replace(
        "STRING", r'"(?:\\.|[^"\\\n])*"'
    ),
    re.VERBOSE | re.ASCII,
)
MAX_NUMBER_LENGTH = 100
_CLOSING_BRACE_LINE = re.compile(r"^\}", re.MULTILINE)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@dataclass(slots=True)
class LexerToken:
    """Token: its kind (a pattern group, or "end"), its text without % and @, and its range."""

    kind: str
    text: str
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class SourceText:
    """Source text with its name for messages."""

    text: str
    name: str = "text"

    def line_and_column(self, at: int) -> tuple[int, int]:
        """Return line and column of a position, from 1."""
        # -1 + 1 is the beginning of the text.
        start = self.text.rfind("\n", 0, at) + 1
        return self.text.count("\n", 0, at) + 1, at - start + 1

    def raise_parse_error(self, at: int, message: str) -> NoReturn:
        """Raise ParseError with the line and a caret under the position."""
        line, column = self.line_and_column(at)
        error = ParseError(
            f"{self.name}:{line}:{column}: {message}\n{self.format_caret(line, column)}"
        )
        error.span = Span(self.name, line, 0, column)
        raise error

    def format_caret(self, line: int, column: int) -> str:
        """Format a source line with a caret under a column."""
        shown = self.text.split("\n")[line - 1]
        # Tabs are kept, so that the caret is below its column however wide they are.
        return shown + "\n" + "".join(c if c == "\t" else " " for c in shown[: column - 1]) + "^"

    def with_source_line(self, error: TypeInferenceError) -> TypeInferenceError:
        """Return a type error extended by the source line it refers to."""
        at = error.span
        if not isinstance(at, Span) or not at.line or at.source_name != self.name:
            return error
        return TypeInferenceError(f"{error}\n{self.format_caret(at.line, at.column)}", at)


def tokenize(source: SourceText) -> tuple[list[LexerToken], str]:
    """Tokenize a text; return the tokens (ending with "end") and the `#[metadata]` section.

    Raises:
        ParseError: A character, a comment or a number is wrong.
    """
    text = source.text
    tokens: list[LexerToken] = []
    at, end = 0, len(text)
    while at < end:
        matched = _TOKEN_PATTERN.match(text, at)
        if matched is None:
            source.raise_parse_error(at, f"unexpected character {text[at]!r}")
        kind = matched.lastgroup or ""
        if kind == "comment":
            at = _skip_comment(source, at)
            continue
        if kind == "metadata":
            tokens.append(LexerToken("end", "", at, at))
            return tokens, text[matched.end() :]
        if kind != "skip":
            tokens.append(_make_token(source, kind, matched))
        at = matched.end()
        # Loop programs are Python, which has other tokens: they are taken as one.
        if [t.text for t in tokens[-1:]] == ["{"] and _starts_prim_func(tokens):
            tokens.append(_prim_func_token(source, at))
            at = tokens[-1].end
    tokens.append(LexerToken("end", "", end, end))
    return tokens, ""


def _starts_prim_func(tokens: Sequence[LexerToken]) -> bool:
    """Return whether the last tokens are `prim_func @name {`."""
    kinds = [(t.kind, t.text) for t in tokens[-3:]]
    return len(kinds) == 3 and kinds[0] == ("name", "prim_func") and kinds[1][0] == "global"


def _prim_func_token(source: SourceText, at: int) -> LexerToken:
    """Return a Python loop program as one token, up to a closing brace at the start of a line."""
    end = _CLOSING_BRACE_LINE.search(source.text, at)
    if end is None:
        source.raise_parse_error(at, "the loop program has no '}' at the beginning of a line")
    return LexerToken("loops", source.text[at : end.start()], at, end.start())


def _make_token(source: SourceText, kind: str, matched: re.Match[str]) -> LexerToken:
    text = matched.group()
    if kind in ("graph", "local", "global"):
        text = text[1:]
    if kind == "string" or text.startswith('"'):
        try:
            text = json.loads(text)
        except ValueError:
            source.raise_parse_error(
                matched.start(), "the string has an escape that JSON does not know"
            )
    if kind == "int" and len(text) > MAX_NUMBER_LENGTH:
        source.raise_parse_error(
            matched.start(), f"the number has more than {MAX_NUMBER_LENGTH} digits"
        )
    if kind == "version":
        text = matched.group("number")
    return LexerToken(kind, text, matched.start(), matched.end())


def _skip_comment(source: SourceText, at: int) -> int:
    """Return the end of a possibly nested comment."""
    depth, position = 0, at
    while True:
        edge = _COMMENT_EDGE.search(source.text, position)
        if edge is None:
            source.raise_parse_error(at, "comment without an end")
        # Comments nest: a part that is commented out may contain one.
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
        if depth == 0:
            return position
