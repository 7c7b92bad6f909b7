"""Executables and the virtual machine from Python, on small programs."""

import gc
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from ekiden import runtime
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.runtime.debug.instructions import Instruction, encode, make_instruction
from ekiden.runtime.errors import EkidenError, InputError, LoadError

pytestmark = pytest.mark.quick


def program(
    code: Sequence[Instruction],
    *,
    params: Sequence[str] = ("x",),
    registers: int = 0,
    constants: Sequence[np.ndarray] = (),
    primitives: Sequence[str] = (),
) -> runtime.Executable:
    """An executable whose one function, main, has this code, and at most three locals."""
    words = sum(len(encode(item)) for item in code)
    count = registers or len(params) + min(3, words)
    main = VMFunction("main", tuple(params), count, tuple(code))
    return runtime.Executable.from_bytes(write_executable([main], constants, primitives, b"", {}))


def run(executable: runtime.Executable, *args: object) -> object:
    return runtime.VirtualMachine(executable).invoke("main", *args)


IDENTITY = [make_instruction("Ret", src=0)]
PAIR = [make_instruction("AllocADT", dst=2, tag=0, fields=(0, 1)), make_instruction("Ret", src=2)]


@pytest.fixture
def double() -> Iterator[str]:
    """A primitive written in Python: out = 2 * x."""

    @runtime.register_func("test.double")
    def _double(x: runtime.Tensor, out: runtime.Tensor) -> None:
        np.multiply(x.numpy(), 2, out=out.numpy())

    yield "test.double"
    runtime.remove_global_func("test.double")


DOUBLE = [
    make_instruction("LoadConsti", dst=1, value=16),
    make_instruction("AllocStorage", dst=2, size=1, size_index=0, alignment=64, device=0),
    make_instruction("AllocTensor", dst=3, storage=2, offset=0, dtype="float32", shape=(4,)),
    make_instruction("InvokePacked", packed_index=0, output_size=1, args=(0, 3)),
    make_instruction("Ret", src=3),
]


@pytest.mark.parametrize("make_argument", [np.asarray, runtime.tensor, runtime.from_dlpack])
def test_returned_argument_is_a_copy(
    make_argument: Callable[[np.ndarray], object],
) -> None:
    array = np.arange(4, dtype="float32")
    out = run(program(IDENTITY), make_argument(array))
    assert isinstance(out, runtime.Tensor)
    assert not out.readonly
    assert not np.shares_memory(out.numpy(), array)
    np.testing.assert_array_equal(out.numpy(), array)


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0)[::2], np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">f4")],
    ids=["strided", "transposed", "big-endian"],
)
def test_inputs_that_compiled_code_cannot_read_are_copied(array: np.ndarray) -> None:
    out = run(program(IDENTITY), array)
    assert out.is_contiguous
    np.testing.assert_array_equal(out.numpy(), array)
    strided = run(program(IDENTITY), runtime.from_dlpack(np.arange(6.0)[::2]))
    assert strided.is_contiguous


def test_tuples_go_in_and_come_out() -> None:
    a, b = np.zeros(2), np.ones((0, 3))
    out = run(program(PAIR, params=("a", "b")), a, b)
    assert isinstance(out, tuple)
    assert [item.shape for item in out] == [(2,), (0, 3)]
    field = [make_instruction("GetField", dst=1, object=0, index=1), make_instruction("Ret", src=1)]
    np.testing.assert_array_equal(run(program(field), (a, np.arange(6.0)[::2])), [0.0, 2.0, 4.0])


def test_values_of_data_types_keep_their_tag() -> None:
    code = [make_instruction("AllocADT", dst=1, tag=3, fields=(0,)), make_instruction("Ret", src=1)]
    assert run(program(code), 5) == runtime.ADT(3, (5,))
    tag = [make_instruction("GetTag", dst=1, object=0), make_instruction("Ret", src=1)]
    assert run(program(tag), runtime.ADT(7, ())) == 7


