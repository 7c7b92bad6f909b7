"""Chat templates of hostile checkpoints: their steps, their bytes and their nesting are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ekiden.llm import template_budget
from ekiden.llm.chat_template import render_chat
from ekiden.runtime.errors import InputError

pytest.importorskip("jinja2", reason="the package jinja2 renders templates")

TOO_LONG, TOO_LARGE = "takes more than 100,000 steps", "creates more than 268,435,456 bytes"
DOUBLING = (
    "{%% set ns = namespace(x=%s) %%}{%% for i in range(200) %%}{%% set ns.x = %s %%}{%% endfor %%}"
)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(template_budget, "MAX_STEPS", 100_000)
    yield


def _refuse(template: str, text: str) -> None:
    with pytest.raises(
        InputError, match=rf"^messages: the model's chat template \(line \d+\) {text}"
    ):
        render_chat(template, {}, [{"role": "user", "content": "hi"}])


LONG_TEMPLATES = {
    "nested ranges": 3 * "{% for i in range(99) %}" + 3 * "{% endfor %}",
    "items that a condition leaves out": "{% for i in range(100000) if false %}{% endfor %}" * 9,
    "left iterations": "{% for i in range(100000) %}{% continue %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "loops": "{% for x in [40] recursive %}{% if x %}{{ loop([x-1] * 2) }}{% endif %}{% endfor %}",
    "calls with many arguments": "{% macro f() %}{% endmacro %}{{ f(*range(100000)) }}",
    "a search from the end": "{{ ('a' * 100000).rfind('b' + 'a' * 50000) }}",
    "searches": "{% for i in range(1000) %}{{ ('b' ~ 'a' * 1000) in 'a' * 2400 }}{% endfor %}",
    "comparisons": "{% set a = [1] * 9000 %}{% for i in range(99) %}{{ a == tools }}{% endfor %}",
    "a filter of each item": "{{ range(9000) | map(attribute='a.' * 1000) | list }}",
    "sums": "{{ range(30000) | sum }}",
    "sorting": "{{ range(20000) | sort }}",
    "JSON": "{{ range(99999) | list | tojson }}",
}  # fmt: skip


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("name", LONG_TEMPLATES)
def test_steps_of_a_template_are_bounded(name: str) -> None:
    _refuse(LONG_TEMPLATES[name], TOO_LONG)


LARGE_TEMPLATES = {
    "repeated texts": "{{ 'a' * 10000000000 }}",
    "repeated lists": "{{ [1] * 10000000000 }}",
    "doubled texts": DOUBLING % ("'ab'", "ns.x ~ ns.x"),
    "doubled sums": DOUBLING % ("'ab'", "ns.x + ns.x"),
    "doubled lists": DOUBLING % ("[1]", "[ns.x, ns.x]"),
    "doubled keys": DOUBLING % ("(1,)", "{(ns.x, ns.x): 1}.keys() | first"),
    "widths of %": "{{ '%1000000000d' % 1 }}",
    "widths among the arguments of %": "{{ '%*d' % (1000000000, 1) }}",
    "widths of the format filter": "{{ '%1000000000d' | format(1) }}",
    "widths of tests": "{{ '%1000000000d' is divisibleby(1) }}",
    "widths of format": "{{ '{:1000000000}'.format(1) }}",
    "widths of format in a map": "{{ (['{:1000000000}'] | map(attribute='format') | first)(1) }}",
    "widths of format_map": "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    "centered texts": "{{ 'a' | center(1000000000) }}",
    "padded texts": "{{ 'a'.ljust(10000000000) }}",
    "tabs": "{{ ('\t' * 1000).expandtabs(1000000) }}",
    "indented lines": "{{ ('a\n' * 1000) | indent(1000000) }}",
    "indented JSON": "{{ messages | tojson(indent=100000000) }}",
    "indented objects": "{{ range | tojson(indent=10000000000) }}",
    "separators of JSON": "{{ ([1] * 9999) | tojson(separators=('a' * 99999, ':')) }}",
    "replacements": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "separators": "{{ ('b' * 100000).join('a' * 10000) }}",
    "translated characters": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "fill values": "{{ [1] | batch(1000000000, 0) | list }}",
    "slices of lists": "{{ [1] | slice(1000000000) | list }}",
    "parts of texts": "{{ (' ' * 10000000).split(' ') | length }}",
    "bytes of an integer": "{{ (1).to_bytes(10000000000, 'big') }}",
    "outputs": "{% set x %}{% for i in range(4000) %}" + "y" * 100_000 + "{% endfor %}{% endset %}",
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE_TEMPLATES)
def test_bytes_of_a_template_are_bounded(name: str) -> None:
    _refuse(LARGE_TEMPLATES[name], TOO_LARGE)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (DOUBLING % ("()", "(ns.x,)"), "nests values more than 100 deep"),
        (DOUBLING % ("7", "ns.x * ns.x"), "computes too large an integer"),
        ("{{ 10 ** 100000 }}", "computes too large an integer"),
        ("{{ 1.5 | round(1000000000, 'ceil') }}", "rounds to more than 1000 digits"),
        ("{{ '{:{}}'.format(1, 1000000000) }}", "formats to a width that is computed"),
        (DOUBLING % ("1", "namespace(a=ns.x)") + "{{ ns.x }}", "takes a Namespace for a value"),
        ("{% for x in [1] %}{{ '{0.nextitem}'.format(loop) }}{% endfor %}", "takes a LoopContext"),
    ],
)  # fmt: skip
def test_values_that_a_template_cannot_have_are_refused(template: str, text: str) -> None:
    _refuse(template, text)


@pytest.mark.usefixtures("few_steps")
def test_lazy_filters_do_not_nest() -> None:
    template = (
        DOUBLING.replace("200", "5000") % ("[1]", "ns.x | map('string')") + "{{ ns.x | list }}"
    )
    with pytest.raises(InputError, match=TOO_LONG):
        render_chat(template, {}, [])


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (" " * 300_000, "has 300,000 characters; at most 262,144 are allowed"),
        ("{{ 1 }}" * 17_000, r"has [0-9,]+ syntax nodes; at most 16,384 are allowed"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "maximum recursion depth"),
        ("{{ 1 in [1] in [[1]] }}", "chained 'in' is not supported"),
        ("{{ raise_exception('a' * 5000) }}", "a{1000}$"),
        ("{{ lipsum(9) }}", "'lipsum' is undefined"),
        ("{{ 'a' | urlize }}", "No filter named 'urlize'"),
    ],
)
def test_templates_that_are_too_large_are_refused(template: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        render_chat(template, {}, [])


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__", "messages.__init__", "'{0.__class__}'.format(1)", "'' | attr('__class__')",
        "(['{0.__class__}'] | map(attribute='format') | first)(1)",
        "[''] | map(attribute='__class__') | join",
        "f.__globals__", "self._TemplateReference__context", "range.__self__",
    ],
)  # fmt: skip
def test_attributes_of_python_objects_are_undefined(expression: str) -> None:
    with suppress(InputError):
        template = "{% macro f() %}{% endmacro %}{{ " + expression + " }}"
        assert render_chat(template, {}, []) == ""


def test_template_reads_no_files() -> None:
    for statement in ("include 'a'", "import 'a' as a", "from 'a' import b", "extends 'a'"):
        with pytest.raises(InputError, match="no loader"):
            render_chat(f"{{% {statement} %}}", {}, [])


def test_limits_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/security.md").read_text()
    assert f"more than {template_budget.MAX_STEPS:,} steps" in page
    assert f"more than {template_budget.MAX_BYTES >> 20} MB of values" in page
    assert f"more than {template_budget.MAX_NESTING} deep" in page


def test_long_conversation_is_rendered() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'user' and loop.index0 % 2 == 0 %}<{{ m.role }}>"
        "{{ m.content | trim ~ eos_token }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": " x" * 100}] * 2000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template_budget, "MAX_STEPS", 1_000_000)
        text = render_chat(template, {"eos_token": "."}, messages)
    assert text == f"<user>{'x ' * 99}x." * 1000


def test_results_of_lazy_filters_are_true_and_read_once() -> None:
    """As generators are."""
    template = (
        "{% set s = messages | selectattr('role', 'eq', 'tool') %}{{ 'T' if s }}"
        "{% set r = messages | map(attribute='role') %}{{ r | join(',') }}{{ r | join(',') }}"
    )
    assert render_chat(template, {}, [{"role": "user", "content": ""}] * 2) == "Tuser,user"
