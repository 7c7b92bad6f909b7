"""Every operator is documented by its declaration."""

from __future__ import annotations

import pytest

from ekiden import relay
from ekiden.ir.op import OPS
from ekiden.relay.op._document import format_signature, format_usage

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", sorted(OPS))
def test_declaration_says_what_the_operator_is(name: str) -> None:
    definition = OPS[name]
    assert len(definition.description) > 8, "a docstring of the function, or a description"
    assert definition.result, "the result in words"
    assert definition.attrs is None or definition.attrs.__doc__
    assert format_signature(definition).startswith(f"{name}(")
    assert definition.result in format_usage(definition)


def test_docstring_of_a_function_has_the_declaration() -> None:
    assert relay.op.nn.leaky_relu.__doc__ is not None
    assert relay.op.nn.leaky_relu.__doc__.endswith(
        """Operator: nn.leaky_relu(data)
Result: the type of data
Attributes (relay.attrs.LeakyReluAttrs):
    alpha: float = 0.25
Fusion: ELEMWISE"""
    )


def test_argument_of_a_variadic_operator_is_a_tuple() -> None:
    assert format_signature(OPS["concatenate"]) == "concatenate((data, ...))"
