"""Bytecode in Python: instructions, words, executables, disassembly."""

import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.runtime import Executable, Tensor, VirtualMachine, register_func
from ekiden.runtime.binding.opcodes import OPCODES, Opcode
from ekiden.runtime.debug.disassemble import disassemble, print_instruction
from ekiden.runtime.debug.instructions import (
    Instruction,
    decode,
    dtype_code,
    dtype_name,
    encode,
    make_instruction,
)
from ekiden.runtime.errors import InputError, InternalError, LoadError, RunError

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]


def operand(letter: str) -> st.SearchStrategy[int | tuple[int, ...]]:
    """Any operand that the letter can hold, valid for a program or not."""
    word = st.integers(-(2**31), 2**31 - 1)
    wide = st.integers(-(2**63), 2**63 - 1)
    kinds: dict[str, st.SearchStrategy[int | tuple[int, ...]]] = {
        "R": st.lists(word).map(tuple),
        "V": st.lists(word).map(tuple),
        "J": st.lists(word).map(tuple),
        "L": st.lists(wide).map(tuple),
        "I": wide,
        "t": st.tuples(word, word, word),
    }
    return kinds.get(letter, word)


def instruction(opcode: Opcode) -> st.SearchStrategy[Instruction]:
    """Any instruction of a kind."""
    letters = opcode.format.replace("n", "")
    return st.tuples(*map(operand, letters)).map(lambda item: Instruction(opcode.name, item))


@pytest.mark.slow
@given(st.lists(st.sampled_from(OPCODES).flatmap(instruction)))
def test_decode_undoes_encode(code: list[Instruction]) -> None:
    assert decode([word for item in code for word in encode(item)]) == code


def test_decode_accepts_unsigned_words() -> None:
    assert decode([12, 2**32 - 3]) == [make_instruction("Goto", offset=-3)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([32], "decoding word 0: an opcode below 32 expected, got 32"),
        ([0, 1], "decoding Move: 3 words expected, got 2"),
        ([7, 0, 0, -1], "decoding AllocADT: a list length >= 0 expected, got -1"),
    ],
)
def test_decode_refuses_invalid_words(words: list[int], message: str) -> None:
    with pytest.raises(LoadError) as error:
        decode(words)
    assert str(error.value) == message


def test_encode_checks_operands() -> None:
    with pytest.raises(InternalError, match=r"Move: expected 2 operands \(dst, src\), got 1"):
        encode(Instruction("Move", (1,)))
    with pytest.raises(InternalError, match="a 32-bit integer expected where"):
        encode(Instruction("Move", (2**31, 0)))
    with pytest.raises(InternalError, match="Ret: expected the operands src, got dst"):
        make_instruction("Ret", dst=1)


def test_moved_registers_and_switches_are_printed() -> None:
    assert print_instruction(make_instruction("Move", dst=1, src=-3)) == "move $1 ~$2"
    call = make_instruction("Invoke", dst=4, func=0, args=(1, -1))
    assert print_instruction(call) == "invoke $4 VMFunc[0]($1, ~$0)"
    switch = make_instruction("Switch", value=0, offsets=(2, -5))
    assert encode(switch) == [28, 0, 2, 2, -5]


def test_words_are_those_of_the_format() -> None:
    alloc = make_instruction(
        "AllocTensor", dst=3, storage=2, offset=2**32 + 5, dtype="float32", shape=(7, 9)
    )
    assert encode(alloc) == [5, 3, 2, 5, 1, 2, 32, 1, 2, 7, 0, 9, 0]
    assert encode(make_instruction("LoadConsti", dst=0, value=-2)) == [14, 0, -2, -1]
    assert alloc["shape"] == (7, 9)


@pytest.mark.parametrize(
    "dtype", "bool int8 int64 uint8 uint64 float16 float32 float64 bfloat16 complex64".split()
)
def test_dtype_names_round_trip(dtype: str) -> None:
    assert dtype_name(*dtype_code(dtype)) == dtype


def test_dtype_must_have_a_width() -> None:
    with pytest.raises(InternalError, match="a dtype such as 'float32' expected, got 'float'"):
        dtype_code("float")


