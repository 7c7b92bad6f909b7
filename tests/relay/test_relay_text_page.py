"""docs/relay-text.md: every example of the page parses and reads back, every error is as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ekiden.ir.structural import structural_equal
from ekiden.relay import astext, parse, parse_expr
from ekiden.relay.lexer import PUNCTUATION_TOKENS
from ekiden.relay.parser import INFIX_OPERATORS
from ekiden.runtime.errors import ParseError

pytestmark = pytest.mark.quick

PAGE = (Path(__file__).parents[2] / "docs" / "relay-text.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_page_has_examples() -> None:
    assert len(blocks("relay")) >= 8 and len(blocks("relay-error")) >= 4


@pytest.mark.parametrize("text", blocks("relay"))
def test_module_of_the_page(text: str) -> None:
    module = parse(text)
    assert structural_equal(parse(module.astext()), module)


@pytest.mark.parametrize("text", blocks("relay-expr"))
def test_expression_of_the_page(text: str) -> None:
    expr = parse_expr(text)
    assert structural_equal(parse_expr(astext(expr)), expr)


@pytest.mark.parametrize("block", blocks("relay-error"))
def test_error_of_the_page(block: str) -> None:
    text, message = block.split("--\n")
    with pytest.raises(ParseError) as caught:
        parse(text.rstrip("\n"))
    assert f"{caught.value}\n" == message


def test_grammar_lists_every_token_and_operator() -> None:
    grammar = "\n".join(blocks("text"))
    missing = {m for m in (*PUNCTUATION_TOKENS, *INFIX_OPERATORS) if f'"{m}"' not in grammar}
    assert missing == set()
