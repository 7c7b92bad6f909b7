"""Between any two passes a module is well formed, and its text and JSON read back as the same."""

from __future__ import annotations

import numpy as np
import pytest
from relay_programs import PROGRAMS

from ekiden.backend.vm.pipeline import vm_pipeline
from ekiden.ir.instrument import Verify
from ekiden.ir.json import load_json, save_json
from ekiden.ir.module import IRModule
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import PassContext, PassInfo, PassInstrument
from ekiden.relay import Function, const, op, parse, var
from ekiden.relay.analysis import verify
from ekiden.target import Target

pytestmark = pytest.mark.quick


class ReadBack(PassInstrument):
    """Prints, saves and reads back the module after each pass."""

    def __init__(self) -> None:
        self.passes: list[str] = []

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Compare."""
        self.passes.append(info.name)
        text = module.astext()
        assert structural_equal(parse(text), module), f"after {info.name}:\n{text}"
        assert structural_equal(load_json(save_json(module)), module), info.name


def _convolution() -> IRModule:
    x = var("x", shape=(1, 3, 8, 8))
    weight = const(np.full((4, 3, 3, 3), 0.5, np.float32))
    scale = const(np.full((4, 1, 1), 2, np.float32))
    y = op.nn.conv2d(x, weight, padding=1, channels=4, kernel_size=(3, 3))
    y = op.nn.relu(op.add(op.multiply(y, scale), scale))
    return IRModule.from_expr(Function((x,), op.nn.global_avg_pool2d(y), None))


PLAIN = [
    "graph with a shared value",
    "attributes",
    "choice",
    "mutual recursion",
    "a local function that calls itself",
]
MODULES = {name: parse(PROGRAMS[name]) for name in PLAIN} | {"convolution": _convolution()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_every_pass_makes_a_module_that_reads_back(name: str) -> None:
    read_back = ReadBack()
    with PassContext(instruments=[Verify(verify), read_back]):
        vm_pipeline(Target.host())(MODULES[name])
    assert read_back.passes[-3:] == ["UpdateInPlace", "OwnResults", "vm"]
