"""Chat templates: programs in Jinja that loop, recurse, multiply and nest."""

from __future__ import annotations

import re
import time
from random import Random
from typing import Any
from unittest import mock

from case_kinds import Kind, Loader, SlowError
from mutation import extreme

from ekiden.llm.chat_template import render_chat
from ekiden.runtime.errors import InputError

MAX_CASE_S = 3.0
"""Processor seconds of a case, at a hundredth of the steps that a template may take."""
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "a%s{}{0}"}]},
    {"role": "assistant", "content": "<think>x</think>y", "tool_calls": [
        {"function": {"name": "f", "arguments": {"a": [1, {"b": None}], "n": 10**9}}}]},
    {"role": "user", "content": "漢 é\t\n" * 20},
]  # fmt: skip
# fmt: off
NAMES = ("messages", "m", "x", "ns.x", "ns.y", "loop", "loop.index", "eos_token", "undefined",
         "f", "ns", "m.content", "self", "joiner", "cycler", "dict", "range", "loop.nextitem")
# Templates of expressions by the type of their value: T a text, N a number, L a list, A any value.
TEXTS = ("'a'", "ns.x", "eos_token", "'%Nd'", "'%*d'", "'{:N}'", "'{0}{0}'", "'%s%s'", "'<&>'",
         "'a\\n\\t'", "T * N", "T + T", "T ~ A", "T % A", "T % (N, T)", "T.format(A, A)",
         "T.center(N)", "T.ljust(N)", "T.zfill(N)", "T.upper()", "T.title()", "T.expandtabs(N)",
         "T.replace(T, T)", "T.replace('a', T)", "T.join(L)", "T.translate({97: T})", "T[N:]",
         "T[::-1]", "T.strip(T)", "T | center(N)", "T | indent(N)", "T | replace(T, T)",
         "A | string", "A | tojson", "A | tojson(indent=N)", "L | join", "L | join(T)",
         "T | upper", "T | title", "T | trim", "T | truncate(N)", "T | urlencode", "T | escape",
         "T | safe", "T | format(A)", "T | capitalize", "f(A)", "strftime_now(T)", "m.content",
         "T.encode().hex(T)")
NUMBERS = ("N + N", "N - N", "N * N", "N ** N", "N // N", "N % N", "T | length", "L | length",
           "T | int(N)", "N | round(N)", "N | abs", "L | sum", "T.count(T)", "T.find(T)",
           "T.rfind(T)", "T | wordcount", "loop.index", "N.bit_length()", "T | float")
LISTS = ("[A, A]", "(A,)", "[]", "ns.y", "messages", "range(N)", "[A] * N", "L + L", "T.split(T)",
         "T.split()", "T.rsplit(T, N)", "T.splitlines()", "T.partition(T)", "T | list", "L | list",
         "L | batch(N)", "L | batch(N, A)", "L | slice(N)", "L | map('string')", "L | unique",
         "L | map('center', N)", "L | map(attribute='content')", "L | select('eq', A)", "L | sort",
         "L | selectattr('role', 'eq', T)", "L | reject('none')", "L | reverse", "L[N:]", "L[::N]",
         "L | sum(start=[])", "L | groupby('role')", "{'a': A, T: A} | dictsort", "L.copy()",
         "{'a': A}.items()", "L | map(attribute='a.b')", "{}.fromkeys(L, A)")
ANY = ("T", "N", "L", "{T: A}", "{(A,): 1}", "L[0]", "L | first", "L | last", "L | max",
       "L | random", "A == A", "A in L", "T in T", "A < A", "A is divisibleby(N)", "A is eq(A)",
       "T is upper", "A if A else A", "A and A", "namespace(a=A)", "cycler(A)", "loop(L)",
       "self.b()", "caller()", "(T | attr('format'))(A)", "joiner(T)", "raise_exception(T)",
       "A.append(A)", "A.a", "A[A]", "N.to_bytes(N, 'big')", "dict(a=A)", *NAMES)
# fmt: on
BY_TYPE = {"T": TEXTS, "N": NUMBERS, "L": LISTS, "A": ANY}
TYPE = re.compile(r"\b[TNLA]\b|(?<=%)N|(?<=:)N")
GROWTH = ("ns.x ~ ns.x", "[ns.x, ns.x]", "(ns.x,)", "ns.x + ns.x", "{1: ns.x}", "ns.x * ns.x",
          "namespace(a=ns.x)", "ns.x|map('string')")  # fmt: skip