def test_many_arguments_spill_to_the_heap() -> None:
    params = tuple(f"x{i}" for i in range(20))
    code = [make_instruction("Ret", src=19)]
    assert run(program(code, params=params, registers=20), *range(20)) == 19


def test_primitives_are_called(double: str) -> None:
    machine = runtime.VirtualMachine(program(DOUBLE, primitives=[double]))
    for start in range(3):
        out = machine.invoke("main", np.arange(start, start + 4, dtype="float32"))
        np.testing.assert_array_equal(out.numpy(), 2 * np.arange(start, start + 4))


def test_result_outlives_machine_and_executable(double: str) -> None:
    out = run(program(DOUBLE, primitives=[double]), np.ones(4, "float32"))
    gc.collect()
    np.testing.assert_array_equal(out.numpy(), 2)


def test_exception_in_a_primitive_comes_through() -> None:
    error = ZeroDivisionError("from inside")

    def fail(*args: object) -> None:
        raise error

    runtime.register_func("test.fail", fail)
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            run(program(DOUBLE, primitives=["test.fail"]), np.ones(4, "float32"))
    finally:
        runtime.remove_global_func("test.fail")
    assert caught.value is error


def test_wrong_arguments_are_named() -> None:
    executable = program(IDENTITY)
    with pytest.raises(InputError, match="executable: no function named 'f'; there are main"):
        runtime.VirtualMachine(executable).invoke("f")
    with pytest.raises(Exception, match="main"):
        run(executable)
    with pytest.raises(TypeError, match="argument 0: expected None"):
        run(executable, {1})
    with pytest.raises(TypeError):
        runtime.VirtualMachine(None)


def test_executable_describes_functions_and_constants() -> None:
    constant = np.arange(3, dtype="int64")
    code = [make_instruction("LoadConst", dst=1, const_index=0), make_instruction("Ret", src=1)]
    executable = program(code, constants=[constant], params=("left",), registers=5)
    assert executable.globals == ["main"]
    assert executable.params("main") == ["left"]
    assert executable.primitives == []
    assert executable.code("main") == (5, [word for item in code for word in encode(item)])
    assert isinstance(executable.metadata, dict)
    np.testing.assert_array_equal(executable.constants[0].numpy(), constant)
    assert executable.constants[0].readonly
    with pytest.raises(InputError, match="there are main"):
        executable.code("other")


def test_constant_outlives_its_executable() -> None:
    code = [make_instruction("LoadConst", dst=1, const_index=0), make_instruction("Ret", src=1)]
    out = run(program(code, constants=[np.arange(1000.0)]), 0)
    gc.collect()
    np.testing.assert_array_equal(out.numpy(), np.arange(1000.0))


def test_saved_file_equals_bytes(tmp_path: Path) -> None:
    executable = program(IDENTITY)
    path = tmp_path / "program.eki"
    path.write_bytes(executable.to_bytes())
    loaded = runtime.Executable.load(path)
    path.unlink()
    assert loaded.to_bytes() == executable.to_bytes()
    assert pickle.loads(pickle.dumps(loaded)).to_bytes() == executable.to_bytes()
    assert run(loaded, 3) == 3


def test_every_prefix_is_refused() -> None:
    data = program(DOUBLE, primitives=["p"], constants=[np.arange(3.0)]).to_bytes()
    for size in range(len(data)):
        with pytest.raises(LoadError):
            runtime.Executable.from_bytes(data[:size])
    with pytest.raises(LoadError):
        runtime.Executable.from_bytes(data + b"\0")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises((OSError, EkidenError), match="missing.eki"):
        runtime.Executable.load(tmp_path / "missing.eki")


def test_other_threads_run_while_a_machine_runs(double: str) -> None:
    """A machine of another thread may call Python in the middle of a run of ours."""
    executable = program(DOUBLE, primitives=[double])
    results: list[float] = []

    def work(value: float) -> None:
        machine = runtime.VirtualMachine(executable)
        source = np.full(4, value, "float32")
        outs = [machine.invoke("main", source).numpy()[0] for _ in range(200)]
        results.extend(set(outs))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0.0, 2.0, 4.0, 6.0]


