"""Sandbox of chat templates: Jinja's immutable one, with every operation charged to a budget.

The syntax tree of a template is rewritten before it is compiled. Bodies of loops, macros and blocks
charge their nodes on every pass; literals, slices, comparisons, concatenations and outputs charge
their values. Filters, tests, calls and arithmetic operators charge through the environment:

    {% for x in xs if x %}{{ x ~ '!' }}{% endfor %}
    {% for x in xs if (enter and x) %}<enter>{{ text(text(x) ~ '!') }}{% endfor %}

The names of these charges contain a blank, so that no template refers to them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.environment import Template
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from ekiden.llm.template_budget import (
    BYTES_PER_STEP,
    FILTER_COSTS,
    MAX_NODES,
    MAX_TEMPLATE_CHARACTERS,
    METHOD_COSTS,
    TEST_COSTS,
    Cost,
    TemplateBudget,
    charge_binary_operator,
    charge_constant,
    charge_contains,
    charge_copy,
    charge_format_method,
    charge_linear,
    charge_time,
)
from ekiden.runtime.errors import InputError

__all__ = ["render_template"]

_BUDGET: ContextVar[TemplateBudget] = ContextVar("budget of a rendering")
ENTER, TEXT, CREATED, OPERAND = " enter", " text", " created", " operand"
CONTAINS, EXCLUDES = " contains", " excludes"
TEXTLESS_TYPES = (Namespace, LoopContext, Cycler, Joiner)
"""Objects that hold values of any size, which their text or attributes in a format would repeat."""


def render_template(source: str, variables: Mapping[str, Any]) -> str:
    """Render a template. Raises InputError beyond the limits of `TemplateBudget`, and what Jinja
    and the template raise.
    """
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        text = f"has {len(source):,} characters; at most {MAX_TEMPLATE_CHARACTERS:,} are allowed"
        raise InputError(f"messages: the model's chat template {text}")
    with _metering():
        template = _compile_template(source)
    with _metering():
        return template.render(variables)


@contextmanager
def _metering() -> Iterator[None]:
    token = _BUDGET.set(TemplateBudget(TEXTLESS_TYPES))
    try:
        yield
    finally:
        _BUDGET.reset(token)


@functools.lru_cache(maxsize=32)
def _compile_template(source: str) -> Template:
    environment = _environment()
    tree = environment.parse(source)
    count = sum(1 for _ in tree.find_all(nodes.Node))
    if count > MAX_NODES:
        text = f"has {count:,} syntax nodes; at most {MAX_NODES:,} are allowed"
        raise InputError(f"messages: the model's chat template {text}")
    _ChargeInserter().visit(tree)
    tree.set_environment(environment)
    return environment.from_string(tree)


class _ChargeInserter(NodeTransformer):
    """Rewrites a syntax tree so that what it does is charged."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        """Charge each iteration, and each item that a condition leaves out."""
        enter = _enter(node, [*node.body, *([node.test] if node.test else [])])
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(enter, lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(enter, node.test, lineno=node.lineno)
        return node

    def _charge_body(self, node: nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
        enter = _enter(node, node.body)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(enter, lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _charge_body  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        """Charge each value of an output."""
        self.generic_visit(node)
        is_data = [isinstance(item, nodes.TemplateData) for item in node.nodes]
        pairs = zip(node.nodes, is_data, strict=True)
        node.nodes = [item if data else _call(TEXT, item) for item, data in pairs]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:  # noqa: N802
        """Charge the operands of `~`."""
        self.generic_visit(node)
        node.nodes = [_call(TEXT, item) for item in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:  # noqa: N802
        """Charge the operands of comparisons and searches."""
        self.generic_visit(node)
        operators = [operand.op for operand in node.ops]
        if operators in (["in"], ["notin"]):
            name = CONTAINS if operators == ["in"] else EXCLUDES
            return _call(name, node.ops[0].expr, node.expr)
        if "in" in operators or "notin" in operators:
            raise TemplateSyntaxError("chained 'in' is not supported", node.lineno)
        node.expr = _charge_operand_node(node.expr)
        for operand in node.ops:
            operand.expr = _charge_operand_node(operand.expr)
        return node

    def _charge_literal(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        is_target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        is_flat = all(isinstance(item, nodes.Const) for item in node.items)
        return node if is_target or is_flat else _call(CREATED, node)

    visit_List = visit_Tuple = visit_Dict = _charge_literal  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        """Charge the copy that a slice is."""
        self.generic_visit(node)
        return _call(CREATED, node) if isinstance(node.arg, nodes.Slice) else node


def _call(name: str, value: nodes.Expr, *arguments: nodes.Expr) -> nodes.Filter:
    """Return a call of one of the charging functions: filters are called without lookups."""
    return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)


def _charge_operand_node(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _call(OPERAND, node)


def _enter(node: nodes.Node, body: Sequence[nodes.Node]) -> nodes.Filter:
    """Return the charge of one pass through statements."""
    parts = [part for child in body for part in (child, *child.find_all(nodes.Node))]
    num_bytes = sum(len(part.data) for part in parts if isinstance(part, nodes.TemplateData))
    numbers = [nodes.Const(n, lineno=node.lineno) for n in (node.lineno, len(parts), num_bytes)]
    return _call(ENTER, *numbers)


@pass_context
def _enter_body(context: Context, line: int, steps: int, num_bytes: int) -> bool:
    # Arguments are converted, since `map` calls filters of any name.
    _BUDGET.get().enter(int(line), int(steps), int(num_bytes))
    return True


@pass_context
def _charge_text(context: Context, value: object) -> object:
    _BUDGET.get().charge_text(value)
    return value


@pass_context
def _charge_operand(context: Context, value: object) -> object:
    budget = _BUDGET.get()
    budget.charge(1 + budget.measure(value) // BYTES_PER_STEP)
    return value


@pass_context
def _charge_created(context: Context, value: object) -> object:
    return _BUDGET.get().charge_value(value)


@pass_context
def _contains(context: Context, container: Any, item: object) -> bool:  # noqa: ANN401
    charge_contains(_BUDGET.get(), container, (item,))
    return item in container


@pass_context
def _excludes(context: Context, container: Any, item: object) -> bool:  # noqa: ANN401
    return not _contains(context, container, item)


def _charged(function: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
    """Return a filter or test that charges its cost before it runs, and its result."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Charge the cost to the current render's budget, run the function, charge its result."""
        budget = _BUDGET.get()
        cost(budget, args[first], [*args[first + 1 :], *kwargs.values()])
        result = function(*args, **kwargs)
        if cost is charge_constant or isinstance(result, bool):
            return result
        if not isinstance(result, Iterator):
            return budget.charge_value(result)
        # Generators would run later, uncharged, and nest.
        elements = list(result)
        iterator = iter(elements)
        budget.record_iterator(iterator, elements)
        return iterator

    return charged


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with charged operations, and the functions that transformers adds."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        tests: dict[str, Any] = {**self.tests}
        filters: dict[str, Any] = {**self.filters, "tojson": _tojson}
        self.filters = {
            **{name: _charged(filters[name], cost) for name, cost in FILTER_COSTS.items()},
            ENTER: _enter_body, TEXT: _charge_text, CREATED: _charge_created,
            OPERAND: _charge_operand, CONTAINS: _contains, EXCLUDES: _excludes,
        }  # fmt: skip
        for name, cost in TEST_COSTS.items():
            self.tests[name] = _charged(tests[name], cost)
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(
        self,
        context: Context,
        operator: str,
        left: Any,  # noqa: ANN401
        right: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Charge and compute an arithmetic operator."""
        charge_binary_operator(_BUDGET.get(), operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(
        self,
        context: Context,
        obj: Any,  # noqa: ANN401
        /,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Charge and make a call: of a macro, a function or a method."""
        budget, rest = _BUDGET.get(), [*args, *kwargs.values()]
        receiver, cost = _receiver_and_cost(obj)
        cost(budget, receiver, rest)
        result = super().call(context, obj, *args, **kwargs)
        is_new = cost is not charge_constant or isinstance(result, str)
        return budget.charge_value(result) if is_new else result

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """Return the sandboxed function of a text's `format` method, charged."""
        function = super().wrap_str_format(value)
        if function is None:
            return None
        text = str(getattr(value, "__self__", ""))

        @functools.wraps(function)
        def charged(*args: Any, **kwargs: Any) -> str:  # noqa: ANN401
            """Charge the formatted length before `str.format` runs, then that of its result."""
            budget = _BUDGET.get()
            charge_format_method(budget, text, [*args, *kwargs.values()])
            return str(budget.charge_value(function(*args, **kwargs)))

        return charged


def _receiver_and_cost(function: Any) -> tuple[Any, Cost]:  # noqa: ANN401
    """Return the object whose method a function is, and the row of its cost."""
    if function is dict:
        return (), charge_copy
    receiver = getattr(function, "__self__", None)
    if isinstance(receiver, (str, bytes, int, float, Mapping, Sequence)):
        return receiver, METHOD_COSTS.get(function.__name__, charge_linear)
    if isinstance(receiver, type):
        return (), METHOD_COSTS.get(function.__name__, charge_linear)
    return receiver, charge_constant


class GenerationTag(Extension):
    """Jinja extension for `{% generation %}answer{% endgeneration %}`, which marks responses for
    training.
    """

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: Parser) -> nodes.Scope:
        """Return the statements inside the tag, with a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    charge_time(_BUDGET.get(), form, ())
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise JSON as transformers does; Jinja's own filter escapes HTML characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@functools.cache
def _environment() -> _ChatEnvironment:
    return _ChatEnvironment()