PRINTED = {
    "move $1 $2": make_instruction("Move", dst=1, src=2),
    "ret $4": make_instruction("Ret", src=4),
    "invoke $1 VMFunc[2]($3, $4)": make_instruction("Invoke", dst=1, func=2, args=(3, 4)),
    "invoke_closure $1 $2($3)": make_instruction("InvokeClosure", dst=1, closure=2, args=(3,)),
    "invoke_packed PackedFunc[7] (in: $0, $1, out: $2)": make_instruction(
        "InvokePacked", packed_index=7, output_size=1, args=(0, 1, 2)
    ),
    "alloc_tensor $3 $2 64 [1, 2] bfloat16": make_instruction(
        "AllocTensor", dst=3, storage=2, offset=64, dtype="bfloat16", shape=(1, 2)
    ),
    "alloc_tensor_reg $3 $2 $4[1] $5[2:+3] int64": make_instruction(
        "AllocTensorReg",
        dst=3,
        storage=2,
        offset=4,
        offset_index=1,
        shape=5,
        shape_index=2,
        ndim=3,
        dtype="int64",
    ),
    "alloc_data $1 tag(2) [$3, $4]": make_instruction("AllocADT", dst=1, tag=2, fields=(3, 4)),
    "alloc_closure $1 VMFunc[0]($2)": make_instruction("AllocClosure", dst=1, func=0, free=(2,)),
    "get_field $1 $2[3]": make_instruction("GetField", dst=1, object=2, index=3),
    "if $1 $2 1 3": make_instruction("If", test=1, target=2, true_offset=1, false_offset=3),
    "load_const $1 Const[2]": make_instruction("LoadConst", dst=1, const_index=2),
    "goto -3": make_instruction("Goto", offset=-3),
    "get_tag $1 $2": make_instruction("GetTag", dst=1, object=2),
    "load_consti $1 -5": make_instruction("LoadConsti", dst=1, value=-5),
    "fatal": make_instruction("Fatal"),
    "alloc_storage $1 $2[3] 64 0": make_instruction(
        "AllocStorage", dst=1, size=2, size_index=3, alignment=64, device=0
    ),
    "shape_of $1 $2": make_instruction("ShapeOf", dst=1, tensor=2),
    "reshape_tensor $1 $2 $3[0:+4]": make_instruction(
        "ReshapeTensor", dst=1, tensor=2, shape=3, shape_index=0, ndim=4
    ),
    "device_copy $1 $2 0 0": make_instruction(
        "DeviceCopy", dst=1, src=2, dst_device=0, src_device=0
    ),
    "kill_register $1": make_instruction("KillRegister", dst=1),
    "invoke_tail VMFunc[2]($3, $4)": make_instruction("InvokeTail", func=2, args=(3, 4)),
    "invoke_closure_tail $1($2)": make_instruction("InvokeClosureTail", closure=1, args=(2,)),
    "alloc_ref $1 ~$0": make_instruction("AllocRef", dst=1, value=-1),
    "read_ref $1 $0": make_instruction("ReadRef", dst=1, ref=0),
    "write_ref $1 $0": make_instruction("WriteRef", ref=1, value=0),
    "invoke_packed_value $1 PackedFunc[3]($0, $2)": make_instruction(
        "InvokePackedValue", dst=1, packed_index=3, args=(0, 2)
    ),
    "read_element $1 $0[4]": make_instruction("ReadElement", dst=1, tensor=0, index=4),
    "switch $0 [2, -5]": make_instruction("Switch", value=0, offsets=(2, -5)),
    "alloc_arena $2 $1[3] 64 0": make_instruction(
        "AllocArena", dst=2, size=1, size_index=3, alignment=64, device=0
    ),
    "invoke_packed PackedFunc[7] (in: $0, out: $1) scratch $2": make_instruction(
        "InvokePackedScratch", packed_index=7, output_size=1, args=(0, 1), scratch=2
    ),
    "own $3 ~$1 0": make_instruction("Own", dst=3, tensor=-2, device=0),
}


@pytest.mark.parametrize("text", PRINTED)
def test_instructions_print(text: str) -> None:
    assert print_instruction(PRINTED[text]) == text


def test_every_instruction_is_in_the_printing_test() -> None:
    assert [item.name for item in PRINTED.values()] == [opcode.name for opcode in OPCODES]


CHOOSE = VMFunction(
    "choose",
    ("test", "x"),
    3,
    (
        make_instruction("LoadConsti", dst=2, value=1),
        make_instruction("If", test=0, target=2, true_offset=1, false_offset=2),
        make_instruction("Ret", src=1),
        make_instruction("Goto", offset=1),
        make_instruction("Fatal"),
    ),
)


def constants() -> list[np.ndarray]:
    """Constants of every kind that a model may bring."""
    return [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array(3, np.int64),
        np.zeros((0, 4), np.uint8),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
        np.array([True, False]),
        np.arange(5, dtype=">i4"),
        np.arange(100, dtype=np.float16)[::7],
    ]


