"""Functions for external compilers: outlined, marked extern, and inlined again."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.structural import structural_equal
from ekiden.relay.transform import (
    InferType,
    InlineCompilerFunctionsBoundTo,
    MarkCompilerFunctionsAsExtern,
    OutlineCompilerFunctionsWithExistingGlobalSymbols,
)

ATTRS = 'Inline=1, Compiler="one", global_symbol="cut", Primitive=1'
T = "Tensor[(2,), float32]"
INNER = f'%0 = fn (%a: {T}, Composite="one.add") {{ add(%a, %a) }}; %0(%y)'
PLACES = {
    "an operand": f"%1 = fn (%y: {T}, {ATTRS}) -> {T} {{ {INNER} }}; nn.relu(%1(%x))",
    "a let": f"let %f = fn (%y: {T}, {ATTRS}) -> {T} {{ {INNER} }}; nn.relu(%f(%x))",
}
OUTLINED = f"""def @main(%x: {T}) {{ nn.relu(@cut(%x)) }}
def @cut(%y: {T}, {ATTRS}) -> {T} {{ {INNER} }}"""


@pytest.mark.parametrize("place", PLACES)
def test_external_functions_become_global_by_symbol(place: str) -> None:
    module = relay.parse(f"def @main(%x: {T}) {{ {PLACES[place]} }}")
    transformed = OutlineCompilerFunctionsWithExistingGlobalSymbols("one")(module)
    assert structural_equal(InferType()(transformed), InferType()(relay.parse(OUTLINED)))
    other = OutlineCompilerFunctionsWithExistingGlobalSymbols("two")(module)
    assert structural_equal(other, module)


def test_external_functions_are_marked_extern() -> None:
    transformed = MarkCompilerFunctionsAsExtern("one")(relay.parse(OUTLINED))
    assert transformed["cut"].attrs == {"Extern": 1} and transformed["main"].attrs is None
    kept = MarkCompilerFunctionsAsExtern("two")(relay.parse(OUTLINED))
    assert kept["cut"].attr("Compiler") == "one"


def test_outlined_functions_are_inlined_again() -> None:
    module = relay.parse(OUTLINED)
    transformed = InlineCompilerFunctionsBoundTo([module.get_global_var("cut")])(module)
    expected = relay.parse(f"def @main(%x: {T}) {{ nn.relu(add(%x, %x)) }}")
    assert structural_equal(InferType()(transformed), InferType()(expected))
    actual = relay.create_executor("vm", transformed, target="llvm").evaluate()(np.float32([1, -1]))
    assert actual.numpy().tolist() == [2, 0]


def test_duplicate_symbol_is_refused() -> None:
    module = relay.parse(
        f"def @main(%x: {T}) {{ {PLACES['an operand']} }} def @cut(%y: {T}) -> {T} {{ %y }}"
    )
    with pytest.raises(ValueError, match="has a function @cut already"):
        OutlineCompilerFunctionsWithExistingGlobalSymbols("one")(module)
