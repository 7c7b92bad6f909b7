"""MemoryPlan through branches and recursion: no live tensor is overwritten on any path."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import main_of, program
from test_memory_plan import M, N, kernel, typed

from ekiden.arith import evaluate
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.type import TensorType, tensor_type
from ekiden.relay.expr import Call, Function, If, Let, Tuple, Var
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.transform import ManifestAlloc, MemoryPlan
from ekiden.relay.transform.language.let_chains import build_lets
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.transform.memory import offset_assignment
from ekiden.relay.transform.memory.manifest_alloc import size_in_bytes
from ekiden.relay.transform.memory_plan import KernelInfoMap

SHAPES = [(1,), (40,), (300,), (N,), (N, M), (2 * N, M)]


class _Maker:
    """Draws chains of kernels, tuples and branches."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.made = 0
        self.condition = typed("c", TensorType((), "bool"))

    def name(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def chain(self, known: list[Var], kind: TensorType, depth: int) -> RelayExpr:
        """Some bindings, then a value of a type."""
        known = list(known)
        bindings: list[tuple[Var, RelayExpr]] = []
        for _ in range(self.draw(st.integers(0, 4))):
            shape = self.draw(st.sampled_from(SHAPES))
            bindings.append(self.binding(known, tensor_type(shape), depth))
            known.append(bindings[-1][0])
        bindings.append(self.binding(known, kind, depth))
        result = bindings[-1][0]
        like = [v for v in known if v.checked_type == kind]
        if like and self.draw(st.booleans()):
            result = self.draw(st.sampled_from(like))
        return build_lets(bindings, result)

    def binding(self, known: list[Var], kind: TensorType, depth: int) -> tuple[Var, RelayExpr]:
        result = typed(self.name(), kind)
        if depth and self.draw(st.integers(0, 2)) == 0:
            branches = [self.chain(known, kind, depth - 1) for _ in range(2)]
            value: RelayExpr = If(self.condition, *branches)
        else:
            inputs = self.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
            value = Call(kernel(inputs, kind), tuple(inputs))
        value.set_checked_type(kind)
        return result, value


@st.composite
def programs(draw: st.DrawFn) -> IRModule:
    maker = _Maker(draw)
    x = typed("x", tensor_type((N, M)))
    body = maker.chain([x], tensor_type(draw(st.sampled_from(SHAPES))), 2)
    return ManifestAlloc()(IRModule({"main": Function((maker.condition, x), body, None)}))


class _Machine:
    """Runs a planned body on bytes: each kernel stamps its result, and what it reads must bear the
    stamp of the kernel that made it.
    """

    def __init__(
        self, symbols: dict[SizeVar, int], choices: list[bool], kernels: KernelInfoMap | None = None
    ) -> None:
        self.symbols = symbols
        self.kernels = kernels or {}
        self.choices = choices
        self.taken = 0
        self.storages: dict[RelayExpr, np.ndarray] = {}
        self.windows: dict[RelayExpr, np.ndarray] = {}
        self.stamps: dict[int, int] = {}

    def value(self, expr: PrimExpr) -> int:
        return int(evaluate(expr, self.symbols))

    def run(self, body: RelayExpr) -> RelayExpr:
        while isinstance(body, Let):
            self.bind(body.var, body.value)
            body = body.body
        return body

    def bind(self, variable: Var, value: RelayExpr) -> None:
        match value:
            case If():
                choice = self.choices[self.taken % len(self.choices)]
                self.taken += 1
                result = self.run(value.true_branch if choice else value.false_branch)
                if result in self.windows:
                    self.windows[variable] = self.windows[result]
            case Call(attrs=AllocStorageAttrs(size=size)):
                self.storages[variable] = np.zeros(self.value(size), np.int64)
            case Call(attrs=AllocTensorAttrs() as attrs):
                size = self.value(size_in_bytes(TensorType(attrs.shape, attrs.dtype)))
                offset = self.value(attrs.offset)
                storage = self.storages[value.args[0]]
                assert offset % 64 == 0 and offset + size <= len(storage)
                self.windows[variable] = storage[offset : offset + size]
            case Call(args=(function, inputs, outputs, *scratch)):
                for item in scratch:
                    self.windows[item][:] = 0
                self.invoke(function, inputs, outputs)

    def invoke(self, function: RelayExpr, inputs: RelayExpr, outputs: RelayExpr) -> None:
        """What the kernel may not replace must be there when it has written its result."""
        assert isinstance(inputs, Tuple) and isinstance(outputs, Tuple)
        for field in inputs.fields:
            self.check(field)
        for field in outputs.fields:
            window = self.windows[field]
            window[:] = len(self.stamps) + 1
            self.stamps[id(window)] = len(self.stamps) + 1
        known = self.kernels.get(function)
        replaced = known.in_place if known is not None else ()
        for number, field in enumerate(inputs.fields):
            if number not in replaced:
                self.check(field)

    def check(self, tensor: RelayExpr) -> None:
        window = self.windows.get(tensor)
        if window is not None:
            assert (window == self.stamps[id(window)]).all(), f"{tensor} was overwritten"


@settings(max_examples=60, deadline=None)
@given(programs(), st.integers(0, 4), st.integers(1, 30), st.lists(st.booleans(), min_size=1))
def test_no_live_tensor_is_overwritten_on_any_path(
    module: IRModule, n: int, m: int, choices: list[bool]
) -> None:
    body = main_of(MemoryPlan()(module)).body
    machine = _Machine({N: n, M: m}, choices)
    machine.check(machine.run(body))


@settings(max_examples=20, deadline=None)
@given(programs())
def test_plan_needs_no_more_than_a_storage_for_each_tensor(module: IRModule) -> None:
    before, after = (
        sum(
            _rounded(int(evaluate(a.size, {N: 3, M: 50}))) for a in _allocations(main_of(item).body)
        )
        for item in (module, MemoryPlan()(module))
    )
    assert after <= before


def _rounded(size: int) -> int:
    return (size + 63) // 64 * 64


def _allocations(body: RelayExpr) -> list[AllocStorageAttrs]:
    return [
        e.attrs
        for e in evaluation_order(body)
        if isinstance(e, Call) and isinstance(e.attrs, AllocStorageAttrs)
    ]


def _storages(module: IRModule, name: str = "main") -> list[tuple[int, bool]]:
    """Sizes of the storages of a function, and whether they are arenas."""
    function = module[name]
    assert isinstance(function, Function)
    return [(a.size.value, a.arena) for a in _allocations(function.body)]


K = "fn (%p: Tensor[(16,), float32], Primitive=1) -> Tensor[(16,), float32] { tanh(%p) }"
BIG = (
    "fn (%p: Tensor[(16,), float32], Primitive=1) -> Tensor[(1600,), float32]"
    " { tile(%p, reps=[100]) }"
)
SUM = (
    "fn (%p: Tensor[(1600,), float32], Primitive=1) -> Tensor[(16,), float32]"
    " { sum(reshape(%p, newshape=[100, 16]), axis=[0]) }"
)


def test_branches_share_bytes() -> None:
    module = program(f"""def @main(%c: bool, %x: Tensor[(16,), float32]) {{
      let %a = {K}(%x);
      let %y = if (%c) {{ let %b = {BIG}(%a); let %d = {SUM}(%b); %d }}
               else {{ let %e = {BIG}(%x); let %f = {SUM}(%e); %f }};
      let %g = {K}(%y); %g }}""")
    # %a while %b is made, then the result of either branch: beside one big tensor
    assert sorted(_storages(MemoryPlan()(ManifestAlloc()(module)))) == [
        (64, False),
        (6400 + 64, True),
    ]


def test_branch_local_value_is_dead_in_other_branch() -> None:
    module = program(f"""def @main(%c: bool, %x: Tensor[(16,), float32]) {{
      let %a = {BIG}(%x);
      let %y = if (%c) {{ let %b = {SUM}(%a); %b }}
               else {{ let %e = {BIG}(%x); let %f = {SUM}(%e); %f }};
      let %g = {K}(%y); %g }}""")
    sizes = _storages(MemoryPlan()(ManifestAlloc()(module)))
    assert sorted(sizes) == [(64, False), (6400 + 64, True)]


def test_branch_results_outlive_the_branch() -> None:
    module = program(f"""def @main(%c: bool, %x: Tensor[(16,), float32]) {{
      let %y = if (%c) {{ let %b = {K}(%x); %b }} else {{ let %e = {K}(%x); %e }}; %y }}""")
    assert _storages(MemoryPlan()(ManifestAlloc()(module))) == [(64, False), (64, False)]


def test_recursive_calls_do_not_share_an_arena() -> None:
    module = program(f"""def @main(%c: bool, %x: Tensor[(16,), float32])
        -> Tensor[(16,), float32] {{
      let %y = if (%c) {{
        let %a = {BIG}(%x); let %b = {SUM}(%a); let %d = @main(%c, %b);
        let %e = {BIG}(%d); let %f = {SUM}(%e); let %g = {K}(%f); %g
      }} else {{ %x }}; %y }}""")
    planned = MemoryPlan()(ManifestAlloc()(module))
    # around the call: an arena before it, one after it; its argument and the result of the branch
    assert sorted(_storages(planned)) == [
        (64, False),
        (64, False),
        (6400, True),
        (6400 + 64, True),
    ]


def test_fields_of_a_local_tuple_keep_it_alive() -> None:
    module = program(f"""def @main(%x: Tensor[(16,), float32]) {{
      let %a = {BIG}(%x); let %t = (%a, %x);
      let %s = match (%t) {{ (%p, _) => {{ let %q = {SUM}(%p); %q }} }};
      let %b = {BIG}(%s); let %r = {SUM}(%b); %r }}""")
    planned = MemoryPlan()(ManifestAlloc()(module))
    assert sorted(_storages(planned)) == [(64, False), (6400 + 64, True)]


def _chain(shapes: list[tuple[PrimExpr | int, ...]]) -> IRModule:
    """A kernel for each shape, each on the result of the one before."""
    x = at = typed("x", tensor_type((N, M)))
    bindings: list[tuple[Var, RelayExpr]] = []
    for i, shape in enumerate(shapes):
        result = typed(f"t{i}", tensor_type(shape))
        call = Call(kernel([at], result.checked_type), (at,))
        call.set_checked_type(result.checked_type)
        bindings.append((result, call))
        at = result
    return ManifestAlloc()(IRModule({"main": Function((x,), build_lets(bindings, at), None)}))


def test_sizes_that_cannot_be_compared_share_bytes() -> None:
    """What lies above one of two in turn is above the larger."""
    module = _chain([(N, N), (N, 8), (M, M), (N, 8), (N, 8)])
    planned = main_of(MemoryPlan()(module)).body
    arena = next(a.size for a in _allocations(planned) if a.arena)
    for n, m in ((1, 50), (50, 1), (16, 16)):
        assert evaluate(arena, {N: n, M: m}) == _rounded(4 * max(n, m) ** 2) + _rounded(32 * n)
        machine = _Machine({N: n, M: m}, [True])
        machine.check(machine.run(planned))


def test_offset_expressions_stay_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then sizes that are equal follow each other."""
    monkeypatch.setattr(offset_assignment, "MAX_OFFSET_NODES", 10)
    module = _chain([(N, N), (N, 8), (M, M), (N, 8), (N, N), (M, M), (N, 8)])
    planned = main_of(MemoryPlan()(module)).body
    arena = next(a.size for a in _allocations(planned) if a.arena)
    sizes = _rounded(4 * 30 * 30) + 2 * _rounded(32 * 30) + _rounded(4 * 7 * 7)
    assert evaluate(arena, {N: 30, M: 7}) <= sizes + _rounded(4 * 7 * 7)
    machine = _Machine({N: 30, M: 7}, [True])
    machine.check(machine.run(planned))


def test_late_sizes_get_separate_storage() -> None:
    late = SizeVar("late")
    module = _chain([(4,), (late,), (late,), (4,), (4,)])
    result = _allocations(main_of(MemoryPlan()(module)).body)
    assert sum(a.arena for a in result) == 1
    assert not any(a.arena for a in result if not isinstance(a.size, IntImm))
