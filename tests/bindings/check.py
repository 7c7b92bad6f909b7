"""What the script in data cannot say: wrong handles, callbacks that throw, threads that end, calls
after the module is dropped. `python check.py FOLDER` ends well, by errors of Python alone."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from ekiden import runtime


def refused(kind: type[BaseException], call: Callable[[], object]) -> None:
    """A call must raise."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} expected")


def throwing(x: object) -> object:
    """A callback that throws."""
    raise KeyError("from a callback")


def main(folder: Path) -> None:
    """All of it."""
    scaled = runtime.load_module(folder / "scaled.eki")["main"]  # it keeps its module
    module = runtime.load_module(folder / "scaled.eki")
    x, scale = runtime.tensor(np.ones((1, 4), "float32")), runtime.tensor(np.float32(2))
    for wrong in (object(), module, scaled, 2**80):
        refused(Exception, functools.partial(scaled, wrong, scale))
    refused(AttributeError, lambda: module["nothing"])
    refused(Exception, lambda: scaled())
    bad = cast(Any, runtime.convert(throwing))
    refused(KeyError, lambda: bad(1))

    def leave() -> None:
        runtime.register_func("check.left", lambda n: n + 1)
        refused(KeyError, lambda: bad(1))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert cast(Any, runtime.get_global_func("check.left"))(1) == 2
    runtime.remove_global_func("check.left")
    refused(Exception, lambda: runtime.get_global_func("check.left"))
    assert float(np.asarray(cast(Any, scaled(x, scale))[1]).ravel()[0]) == 8
    print("right")


main(Path(sys.argv[1]))
