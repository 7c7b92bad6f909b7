"""MemoryPlan with kernel facts: results in the storage of operands, workspace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import main_of, program
from test_memory_plan_branches import M, N, _allocations, _Machine, programs

import ekiden
from ekiden import relay
from ekiden.arith import evaluate
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, const
from ekiden.relay.build_module import bind_params_by_name
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform import ManifestAlloc, MemoryPlan
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.transform.memory_plan import (
    MIN_PLANNED_WORKSPACE_BYTES,
    KernelInfoMap,
    KernelMemoryInfo,
)
from long_runs import alike

WORKSPACES = (
    const(0),
    const(MIN_PLANNED_WORKSPACE_BYTES),
    const(MIN_PLANNED_WORKSPACE_BYTES + 192),
    MIN_PLANNED_WORKSPACE_BYTES + N * 256,
    (M + N) * MIN_PLANNED_WORKSPACE_BYTES,
)


def calls_of(module: IRModule) -> list[Call]:
    """The calls of kernels in `main`."""
    return [
        e
        for e in evaluation_order(main_of(module).body)
        if isinstance(e, Call) and len(e.args) >= 3 and isinstance(e.args[0], Function)
    ]


def replaceable(function: Function) -> tuple[int, ...]:
    """Inputs of the type of the result."""
    return tuple(n for n, p in enumerate(function.params) if p.type_annotation == function.ret_type)


def facts_for(module: IRModule, workspaces: list[PrimExpr], which: list[bool]) -> KernelInfoMap:
    """Something for each kernel: of some, inputs of the result's type may be replaced."""
    result = {}
    for n, call in enumerate(calls_of(module)):
        function = call.args[0]
        assert isinstance(function, Function)
        inputs = replaceable(function) if which[n % len(which)] else ()
        result[function] = KernelMemoryInfo(workspaces[n % len(workspaces)], inputs)
    return result


@settings(max_examples=80, deadline=None)
@given(
    programs(), st.integers(0, 4), st.integers(1, 30), st.lists(st.booleans(), min_size=1),
    st.lists(st.sampled_from(WORKSPACES), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=5),
)  # fmt: skip
def test_in_place_results_do_not_overwrite_live_operands(
    module: IRModule,
    n: int,
    m: int,
    choices: list[bool],
    workspaces: list[PrimExpr],
    which: list[bool],
) -> None:
    kernels = facts_for(module, workspaces, which)
    body = main_of(MemoryPlan(kernels)(module)).body
    machine = _Machine({N: n, M: m}, choices, kernels)
    machine.check(machine.run(body))


def arenas(module: IRModule, kernels: KernelInfoMap | None = None) -> list[int]:
    """The sizes of the arenas of `main`."""
    planned = main_of(MemoryPlan(kernels)(module))
    return [evaluate(a.size, {}) for a in _allocations(planned.body) if a.arena]


K = "fn (%p: Tensor[(1600,), float32], Primitive=1) -> Tensor[(1600,), float32] { tanh(%p) }"
TWO = (
    "fn (%p: Tensor[(1600,), float32], %q: Tensor[(1600,), float32], Primitive=1)"
    " -> Tensor[(1600,), float32] { add(%p, %q) }"
)


def chain(bindings: str) -> IRModule:
    return ManifestAlloc()(program(f"def @main(%x: Tensor[(1600,), float32]) {{ {bindings} %r }}"))


def known(module: IRModule, workspace: int = 0) -> KernelInfoMap:
    return facts_for(module, [const(workspace)], [True])


def test_elementwise_chain_uses_one_storage() -> None:
    module = chain(f"let %a = {K}(%x); let %b = {K}(%a); let %c = {K}(%b); let %r = {K}(%c);")
    assert arenas(module) == [2 * 6400]
    assert arenas(module, known(module)) == [6400]


def test_live_operands_are_not_overwritten() -> None:
    module = chain(f"let %a = {K}(%x); let %b = {K}(%a); let %c = {TWO}(%a, %b); let %r = {K}(%c);")
    assert arenas(module, known(module)) == [2 * 6400]  # %b beside %a, %c in the place of one