def write(metadata: dict[str, object] | None = None) -> bytes:
    return write_executable(
        [CHOOSE], constants(), ["ek.runtime.allocation_count"], b"", metadata or {}
    )


def test_writing_is_deterministic() -> None:
    forward = {"producer": "ekiden", "variants": ["llvm"]}
    backward = dict(reversed(forward.items()))
    assert write({**forward}) == write({**backward})


def test_runtime_reads_what_was_written() -> None:
    metadata: dict[str, object] = {"producer": "ekiden 駅伝", "target": "llvm"}
    data = write(metadata)
    executable = Executable.from_bytes(data)
    assert executable.globals == ["choose"]
    assert executable.params("choose") == ["test", "x"]
    assert executable.primitives == ["ek.runtime.allocation_count"]
    assert executable.metadata == metadata
    assert executable.to_bytes() == data
    n_registers, words = executable.code("choose")
    assert (n_registers, tuple(decode(words))) == (3, CHOOSE.code)


def test_constants_keep_dtype_shape_and_values() -> None:
    read = Executable.from_bytes(write()).constants
    for tensor, expected in zip(read, constants(), strict=True):
        array = tensor.numpy()
        assert array.shape == expected.shape
        assert array.dtype == expected.dtype.newbyteorder("=")
        assert array.tobytes() == expected.astype(array.dtype).tobytes()
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable


def test_strings_are_no_constants() -> None:
    with pytest.raises(InternalError, match="writing constants: numbers expected, got dtype str"):
        write_executable([CHOOSE], [np.array(["a"])], [], b"", {})


def test_saved_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "model.eki"
    path.write_bytes(write())
    assert Executable.load(str(path)).to_bytes() == write()


def test_every_prefix_is_refused() -> None:
    data = write()
    for size in range(len(data)):
        with pytest.raises(LoadError):
            Executable.from_bytes(data[:size])


def test_another_version_is_refused() -> None:
    data = bytearray(write())
    data[8:12] = struct.pack("<I", 2)
    with pytest.raises(LoadError) as error:
        Executable.from_bytes(bytes(data))
    assert str(error.value) == "load executable: header: format version 1 expected, got 2"


def test_assembled_programs_run() -> None:
    machine = VirtualMachine(Executable.from_bytes(write()))
    x = np.ones(3, np.float32)
    result = machine.invoke("choose", 1, x)
    assert isinstance(result, Tensor)
    np.testing.assert_array_equal(result.numpy(), x)
    with pytest.raises(RunError, match="Fatal: the program cannot go on"):
        machine.invoke("choose", 2, x)
    with pytest.raises(InputError, match="call 'choose': 2 arguments expected, got 1"):
        machine.invoke("choose", 1)


def test_tuples_come_back_as_tuples() -> None:
    code = (
        make_instruction("LoadConst", dst=1, const_index=1),
        make_instruction("AllocADT", dst=1, tag=0, fields=(0, 1)),
        make_instruction("AllocADT", dst=1, tag=0, fields=(1, 0)),
        make_instruction("Ret", src=1),
    )
    data = write_executable([VMFunction("main", ("x",), 2, code)], constants(), [], b"", {})
    (x, three), again = VirtualMachine(Executable.from_bytes(data)).invoke("main", np.ones(2))
    np.testing.assert_array_equal(x.numpy(), np.ones(2))
    assert three.numpy() == 3
    assert again.shape == (2,)


def test_errors_of_python_functions_come_through() -> None:
    def refuse(x: Tensor) -> None:
        raise KeyError(f"shape {x.shape}")

    register_func("ekiden.test.refuse", refuse, override=True)
    code = (
        make_instruction("InvokePacked", packed_index=0, output_size=0, args=(0,)),
        make_instruction("Ret", src=0),
    )
    functions = [VMFunction("main", ("x",), 1, code)]
    data = write_executable(functions, [], ["ekiden.test.refuse"], b"", {})
    with pytest.raises(KeyError, match=r"shape \(2,\)"):
        VirtualMachine(Executable.from_bytes(data)).invoke("main", np.ones(2))


def test_disassembly_shows_functions_jumps_and_primitives() -> None:
    assert disassemble(Executable.from_bytes(write())) == (
        "VMFunc[0]: choose(test, x)\n"
        "  # 3 registers, 5 instructions\n"
        "  0: load_consti $2 1\n"
        "  1: if $0 $2 1 2  # to 2, 3\n"
        "  2: ret $1\n"
        "  3: goto 1  # to 4\n"
        "  4: fatal\n"
        "\n"
        "PackedFunc[0]: ek.runtime.allocation_count\n"
    )


def test_generated_files_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/generate_opcodes.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
