"""The code of programs of onnx is the one recorded."""

import pytest
from onnx_replays import PROGRAMS
from replay_checks import cases, check
from replay_programs import Program

from long_runs import alike

pytestmark = pytest.mark.early  # some cases are marked: pytest.mark.quick


@alike(3)
@cases("onnx", PROGRAMS)
def test_kernels_and_bytecode_are_those_recorded(name: str, program: Program) -> None:
    check(name, program)
