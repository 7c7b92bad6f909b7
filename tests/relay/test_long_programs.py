"""Programs of 100,000 nodes in a row: nothing recurses over their depth, nothing is quadratic.

Usually shorter ones, still some times Python's limit; benchmarks/deep_programs.py measures passes
and the compiler at full length.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from relay_programs import add_chain, let_chain

from ekiden.backend.vm.compile import compile_module
from ekiden.backend.vm.pipeline import vm_pipeline
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
from long_runs import alike, sizes

lengths = sizes("length", 4_000, 100_000)


@alike(2)
@pytest.mark.parametrize("make", [add_chain, let_chain])
@lengths
def test_long_program_parses_prints_and_infers(
    make: Callable[[int], IRModule], length: int
) -> None:
    module = make(length)
    main = module["main"]
    assert len(post_order(main)) >= length
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
    np.testing.assert_array_equal(result.ravel(), length + 1)


@alike(2)
@pytest.mark.parametrize("make", [add_chain, let_chain])
@sizes("length", 1_500, 100_000)
def test_long_program_goes_through_every_pass_to_bytecode(
    make: Callable[[int], IRModule], length: int
) -> None:
    module, target = make(length), Target.host()
    for item in (ToANormalForm(), FoldConstant(), FuseOps()):
        assert len(post_order(item(module)["main"], into_functions=True)) >= length
    assert len(compile_module(vm_pipeline(target)(module), target, {})) > 1000


@lengths
def test_deep_recursion_is_interpreted(length: int) -> None:
    text = "def @main(%n: int32) -> int32 { if (%n == 0) { 0 } else { 1 + @main(%n - 1) } }"
    assert Interpreter(parse(text)).evaluate("main", np.int32(length)) == length
