"""Generic functions dispatch on the current target."""

from __future__ import annotations

import pytest

from ekiden import target
from ekiden.runtime.errors import InputError
from ekiden.target import Target


def test_current_target_chooses_an_implementation() -> None:
    @target.generic_func
    def tile(rows: int) -> str:
        return f"default {rows}"

    @tile.register(["cuda", "opencl"])
    def tile_for_threads(rows: int) -> str:
        return f"threads {rows}"

    tile.register(lambda rows: f"arm {rows}", "arm_cpu")
    assert tile(2) == "default 2" and tile.__name__ == "tile"
    with Target("cuda"):
        assert tile(3) == "threads 3" == tile_for_threads(3)
    with target.arm_cpu("rasp4b64"):
        assert tile(4) == "arm 4" == tile.get_packed_func()(4)
    with Target("llvm"):
        assert tile(5) == "default 5"
    with pytest.raises(InputError, match="'tile': 'cuda' is registered already"):
        tile.register(lambda rows: "", "cuda")
    tile.register(lambda rows: "other", "cuda", allow_override=True)
    with Target("cuda"):
        assert tile(3) == "other"


def test_generic_functions_have_names() -> None:
    name = "tests.target.generic"
    with pytest.raises(InputError, match="no implementation without a target"):
        target.get_native_generic_func(name)(1)

    @target.override_native_generic_func(name)
    def increment(x: int) -> int:
        return x + 1

    assert increment(1) == target.get_native_generic_func(name)(1) == 2
    with pytest.raises(InputError, match="it has a default already"):
        increment.set_default(lambda x: x)
