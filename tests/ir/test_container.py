"""TVM's containers."""

import pytest

from ekiden import ir, relay


@pytest.mark.parametrize("value", [(), [1], relay.Tuple([]).fields])
def test_sequences_are_arrays(value: object) -> None:
    assert isinstance(value, ir.Array) and not isinstance(value, ir.container.Map)  # type: ignore[attr-defined]


def test_mappings_are_maps_and_strings_are_neither() -> None:
    assert isinstance({"a": 1}, ir.Map) and not isinstance({"a": 1}, ir.Array)
    assert not isinstance("abc", (ir.Array, ir.Map))
