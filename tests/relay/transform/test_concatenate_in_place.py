"""ConcatenateInPlace: inputs are written to their part of the result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import evaluate, main_of, program

import ekiden
from ekiden import relay
from ekiden.backend.graph.read_bytecode import read_graph
from ekiden.backend.vm.pipeline import optimize_module
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import SizeVar
from ekiden.ir.type import tensor_type
from ekiden.relay.expr import Call, Constant, Expr, Function, Var
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs
from ekiden.relay.printer import astext
from ekiden.relay.transform import ConcatenateInPlace, InferType, ManifestAlloc
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.runtime.errors import CompileError
from ekiden.target import Target

KERNEL = "fn (%p0: Tensor[{0}, float32], Primitive=1) -> Tensor[{1}, float32] {{ {2} }}"
JOIN = (
    "fn (%p0: Tensor[{0}, float32], %p1: Tensor[{1}, float32], Primitive=1)"
    " -> Tensor[{2}, float32] {{ concatenate((%p0, %p1), axis={3}) }}"
)


def tanh(shape: str) -> str:
    return KERNEL.format(shape, shape, "tanh(%p0)")


def join(a: str, b: str, out: str, axis: int) -> str:
    return JOIN.format(a, b, out, axis)


def planned(text: str) -> IRModule:
    """The program with explicit memory, after the pass."""
    return ConcatenateInPlace()(ManifestAlloc()(program(text)))


def parts(module: IRModule) -> list[tuple[int, int, tuple[int, ...]]]:
    """(storage, offset, shape) of the tensors, in order; storages numbered by their first one."""
    numbers: dict[Expr, int] = {}
    result = []
    for call in calls(module):
        if isinstance(call.attrs, AllocTensorAttrs):
            number = numbers.setdefault(call.args[0], len(numbers))
            shape = tuple(int(str(d)) for d in call.attrs.shape)
            result.append((number, int(str(call.attrs.offset)), shape))
    return result


def calls(module: IRModule) -> list[Call]:
    return [e for e in evaluation_order(main_of(module).body) if isinstance(e, Call)]


def sizes(module: IRModule) -> list[int]:
    """Bytes of the storages."""
    attrs = [c.attrs for c in calls(module)]
    return [int(str(a.size)) for a in attrs if isinstance(a, AllocStorageAttrs)]


def kernels(module: IRModule) -> list[list[str]]:
    """The operators of each kernel that is called."""
    result = []
    for call in calls(module):
        if call.args and isinstance(call.args[0], Function):
            body = evaluation_order(call.args[0].body)
            ops = [e.op for e in body if isinstance(e, Call)]
            result.append([o.name for o in ops if isinstance(o, Op)])
    return result


A, B, WHOLE = "(1, 4, 16)", "(1, 8, 16)", "(1, 12, 16)"
OUTERMOST = f"""def @main(%x: Tensor[{A}, float32], %z: Tensor[{B}, float32]) {{
  let %a = {tanh(A)}(%x);
  let %b = {tanh(B)}(%z);
  let %y = {join(A, B, WHOLE, 1)}(%a, %b);
  let %r = {tanh(WHOLE)}(%y);
  %r
}}"""
ROW_A, ROW_B, ROWS = "(3, 5, 16)", "(3, 5, 32)", "(3, 5, 48)"
IN_ROWS = f"""def @main(%x: Tensor[{ROW_A}, float32], %z: Tensor[{ROW_B}, float32]) {{
  let %a = {tanh(ROW_A)}(%x);
  let %b = {tanh(ROW_B)}(%z);
  let %y = {join(ROW_A, ROW_B, ROWS, 2)}(%a, %b);
  let %r = {tanh(ROWS)}(%y);
  %r
}}"""


def test_concatenated_parts_share_storage() -> None:
    result = planned(OUTERMOST)
    assert kernels(result) == [["tanh"], ["tanh"], ["tanh"]]
    assert parts(result) == [
        (0, 0, (1, 4, 16)), (0, 256, (1, 8, 16)), (0, 0, (1, 12, 16)), (1, 0, (1, 12, 16)),
    ]  # fmt: skip
    assert sizes(result) == [768, 768]


def test_memory_plan_round_trips_as_text() -> None:
    text = astext(planned(OUTERMOST), show_meta_data=False)
    assert "memory.alloc_tensor(%storage, offset=256, shape=[1, 8, 16]" in text
    assert "concatenate" not in text


def test_last_axis_inputs_are_strided_views_of_the_result() -> None:
    result = planned(IN_ROWS)
    assert kernels(result) == [["tanh", "vm.part"], ["tanh", "vm.part"], ["tanh"]]
    assert parts(result) == [
        (0, 0, (3, 5, 48)), (0, 64, (3, 5, 48)), (0, 0, (3, 5, 48)), (1, 0, (3, 5, 48)),
    ]  # fmt: skip
    assert sizes(result) == [3 * 5 * 48 * 4 + 64, 3 * 5 * 48 * 4]


def test_concatenation_in_another_one_is_part_of_its_storage() -> None:
    wider = "(3, 5, 64)"
    result = planned(
        IN_ROWS.replace(
            "  let %r",
            f"""  let %w = {join(ROWS, ROW_A, wider, 2)}(%y, %c);
  let %r""",
        ).replace("  let %y", f"  let %c = {tanh(ROW_A)}(%x);\n  let %y")
    )
    assert kernels(result) == [["tanh", "vm.part"]] * 3 + [["vm.prefix", "tanh"]]
    assert [p[:2] for p in parts(result)][:5] == [(0, 0), (0, 64), (0, 192), (0, 0), (0, 0)]


NOT_MOVED = {
    "rows that end within a cache line": IN_ROWS.replace("16)", "8)").replace("48)", "40)"),
    "parts that begin within one": OUTERMOST.replace("16)", "3)"),
    "parameters": f"""def @main(%x: Tensor[{A}, float32], %z: Tensor[{B}, float32]) {{
      let %y = {join(A, B, WHOLE, 1)}(%x, %z); %y }}""",
    "the same twice": f"""def @main(%x: Tensor[{A}, float32]) {{
      let %a = {tanh(A)}(%x); let %y = {join(A, A, B, 1)}(%a, %a); %y }}""",
    "an axis in the middle": f"""def @main(%x: Tensor[(2, 4, 16), float32]) {{
      let %a = {tanh("(2, 4, 16)")}(%x); let %b = {tanh("(2, 4, 16)")}(%a);
      let %y = {join("(2, 4, 16)", "(2, 4, 16)", "(2, 8, 16)", 1)}(%a, %b); %y }}""",
    "rows that are a result of their own": IN_ROWS.replace("  %r\n", "  (%a, %b, %r)\n"),
    "rows that are seen under another shape": IN_ROWS.replace("  let %y", """
      let %v = fn (%p0: Tensor[(3, 5, 32), float32], Primitive=1, relay.reshape_only=1)
        -> Tensor[(15, 32), float32] { reshape(%p0, newshape=[15, 32]) }(%b);
      let %y""").replace("  %r\n", "  (%v, %r)\n"),
    "rows of a kernel that cannot write them": IN_ROWS.replace(
        tanh(ROW_B), KERNEL.format(ROW_B, ROW_B, "cumsum(%p0, axis=1)")),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_MOVED)
def test_larger_input_is_not_copied(what: str) -> None:
    before = ManifestAlloc()(program(NOT_MOVED[what]))
    transformed = ConcatenateInPlace()(before)
    assert str(transformed) == str(before)
    assert ["concatenate"] in kernels(transformed)


def test_smaller_input_is_copied() -> None:
    text = f"""def @main(%x: Tensor[{A}, float32], %z: Tensor[{B}, float32]) {{
      let %b = {tanh(B)}(%z); let %y = {join(A, B, WHOLE, 1)}(%x, %b); %y }}"""
    result = planned(text)
    assert kernels(result) == [["tanh"], ["copy"]]
    assert [p[:2] for p in parts(result)] == [(0, 256), (0, 0), (0, 0)]
    rows = planned(IN_ROWS.replace("(%a, %b)", "(%x, %b)"))
    assert ["copy", "vm.part"] in kernels(rows)


def test_readers_use_strided_view_of_a_part() -> None:
    text = IN_ROWS.replace("  let %y", f"  let %c = {tanh(ROW_B)}(%b);\n  let %y")
    result = planned(text.replace("  %r\n", "  (%c, %r)\n"))
    assert kernels(result)[2] == ["vm.prefix", "tanh"]


def test_shared_storage_part_is_not_reused_for_result() -> None:
    """%b dies in what follows it, but not the storage it lies in."""
    text = OUTERMOST.replace("  let %y", f"  let %c = {tanh(B)}(%b);\n  let %y")
    text = text.replace("  %r\n", "  (%c, %r)\n")
    x, z = np.ones((1, 4, 16), np.float32), np.full((1, 8, 16), 2, np.float32)
    assert_runs_as_interpreted(program(text), [x, z])


def assert_runs_as_interpreted(module: IRModule, args: list[np.ndarray]) -> None:
    exe = ekiden.compile(InferType()(module))
    result = exe(*args)
    for actual, expected in zip(
        result if isinstance(result, (list, tuple)) else [result],
        evaluate(module, args),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5, atol=1e-5)


AXES = st.sampled_from([(0, (6, 16)), (1, (1, 6, 16)), (2, (2, 3, 16)), (3, (1, 2, 3, 16))])


@st.composite
def programs(draw: st.DrawFn) -> tuple[IRModule, list[np.ndarray]]:
    """Elementwise, joining and cutting operators, in a random order, that all results are of."""
    axis, shape = draw(AXES)
    x = relay.var("x", shape=shape, dtype="float32")
    known: list[tuple[Expr, int]] = [(x, shape[axis])]
    for _ in range(draw(st.integers(2, 9))):
        value, size = draw(st.sampled_from(known))
        kind = draw(st.sampled_from(("unary", "join", "join", "cut", "nudge")))
        if kind == "join":
            others = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
            total = size + sum(n for _, n in others)
            if total <= 96:
                result = relay.concatenate([value, *(o for o, _ in others)], axis)
                known.append((result, total))
        elif kind == "cut" and size > 16:
            first = draw(st.sampled_from([0, 16]))
            known.append((relay.strided_slice(value, (first,), (first + 16,), axes=(axis,)), 16))
        elif kind == "nudge":
            known.append((relay.add(value, relay.const(np.float32(0.5))), size))
        else:
            step = draw(st.sampled_from([relay.tanh, relay.nn.softmax, relay.sigmoid]))
            known.append((step(value), size))
    results = [v for v, _ in known[-3:]]
    data = np.random.default_rng(0).standard_normal(shape, np.float32)
    return IRModule.from_expr(Function([x], relay.Tuple(results))), [data]


@settings(max_examples=12, deadline=None)
@given(programs())
def test_random_programs_mean_the_same(given: tuple[IRModule, list[np.ndarray]]) -> None:
    assert_runs_as_interpreted(InferType()(given[0]), given[1])


def branches() -> tuple[IRModule, np.ndarray]:
    """What inception networks are made of, with a layer of a dense block behind it."""
    random = np.random.default_rng(0)

    def conv(data: Expr, channels: int, size: int, depth: int) -> Expr:
        weight = random.standard_normal((channels, depth, size, size), np.float32) / 9
        side = (size - 1) // 2
        tensor = relay.nn.conv2d(
            data,
            Constant(weight),
            padding=(side, side),
            channels=channels,
            kernel_size=(size, size),
        )
        return relay.nn.relu(tensor)

    x = relay.var("x", shape=(1, 16, 12, 14), dtype="float32")
    pooled = relay.nn.max_pool2d(x, (3, 3), (1, 1), padding=(1, 1))
    joined = relay.concatenate(
        [conv(x, 32, 1, 16), conv(x, 16, 3, 16), conv(x, 48, 5, 16), conv(pooled, 16, 1, 16)], 1
    )
    layer = conv(relay.nn.relu(relay.add(joined, relay.const(np.float32(-0.3)))), 32, 3, 112)
    both = relay.concatenate([joined, layer], 1)
    out = conv(both, 16, 1, 144)
    module = InferType()(IRModule.from_expr(Function([x], out)))
    return module, random.standard_normal((1, 16, 12, 14), np.float32)


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_branches_and_dense_blocks_run_as_interpreted(executor: str) -> None:
    module, x = branches()
    exe = ekiden.compile(module, executor=executor)
    (expected,) = evaluate(module, [x])
    np.testing.assert_allclose(np.asarray(exe(x)), expected, rtol=1e-3, atol=1e-3)
    names = " ".join(exe.raw.primitives)
    assert ("concatenate" in names) == (executor == "async")


def test_network_has_no_copies_left() -> None:
    output = optimize_module(branches()[0], Target.host())
    result = kernels(output)
    assert not any("concatenate" in item for item in result)
    assert sum("vm.part" in item for item in result) == 5
    assert sum("vm.prefix" in item for item in result) == 1


def test_graphs_have_a_node_for_each_tensor() -> None:
    module, x = branches()
    (expected,) = evaluate(module, [x])
    library = relay.build(module)
    assert "concatenate" in library.get_graph_json()
    np.testing.assert_allclose(np.asarray(library(x)), expected, rtol=1e-3, atol=1e-3)


def test_symbolic_lengths_and_rows() -> None:
    n = SizeVar("n")
    long, rows = Var("x", tensor_type((1, n, 32))), Var("x", tensor_type((n, 32)))
    first = relay.nn.softmax(long)
    weights = np.random.default_rng(0).random((2, 16, 32), np.float32)
    dense = [relay.nn.dense(rows, Constant(w)) for w in weights]
    for x, joined in (
        (long, relay.concatenate([first, relay.nn.softmax(first)], 1)),
        (rows, relay.concatenate(dense, 1)),
    ):
        module = InferType()(IRModule.from_expr(Function([x], relay.nn.softmax(joined))))
        assert not any("concatenate" in k for k in kernels(optimize_module(module, Target.host())))
        for size in (1, 5):
            shape = (1, size, 32) if x is long else (size, 32)
            assert_runs_as_interpreted(module, [np.random.default_rng(0).random(shape, np.float32)])


def test_executable_with_shared_tensors_has_no_graph() -> None:
    with pytest.raises(CompileError, match="several kernels write its parts"):
        read_graph(ekiden.compile(branches()[0]).raw)
