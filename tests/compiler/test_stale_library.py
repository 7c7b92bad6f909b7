"""A library exported to the path of a loaded one is loaded anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime

X = np.zeros(2, "float32")


@pytest.mark.parametrize("suffix", [".so", ".tar", ".eki"])
def test_export_to_the_path_of_a_loaded_program_is_the_new_program(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"program{suffix}"
    x = relay.var("x", shape=(2,))
    loaded = []
    for number in (1.0, 2.0, 3.0):
        function = relay.Function([x], x + relay.const(np.float32(number)))
        executable = ekiden.compile(ekiden.IRModule.from_expr(function))
        if suffix == ".eki":
            executable.save(path)
        else:
            executable.export_library(path)
        loaded.append(runtime.load_module(path))
        assert [m["main"](X).numpy()[0] for m in loaded] == [1.0, 2.0, 3.0][: len(loaded)]
    again = runtime.load_module(path)
    assert again["main"](X).numpy()[0] == 3.0
