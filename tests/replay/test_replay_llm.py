"""The code of programs of llm is the one recorded."""

from llm_replays import PROGRAMS
from replay_checks import cases, check
from replay_programs import Program


@cases("llm", PROGRAMS)
def test_kernels_and_bytecode_are_those_recorded(name: str, program: Program) -> None:
    check(name, program)