PLAIN = ("list", "lower", "reverse", "string", "title", "tojson", "trim", "upper", "wordcount")


PREAMBLE = (
    "{% set ns = namespace(x='ab', y=[1]) %}{% macro f(a=1) %}{{ a }}{% endmacro %}"
    "{% macro g() %}{{ caller() }}{% endmacro %}"
)


def _literal(rng: Random) -> str:
    if rng.random() < 0.1:
        return str(extreme(rng))
    return str(rng.choice((0, 1, 2, 3, 7, 40, 1000, 100_000, 10_000_000)))


def _expression(rng: Random, kind: str = "A", depth: int = 0) -> str:
    """Return an expression, mostly of the wanted type, of three levels at most."""

    def inner(match: re.Match[str]) -> str:
        if match.start() and match.string[match.start() - 1] in "%:":
            return _literal(rng)
        wanted = match.group() if rng.random() < 0.97 else "A"
        return f"({_expression(rng, wanted, depth + 1)})"

    if depth > 2 or rng.random() < 0.3 * depth:
        leaves = {
            "T": TEXTS[:9],
            "N": (_literal(rng),),
            "L": ("[]", "ns.y", "messages"),
            "A": NAMES,
        }
        return TYPE.sub(lambda _: _literal(rng), rng.choice(leaves[kind]))
    if kind == "N" and rng.random() < 0.5:
        return _literal(rng)
    return TYPE.sub(inner, rng.choice(BY_TYPE[kind]))


def _statements(rng: Random, depth: int = 0) -> str:
    """Return statements, whose loops and macros nest."""
    return "".join(_statement(rng, depth) for _ in range(1 + rng.randrange(2)))


def _statement(rng: Random, depth: int) -> str:
    def body() -> str:
        return _statements(rng, depth + 1) if depth < 2 else f"{{{{ {_expression(rng)} }}}}"

    match rng.randrange(12):
        case 0 | 1 | 2:
            source = rng.choice((_expression(rng, "L"), f"range({_literal(rng)})", "range(100000)"))
            suffix = rng.choice(("", "", " if m", " if false", " recursive"))
            jump = rng.choice(("", "", "{% continue %}", "{% break %}"))
            return f"{{% for m in {source}{suffix} %}}{body()}{jump}{{% endfor %}}"
        case 3 | 4:
            names = rng.choice(("ns.x", "ns.x", "ns.y", "x", "x, ns.y"))
            value = rng.choice((*GROWTH, _expression(rng)))
            return f"{{% set {names} = {value} %}}"
        case 5:
            return f"{{% macro f(a=1) %}}{body()}{{{{ f(a) }}}}{{{{ f(a) }}}}{{% endmacro %}}"
        case 6:
            return f"{{% if {_expression(rng)} %}}{body()}{{% else %}}{body()}{{% endif %}}"
        case 7:
            return f"{{% set x %}}{body()}{{% endset %}}"
        case 8:
            return f"{{% call g() %}}{body()}{{% endcall %}}"
        case 9:
            return f"{{% filter {rng.choice(PLAIN)} %}}{body()}{{% endfilter %}}"
        case 10:
            name = f"b{rng.getrandbits(32)}"
            return f"{{% block {name} %}}{body()}{{{{ self.{name}() }}}}{{% endblock %}}"
        case _:
            return f"{rng.choice(('', 'text', 'y' * 1000))}{{{{ {_expression(rng)} }}}}"


def _templates() -> tuple[Any, Loader]:
    from ekiden.llm import template_budget

    limits = {
        "MAX_STEPS": template_budget.MAX_STEPS // 100, "MAX_BYTES": template_budget.MAX_BYTES // 16
    }  # fmt: skip

    def make(rng: Random) -> str:
        return f"{PREAMBLE}{{% for m in messages %}}{_statements(rng)}{{% endfor %}}"

    def load(case: str) -> None:
        begin = time.process_time()
        try:
            with mock.patch.multiple(template_budget, **limits):
                render_chat(case, {"eos_token": "</s>"}, MESSAGES)
        except InputError as error:
            if isinstance(error.__cause__, MemoryError):
                raise error.__cause__ from None
            raise
        finally:
            seconds = time.process_time() - begin
            if seconds > MAX_CASE_S:
                raise SlowError(f"a template took {seconds:.1f} processor seconds")

    return make, load


KINDS = (Kind("template", "chat templates of checkpoints (Jinja)", _templates, ("jinja2",)),)
