"""Register tiles of recurrent layers: register use, and results for every tile."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.prim import SizeVar
from ekiden.kernels import FAMILIES, schedule
from ekiden.kernels.cost_model import accumulator_chains, max_register_rows
from ekiden.kernels.spaces.recurrent import register_gate_groups, state_dtype
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi.nn import recurrent
from ekiden.topi.recurrent_cells import DEFAULT_ACTIVATIONS, GATE_COUNTS, RecurrentCell
from long_runs import share

TARGET = Target.host()
LANES = TARGET.lanes("float32")
CLASSES = ("x86-64-v2", "haswell", "znver3", "skylake-avx512", "znver4", "sapphirerapids")


def cell(kind: str, given: tuple[str, ...] = (), **options: bool) -> RecurrentCell:
    return RecurrentCell(
        kind, tuple((name, 0.0, 0.0) for name in DEFAULT_ACTIVATIONS[kind]), given, **options
    )


def layer(
    result: RecurrentCell, steps: int, batch: int | SizeVar, hidden: int, lanes: int
) -> list[te.Tensor]:
    """(data, a packed weight of floats, all states)."""
    data = te.placeholder((steps, batch, result.num_gates * hidden), name="data")
    panels = -(-hidden // lanes)
    weight = te.placeholder((panels, hidden, result.num_gates * lanes), name="weight")
    return [data, weight, *recurrent(result, [data, weight])]


@pytest.mark.quick
@share(2)
@pytest.mark.parametrize("processor", CLASSES)
@pytest.mark.parametrize("kind", GATE_COUNTS)
def test_recurrent_tile_sums_stay_in_registers(processor: str, kind: str) -> None:
    """Beside the row of a panel: a tile of 6 rows and 4 gates has 24 sums, AVX2 16 registers."""
    target = Target(f"llvm -mcpu={processor} -cores=1")
    for result in (cell(kind), *([cell(kind, reset_first=True)] if kind == "gru" else [])):
        for batch in (1, 2, 7, 64, SizeVar("n")):
            _, _, states, *_ = layer(result, 3, batch, 40, target.lanes("float32"))
            rows = FAMILIES["recurrent"].default_decision(states, target, {})["rows"]
            assert isinstance(rows, int)
            dtype = state_dtype("float32", result)
            for gates in result.gate_phases:
                parts = register_gate_groups(gates, rows, target, dtype)
                assert [g for part in parts for g in part] == list(gates)
                for part in parts:
                    chains = accumulator_chains(rows, len(part), target, dtype)
                    assert rows * chains <= max_register_rows(len(part), target, dtype)


@pytest.mark.quick
def test_sequences_of_a_batch_share_what_is_loaded() -> None:
    def rows(processor: str, batch: int) -> object:
        target = Target(f"llvm -mcpu={processor} -cores=1")
        states = layer(cell("lstm"), 3, batch, 224, target.lanes("float32"))[2]
        return FAMILIES["recurrent"].default_decision(states, target, {})["rows"]

    assert [rows("znver3", batch) for batch in (1, 64)] == [1, 6]
    assert [rows("znver4", batch) for batch in (1, 64)] == [1, 6]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_no_decision_changes_a_layer(kind: str) -> None:
    steps, batch, hidden = 3, 7, LANES + 3
    output = cell(kind, reset_first=kind == "gru")
    data, weight, states, *last = layer(output, steps, batch, hidden, LANES)
    random = np.random.default_rng(0)
    arrays = [
        random.standard_normal([int(str(d)) for d in t.shape], np.float32) * np.float32(0.3)
        for t in (data, weight)
    ]
    result = []
    for rows in (1, 3, 6, 12):
        func = schedule(
            [data, weight], [states, *last], TARGET, "kernel", {"recurrent": {"rows": rows}}
        )
        kernel = load_image(link_image([compile_object([lower(func, TARGET)], TARGET)], ["kernel"]))
        actual = [np.empty([int(str(d)) for d in t.shape], "float32") for t in (states, *last)]
        kernel["kernel"](*arrays, *actual)
        result.append(actual[0])
        np.testing.assert_allclose(actual[0], result[0], rtol=1e-5, atol=1e-6, err_msg=str(rows))
    assert np.ptp(result[0]) > 0.1
