"""UpdateInPlace: uniquely referenced values are updated in place, shared ones are copied."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.relay.interpreter import Interpreter
from long_runs import share

ROWS, WIDTH = 40, 3
KIND = f"Tensor[({ROWS}, {WIDTH}), float32]"
LOOP = """
def @loop(%i: int64, %n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) -> KIND {
  if (less(%i, %n)) {
    %0 = scatter_nd(%t, reshape(%i, newshape=[1, 1]), %u, mode="update");
    @loop(add(%i, 1i64), %n, %0, %u)
  } else { %t }
}
"""
PROGRAMS = {
    "a loop": LOOP
    + """
def @main(%n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) -> KIND { @loop(0i64, %n, %t, %u) }
""",
    "what it began with is used later": LOOP
    + """
def @main(%n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) -> (KIND, KIND) {
  let %a = nn.relu(%t);
  let %b = @loop(0i64, %n, %a, %u);
  (%a, %b)
}
""",
    "a field of data": LOOP
    + """
type Box { Full(KIND), }
def @more(%box: Box, %u: Tensor[(1, 3), float32]) -> Box {
  match (%box) {
    Full(%t) => Full(scatter_elements(%t, cast(zeros_like(%t), dtype="int64"),
                                      add(%t, %u), axis=0, reduction="add")),
  }
}
def @main(%n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) -> (Box, Box, Box) {
  let %a = Full(nn.relu(%t));
  let %b = @more(%a, %u);
  let %c = @more(@more(%b, %u), %u);
  (%a, %b, %c)
}
""",
    "a reference": LOOP
    + """
def @put(%r: ref(KIND), %i: int64, %u: Tensor[(1, 3), float32]) -> () {
  let %t = ref_read(%r);
  ref_write(%r, scatter_nd(%t, reshape(%i, newshape=[1, 1]), %u, mode="add"))
}
def @main(%n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) -> (KIND, KIND) {
  let %r = ref(nn.relu(%t));
  let %x = @put(%r, %n, %u);
  let %before = ref_read(%r);
  let %y = @put(%r, %n, %u);
  (%before, ref_read(%r))
}
""",
    "a view of it": LOOP
    + """
def @set(%t: KIND, %u: Tensor[(1, 3), float32], %n: int64) -> (Tensor[(120), float32], KIND) {
  let %flat = reshape(%t, newshape=[120]);
  let %b = reshape(%n, newshape=[1]);
  (%flat, strided_set(%t, %u, %b, add(%b, [1i64]), [1i64]))
}
def @main(%n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) {
  @set(nn.relu(%t), %u, %n)
}
""",
    "updates made of it": LOOP
    + """
def @twice(%t: KIND, %n: int64) -> KIND {
  let %row = strided_slice(%t, begin=[0], end=[1]);
  scatter_nd(%t, reshape(%n, newshape=[1, 1]), %row, mode="add")
}
def @main(%n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) -> KIND {
  @twice(@twice(nn.relu(%t), %n), 0i64)
}
""",
    "one branch of two": LOOP
    + """
def @some(%t: KIND, %u: Tensor[(1, 3), float32], %n: int64) -> (KIND, KIND) {
  let %a = if (less(%n, 4i64)) {
    scatter_nd(%t, reshape(%n, newshape=[1, 1]), %u, mode="update")
  } else { %t };
  (%t, scatter_nd(%a, reshape(%n, newshape=[1, 1]), %u, mode="mul"))
}
def @main(%n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) { @some(nn.relu(%t), %u, %n) }
""",
}


def module_of(text: str) -> relay.IRModule:
    literal = text.replace("KIND", KIND).replace("[1i64]", "meta[relay.Constant][0]")
    one = relay.const(np.ones(1, np.int64))
    return relay.parse(
        '#[version = "0.0.5"]\n' + literal, init_meta_table={"relay.Constant": [one]}
    )


def leaves(value: object) -> list[np.ndarray]:
    result: list[np.ndarray] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        fields = getattr(item, "fields", item if isinstance(item, tuple) else None)
        if fields is None:
            result.append(np.asarray(item.numpy() if hasattr(item, "numpy") else item))
        else:
            waiting.extend(fields)
    return result


@share(4)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_every_form_gives_what_the_interpreter_gives(name: str, executor: str) -> None:
    module = module_of(PROGRAMS[name])
    exe = ekiden.compile(module, executor=executor)
    rng = np.random.default_rng(0)
    table = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    row = rng.standard_normal((1, WIDTH)).astype(np.float32)
    snapshot = table.copy()
    for n in (0, 1, 3, 7):
        expected = leaves(Interpreter(module).evaluate("main", np.int64(n), table, row))
        for _ in range(2):
            actual = leaves(exe(np.int64(n), table, row))
            for a, b in zip(actual, expected, strict=True):
                np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(table, snapshot)


def test_loop_copies_its_table_once() -> None:
    """What it needs beside the caller's is one table, not the old one and the new one."""
    rows = 100_000
    text = PROGRAMS["a loop"].replace("KIND", KIND.replace("40", f"{rows}"))
    exe = ekiden.compile(module_of(text))
    table, row = np.zeros((rows, WIDTH), np.float32), np.ones((1, WIDTH), np.float32)
    assert exe.disassemble().count("own $") == 1
    exe(np.int64(1), table, row)
    runtime.trim_pools()
    before = runtime.memory_stats().in_use
    runtime.reset_peak_memory()
    exe(np.int64(20), table, row)
    assert runtime.memory_stats().peak - before < 1.7 * table.nbytes


