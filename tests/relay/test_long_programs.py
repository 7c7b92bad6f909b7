"""Programs of 100,000 nodes in a row: nothing recurses over their depth, nothing is quadratic.

Passes and the compiler take shorter ones (still ten times Python's limit) unless
EKIDEN_LONG_TESTS=1; benchmarks/deep_programs.py measures them at full length.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from relay_programs import add_chain, let_chain

from ekiden.backend.vm.compile import compile_module
from ekiden.backend.vm.pipeline import pipeline
from ekiden.ir.json import load_json, save_json
from ekiden.ir.structural import structural_digest, structural_equal
from ekiden.relay import (
    Interpreter,
    IRModule,
    free_vars,
    infer_type,
    parse,
    post_order,
)
from ekiden.relay.analysis import find_errors
from ekiden.relay.transform import FoldConstant, FuseOps, ToANormalForm
from ekiden.relay.visitor import ExprMutator
from ekiden.target import Target

LENGTH = 100_000
COMPILED = LENGTH if os.environ.get("EKIDEN_LONG_TESTS") else 10_000


@pytest.mark.parametrize("make", [add_chain, let_chain])
def test_long_program(make: Callable[[int], IRModule]) -> None:
    module = make(LENGTH)
    main = module["main"]
    assert len(post_order(main)) >= LENGTH
    assert ExprMutator().visit(main) is main
    assert free_vars(main) == []
    infer_type(module)
    assert find_errors(module) == []
    parsed = parse(module.astext())
    loaded = load_json(save_json(module))
    assert structural_equal(parsed, module)
    assert structural_digest(loaded) == structural_digest(module)
    result = Interpreter(module).evaluate(
        "main", np.ones((1, 3), np.float32) if make is add_chain else np.ones(3, np.float32)
    )
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result.ravel(), LENGTH + 1)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("make", [add_chain, let_chain])
def test_long_program_goes_through_every_pass_to_bytecode(
    make: Callable[[int], IRModule],
) -> None:
    module, target = make(COMPILED), Target.host()
    for each in (ToANormalForm(), FoldConstant(), FuseOps()):
        assert len(post_order(each(module)["main"], into_functions=True)) >= COMPILED
    assert len(compile_module(pipeline(target)(module), target, {})) > 1000


def test_a_recursion_of_a_hundred_thousand_calls_is_interpreted() -> None:
    text = "def @main(%n: int32) -> int32 { if (%n == 0) { 0 } else { 1 + @main(%n - 1) } }"
    assert Interpreter(parse(text)).evaluate("main", np.int32(LENGTH)) == LENGTH
