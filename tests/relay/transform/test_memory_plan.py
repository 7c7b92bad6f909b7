"""MemoryPlan: only tensors with disjoint live ranges share storage."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import lets, main_of, program

from ekiden.arith import evaluate
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.ir.type import TensorType, tensor_type
from ekiden.relay.expr import Call, Expr, Function, Let, Tuple, Var
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.op.vm import reshape_tensor
from ekiden.relay.transform import ManifestAlloc, MemoryPlan
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.transform.memory.manifest_alloc import size_in_bytes

pytestmark = pytest.mark.quick

N, M = SizeVar("n"), SizeVar("m")


def kernel(inputs: list[Var], out: TensorType) -> Function:
    """A primitive function with these argument and result types; its body is never looked at."""
    params = tuple(Var(f"p{i}", v.checked_type) for i, v in enumerate(inputs))
    result = Function(params, params[0], out, (), {"Primitive": 1})
    return result


def typed(name: str, kind: TensorType) -> Var:
    result = Var(name, kind)
    result.set_checked_type(kind)
    return result


@st.composite
def chains(draw: st.DrawFn, concurrent: bool = False) -> IRModule:
    """A chain of kernels with constant or symbolic sizes, views and tuples of earlier values."""
    x = typed("x", tensor_type((N, M)))
    known = [x]
    bindings: list[tuple[Var, Expr]] = []
    for i in range(draw(st.integers(2, 14))):
        inputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        if draw(st.integers(0, 5)) == 0:
            source = inputs[0]
            view = typed(f"view{i}", source.checked_type)
            value: Expr = reshape_tensor(source, source.checked_type.shape)
            bindings.append((view, value))
            known.append(view)
            continue
        shape = draw(
            st.sampled_from([(1,), (7,), (64,), (3, 100), (N,), (N, M), (2 * N, M), (N, 16)])
        )
        out = typed(f"t{i}", tensor_type(shape))
        value = Call(kernel(inputs, out.checked_type), tuple(inputs))
        value.set_checked_type(out.checked_type)
        bindings.append((out, value))
        known.append(out)
    kept = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
    result = Var("result")
    body: Expr = Let(result, Tuple(tuple(kept)), result)
    for variable, value in reversed(bindings):
        body = Let(variable, value, body)
    module = IRModule({"main": Function((x,), body, None)})
    return MemoryPlan(concurrent=concurrent)(ManifestAlloc()(module))


def _places(module: IRModule) -> dict[Var, tuple[Var, AllocTensorAttrs]]:
    """Tensor -> (storage, where in it)."""
    result = {}
    at = main_of(module).body
    while isinstance(at, Let):
        if isinstance(at.value, Call) and isinstance(at.value.attrs, AllocTensorAttrs):
            storage = at.value.args[0]
            assert isinstance(storage, Var)
            result[at.var] = (storage, at.value.attrs)
        at = at.body
    return result


def _simulate(module: IRModule, symbols: dict[SizeVar, int], order: Random | None = None) -> None:
    """Run the chain on bytes: each kernel stamps its result; what it reads must be intact.

    With `order` kernels run in any order in which they find their inputs computed.
    """
    places = _places(module)
    storages: dict[Var, np.ndarray] = {}
    stamps: dict[Var, int] = {}
    homes: dict[Expr, Var] = {}
    waiting: list[Call] = []

    def window(tensor: Var) -> np.ndarray:
        storage, attrs = places[tensor]
        offset = evaluate(attrs.offset, symbols)
        size = evaluate(size_in_bytes(TensorType(attrs.shape, attrs.dtype)), symbols)
        assert offset % 64 == 0 and offset + size <= len(storages[storage])
        return storages[storage][offset : offset + size]

    def check_intact(value: Expr) -> None:
        for item in evaluation_order(value):
            tensor = homes.get(item)
            if tensor is not None:
                assert (window(tensor) == stamps[tensor]).all(), (
                    f"{tensor.name_hint} was overwritten"
                )

    def run(call: Call) -> None:
        _, inputs, outputs = call.args
        check_intact(inputs)
        for out in outputs.fields:
            stamps[out] = len(stamps) + 1
            window(out)[:] = stamps[out]

    def is_ready(call: Call) -> bool:
        result = (homes.get(item) for item in evaluation_order(call.args[1]))
        return all(tensor is None or tensor in stamps for tensor in result)

    def run_waiting() -> None:
        while order is not None and waiting:
            call = order.choice([item for item in waiting if is_ready(item)])
            waiting.remove(call)
            run(call)

    at = main_of(module).body
    while isinstance(at, Let):
        value = at.value
        attrs = value.attrs if isinstance(value, Call) else None
        if isinstance(attrs, AllocStorageAttrs):
            storages[at.var] = np.zeros(evaluate(attrs.size, symbols), np.int64)
        elif at.var in places:
            homes[at.var] = at.var
        elif isinstance(value, Call) and value.op.name == "vm.invoke_tvm_op":
            waiting.append(value)
            if order is None:
                run(value)
        elif isinstance(value, Call) and value.args[0] in homes:
            homes[at.var] = homes[value.args[0]]
        elif isinstance(value, Tuple):
            run_waiting()
            check_intact(value)
        at = at.body


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(chains(), st.integers(0, 5), st.integers(1, 40))
def test_live_tensors_are_not_overwritten(module: IRModule, n: int, m: int) -> None:
    _simulate(module, {N: n, M: m})


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(chains(concurrent=True), st.integers(1, 40), st.randoms())
def test_kernels_may_run_in_any_order_of_their_data(
    module: IRModule, n: int, order: Random
) -> None:
    _simulate(module, {N: n, M: 3}, order)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(chains())
def test_results_have_a_storage_of_their_own(module: IRModule) -> None:
    places = _places(module)
    result = {}
    at = main_of(module).body
    while isinstance(at, Let):
        result[at.var] = at.value
        at = at.body
    leaving = [result.get(at)]
    while leaving:
        value = leaving.pop()
        for item in evaluation_order(value) if value is not None else ():
            if isinstance(item, Var) and item in places:
                assert places[item][0].name_hint != "arena"
            elif isinstance(item, Var) and item is not value and item in result:
                leaving.append(result[item])


PRIMITIVE = "fn (%p: Tensor[(16,), float32], Primitive=1) -> Tensor[(16,), float32] { tanh(%p) }"


def chain_of(count: int) -> IRModule:
    bindings = [f"let %a{i + 1} = {PRIMITIVE}(%a{i});" for i in range(count)]
    return program(f"def @main(%a0: Tensor[(16,), float32]) {{ {' '.join(bindings)} %a{count} }}")


def test_chain_needs_two_buffers() -> None:
    planned = MemoryPlan()(ManifestAlloc()(chain_of(8)))
    sizes = [
        e.attrs.size.value
        for e in evaluation_order(main_of(planned).body)
        if isinstance(e, Call) and isinstance(e.attrs, AllocStorageAttrs)
    ]
    assert sorted(sizes) == [64, 128]  # the result; two places for seven intermediate tensors


def test_arena_is_the_first_storage() -> None:
    planned = MemoryPlan()(ManifestAlloc()(chain_of(4)))
    assert lets(planned)[0] == ("arena", "memory.alloc_storage")


def test_argument_of_a_call_keeps_its_storage() -> None:
    module = program(f"""
    def @f(%x: Tensor[(16,), float32]) -> Tensor[(16,), float32] {{ %x }}
    def @main(%x: Tensor[(16,), float32]) {{
      let %a = {PRIMITIVE}(%x); let %b = @f(%a); let %c = {PRIMITIVE}(%b); let %d = {PRIMITIVE}(%c);
      let %e = {PRIMITIVE}(%d); %e }}""")
    planned = MemoryPlan()(ManifestAlloc()(module))
    places = {v.name_hint: s.name_hint for v, (s, _) in _places(planned).items()}
    assert places["a"] != "arena" and places["c"] == places["d"] == "arena"


def test_equal_symbolic_sizes_share_a_place() -> None:
    text = PRIMITIVE.replace("(16,)", "(n, 4)")
    module = program(f"""def @main(%x: Tensor[(n, 4), float32]) {{
      let %a = {text}(%x); let %b = {text}(%a); let %c = {text}(%b); let %d = {text}(%c); %d }}""")
    planned = MemoryPlan()(ManifestAlloc()(module))
    offsets = [a.offset for s, a in _places(planned).values() if s.name_hint == "arena"]
    assert str(offsets[0]) == str(offsets[2]) != str(offsets[1])