def test_machine_serves_one_caller_at_a_time() -> None:
    inside, leave = threading.Event(), threading.Event()

    def wait(*args: object) -> None:
        inside.set()
        leave.wait(60)

    runtime.register_func("test.wait", wait)
    try:
        machine = runtime.VirtualMachine(program(DOUBLE, primitives=["test.wait"]))
        source = np.ones(4, "float32")
        thread = threading.Thread(target=machine.invoke, args=("main", source))
        thread.start()
        assert inside.wait(60)
        with pytest.raises(RuntimeError):
            machine.invoke("main", source)
        leave.set()
        thread.join()
        machine.invoke("main", source)
    finally:
        leave.set()
        runtime.remove_global_func("test.wait")


def test_warm_runs_allocate_nothing(double: str) -> None:
    machine = runtime.VirtualMachine(program(DOUBLE, primitives=[double]))
    source = runtime.tensor(np.ones(4, "float32"))
    for _ in range(10):
        machine.invoke("main", source)
    before = runtime.allocation_count()
    for _ in range(1000):
        machine.invoke("main", source)
    assert runtime.allocation_count() == before


def test_nested_data_given_twice() -> None:
    """The object of a value is kept; arrays inside are read anew."""
    kept, changing = runtime.tensor(np.ones(2, np.float32)), np.ones(2, np.float32)
    for leaf in (kept, changing):
        value = runtime.ADT(2, (runtime.ADT(1, (leaf, 7)), (leaf, runtime.ADT(3))))
        machine = runtime.VirtualMachine(program(IDENTITY))
        for factor in (1, 3):
            np.asarray(leaf)[:] = factor
            result = machine.invoke("main", value)
            assert isinstance(result, runtime.ADT)
            assert (result.tag, result[0].tag, result[0][1], result[1][1].tag) == (2, 1, 7, 3)
            for actual in (result[0][0], result[1][0]):
                np.testing.assert_array_equal(actual.numpy(), [factor] * 2)


def test_shared_parts_of_data_stay_equal_in_other_values() -> None:
    part = runtime.ADT(4, (runtime.tensor(np.ones(1)), runtime.ADT(5)))
    machine = runtime.VirtualMachine(program(IDENTITY))
    for tag in (1, 2):
        result = machine.invoke("main", runtime.ADT(tag, (part, part)))
        assert result.tag == tag and result[0].tag == result[1].tag == 4


def test_columns_in_data_are_copied() -> None:
    column = runtime.tensor(np.arange(6.0).reshape(3, 2))
    strided = np.asarray(column)[:, 1]
    value = runtime.ADT(1, (runtime.ADT(2, (strided,)),))
    machine = runtime.VirtualMachine(program(IDENTITY))
    for _ in range(2):
        result = machine.invoke("main", value)
        np.testing.assert_array_equal(result[0][0].numpy(), [1.0, 3.0, 5.0])


def test_arguments_are_read_in_place() -> None:
    plain, tensor = np.arange(6.0).reshape(2, 3), runtime.tensor(np.ones(3))
    lying = [plain, tensor, np.ones((), bool), np.zeros((0, 2), np.float16)]
    assert all(a is b for a, b in zip(runtime.run_arguments(lying), lying, strict=True))
    swapped = plain.astype(plain.dtype.newbyteorder())
    for other in (plain.T, plain[:, ::2], swapped, [1.0, 2.0], np.float32(3)):
        (result,) = runtime.run_arguments((other,))
        assert isinstance(result, runtime.Tensor)
        np.testing.assert_array_equal(result.numpy(), np.asarray(other))
    for none in (np.array(["a"]), np.array([None]), np.ones(2, "M8[s]")):
        with pytest.raises(TypeError, match="expected an array of numbers"):
            runtime.run_arguments([none])