def test_parameters_of_the_whole_program_are_copied_by_the_kernel() -> None:
    module = module_of("""
def @main(%n: int64, %t: KIND, %u: Tensor[(1, 3), float32]) -> KIND {
  scatter_nd(%t, reshape(%n, newshape=[1, 1]), %u, mode="update")
}
""")
    assert "own $" not in ekiden.compile(module).disassemble()


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_what_is_updated_may_be_a_part_of_the_result(executor: str) -> None:
    """Its place is in the storage of a concatenation that leaves the program."""
    square, row = "Tensor[(16, 16), float32]", "Tensor[(1, 16), float32]"
    module = module_of(f"""
def @main(%t: {square}, %u: {row}, %w: {square}) {{
  let %i = cast(zeros_like(%u), dtype="int64");
  concatenate((scatter_elements(nn.relu(%t), %i, %u, axis=0), nn.dense(%t, %w)))
}}
""")
    rng = np.random.default_rng(0)
    shapes = (16, 16), (1, 16), (16, 16)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    (expected,) = leaves(Interpreter(module).evaluate("main", *inputs))
    exe = ekiden.compile(module, executor=executor)
    np.testing.assert_allclose(np.asarray(exe(*inputs)), expected, rtol=1e-5, atol=1e-5)


def test_chained_reference_updates_copy_nothing() -> None:
    """The program empties the reference, so that nobody else has the table; its second update is of
    a tensor that nobody but this function ever has."""
    rows = 100_000
    text = """
def @both(%t: Tensor[(n, 3), float32], %i: Tensor[(1, 1), int64], %u: Tensor[(1, 3), float32])
    -> Tensor[(n, 3), float32] {
  let %once = scatter_nd(%t, %i, %u, mode="add");
  scatter_nd(%once, %i, multiply(%u, take(%once, reshape(%i, newshape=[1]), axis=0)), mode="add")
}
def @put(%r: ref(Tensor[(?, 3), float32]), %i: Tensor[(1, 1), int64], %u: Tensor[(1, 3), float32])
    -> () {
  let %t = ref_read(%r);
  let %emptied = ref_write(%r, zeros(shape=[0, 3], dtype="float32"));
  ref_write(%r, @both(%t, %i, %u))
}
def @main(%x: int64) -> int64 { %x }
"""
    module = module_of(text).with_attr("entries", ("put",))
    machine = runtime.vm.VirtualMachine(ekiden.compile(module))
    table = runtime.empty((rows, WIDTH), "float32")
    table.numpy()[:] = 1
    state = runtime.Ref(table)
    del table
    inputs = np.array([[5]]), np.full((1, WIDTH), 2, np.float32)
    machine.invoke("put", state, *inputs)
    runtime.trim_pools()
    before = runtime.memory_stats().in_use
    runtime.reset_peak_memory()
    machine.invoke("put", state, *inputs)
    assert runtime.memory_stats().peak - before < 0.1 * 4 * rows * WIDTH
    result = state.value.numpy()
    np.testing.assert_array_equal(result[4:7], [[1] * 3, [33] * 3, [1] * 3])