def test_each_branch_reuses_its_last_use() -> None:
    branches = [f"{{ let %{n} = {K}(%a); let %{n}{n} = {K}(%{n}); %{n}{n} }}" for n in "bc"]
    bindings = f"let %a = {K}(%x); let %d = if (%t) {' else '.join(branches)}; let %r = {K}(%d);"
    main = f"def @main(%x: Tensor[(1600,), float32], %t: bool) {{ {bindings} %r }}"
    module = ManifestAlloc()(program(main))
    assert arenas(module, known(module)) == [6400]


def test_view_of_an_operand_counts_as_it() -> None:
    """The second operand, which the kernel reads elsewhere, lies in the bytes of the first."""
    flip = TWO.replace("add(%p, %q)", "add(%p, reverse(%q, axis=0))")
    view = K.replace("Primitive=1", "Primitive=1, relay.reshape_only=1").replace("tanh(%p)", "%p")
    module = chain(
        f"let %a = {K}(%x); let %v = {view}(%a); let %b = {flip}(%a, %v); let %r = {K}(%b);"
    )
    kernels = dict(known(module))
    (flipping,) = [f for f in kernels if len(f.params) == 2]
    kernels[flipping] = KernelMemoryInfo(const(0), (0,))
    assert arenas(module, kernels) == [2 * 6400]


def test_workspace_uses_dead_storage() -> None:
    module = chain(f"let %a = {K}(%x); let %b = {K}(%a); let %c = {K}(%b); let %r = {K}(%c);")
    calls = calls_of(module)
    facts = {c.args[0]: KernelMemoryInfo(const(0)) for c in calls}
    facts[calls[3].args[0]] = KernelMemoryInfo(const(MIN_PLANNED_WORKSPACE_BYTES))
    assert arenas(module, facts) == [
        6400 + MIN_PLANNED_WORKSPACE_BYTES
    ]  # beside %c, over the place of %b
    planned = MemoryPlan(facts)(module)
    assert [len(c.args) for c in calls_of(planned)] == [3, 3, 3, 4]


def test_little_working_memory_is_left_to_threads() -> None:
    module = chain(f"let %a = {K}(%x); let %r = {K}(%a);")
    planned = MemoryPlan(known(module, MIN_PLANNED_WORKSPACE_BYTES - 64))(module)
    assert [len(c.args) for c in calls_of(planned)] == [3, 3]


# Whole programs.


def residual(shape: str, channels: int, size: int) -> IRModule:
    """Layers of convolution, residual and activation; %a is read by two of them."""
    return program(f"""
    def @main(%x: Tensor[{shape}, float32], %w: Tensor[({channels}, {channels}, {size}, {size}),
                                                       float32]) {{
      %0 = tanh(%x);
      %1 = nn.conv2d(%0, %w, padding=[1, 1, 1, 1], kernel_size=[{size}, {size}],
                     channels={channels});
      %2 = nn.relu(add(%1, %0));
      %3 = nn.conv2d(%2, %w, padding=[1, 1, 1, 1], kernel_size=[{size}, {size}],
                     channels={channels});
      %4 = nn.relu(add(%3, %2));
      %5 = multiply(%4, sigmoid(nn.global_avg_pool2d(%4)));
      %6 = add(%5, %2);
      (%6, tanh(%5))
    }}""")


@alike(4)
@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize(
    ("shape", "channels"), [("(1, 16, 13, 11)", 16), ("(n, 16, 24, h)", 16), ("(1, 5, 9, 9)", 5)]
)
def test_results_are_those_of_the_interpreter(executor: str, shape: str, channels: int) -> None:
    module = residual(shape, channels, 3)
    rng = np.random.default_rng(0)
    dims = (1, channels, 24 if "h" in shape else 13, 11)
    if channels == 5:
        dims = (1, 5, 9, 9)
    x = rng.normal(size=dims).astype(np.float32)
    w = rng.normal(size=(channels, channels, 3, 3), scale=0.1).astype(np.float32)
    main = bind_params_by_name(main_of(module), {"w": w})
    bound = IRModule.from_expr(main)
    expected = relay.create_executor("debug", bound).evaluate()(x)
    actual = ekiden.compile(bound, executor=executor)(x)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-4)
