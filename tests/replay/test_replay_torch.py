"""The code of programs of torch is the one recorded."""

from replay_checks import cases, check
from replay_programs import Program
from torch_replays import PROGRAMS


@cases("torch", PROGRAMS)
def test_kernels_and_bytecode_are_those_recorded(name: str, program: Program) -> None:
    check(name, program)
