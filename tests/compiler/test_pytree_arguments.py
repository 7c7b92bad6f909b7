"""Nested arguments (pytrees), matched by input names without their framework."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.frontend.common.import_result import ImportResult
from ekiden.runtime.errors import InputError
from ekiden.runtime.executable.pytree import PytreeInputs, PytreeLeaf

NAMES = ("params['n'][2]", "params['w'][0]", "params['w'][1]", "x", "state.step", "state.w")


class State(NamedTuple):
    step: object
    w: object


def executable() -> ekiden.Executable:
    """Return a program of one number for each of NAMES, which it gives back."""
    variables = [relay.var(f"v{i}", relay.TensorType((), "float32")) for i in range(len(NAMES))]
    doubled = [relay.op.add(v, v) for v in variables]
    module = ekiden.IRModule({"main": relay.Function(variables, relay.Tuple(doubled))})
    outputs = tuple(f"out{i}" for i in range(len(NAMES)))
    return ekiden.compile(ImportResult(module, input_names=NAMES, output_names=outputs).to_module())


def numbers(results: Any) -> list[float]:  # noqa: ANN401
    return [float(np.asarray(result)) for result in results]


def leaf(number: float) -> Any:  # noqa: ANN401
    return np.float32(number)


PARAMS = {"w": [leaf(2), leaf(3)], "n": {2: leaf(1)}}
STATE = State(leaf(5), leaf(6))
WANTED = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def test_pytree_arguments_are_flattened_by_input_names(tmp_path: Path) -> None:
    result = executable()
    result.save(tmp_path / "nested.eki")
    for item in (result, ekiden.load(tmp_path / "nested.eki")):
        x = np.asarray(leaf(4))
        assert numbers(item(PARAMS, x, STATE)) == WANTED
        assert numbers(item(PARAMS, x, STATE, None)) == WANTED
        assert numbers(item(PARAMS, {}, x, SimpleNamespace(step=leaf(5), w=leaf(6)))) == WANTED
        assert numbers(item(PARAMS, state=STATE, x=x)) == WANTED
        assert numbers(item(*map(leaf, range(1, 7)))) == WANTED
        assert numbers(item.run_async(PARAMS, x, STATE).result()) == WANTED


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((PARAMS, leaf(4)), {}, r"expected 3 arguments \('params', 'x', 'state'\), got 2"),
        ((PARAMS, leaf(4), STATE, leaf(1)), {}, r"expected 3 arguments .*, got 4"),
        (({"w": [leaf(2), leaf(3)]}, leaf(4), STATE), {},
         r"\"params\['n'\]\[2\]\" is missing: 'params' is a dict without \['n'\]"),
        (({**PARAMS, "q": leaf(1)}, leaf(4), STATE), {}, r"no input \"params\['q'\]\""),
        ((PARAMS, leaf(4), STATE), {"y": leaf(1)}, "no argument is named 'y'"),
    ],
)  # fmt: skip
def test_argument_that_does_not_fit_is_named(
    args: tuple[object, ...], named: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        executable()(*args, **named)


def test_pytree_names_parse_to_access_steps() -> None:
    assert PytreeLeaf.parse("a['it''s']") is None or PytreeLeaf.parse('a["it\'s"]') is not None
    result = PytreeLeaf.parse("a['b.c'][0].d")
    assert result is not None
    assert [key for _, key in result.access_steps] == ["b.c", 0, None]
    for name in ("input.1", "onnx::Add_0", "a[<flat index 0>]x", "x:0", ""):
        assert PytreeLeaf.parse(name) is None
    assert PytreeInputs.from_input_names(["x", "y"]) is None
    assert PytreeInputs.from_input_names(["input.1", "p['w']"]) is None


def test_dotted_names_do_not_flatten_lists() -> None:
    nesting = PytreeInputs.from_input_names(["encoder.ids", "encoder.mask"])
    assert nesting is not None
    assert not nesting.passes_containers([[1, 2], {"a": 1}], {})
    assert nesting.passes_containers([SimpleNamespace(ids=1, mask=2)], {})
