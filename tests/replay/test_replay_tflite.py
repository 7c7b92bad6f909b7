"""The code of programs of tflite is the one recorded."""

from replay_checks import cases, check
from replay_programs import Program
from tflite_replays import PROGRAMS


@cases("tflite", PROGRAMS)
def test_kernels_and_bytecode_are_those_recorded(name: str, program: Program) -> None:
    check(name, program)
