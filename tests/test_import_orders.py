"""Any module may be the first that is imported: packages load their names late, so that what a
circle of imports needs may not be there in one order of many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ekiden
from long_runs import sizes

PACKAGE = Path(ekiden.__file__).parent
RUN = """
import importlib, os, sys
import numpy
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name.startswith("ekiden"):
                os._exit(1)
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        print(name)
"""


def modules() -> list[str]:
    """All of the package but what runs when it is imported."""
    result = (path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = (".".join(path.parts).removesuffix(".__init__") for path in result)
    return sorted(name for name in names if not name.endswith("__main__"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@sizes("count", 12, 10_000)
def test_any_module_may_be_imported_first(count: int) -> None:
    names = modules()
    some = names[:: max(1, len(names) // count)]
    ran = subprocess.run([sys.executable, "-c", RUN, *some], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout == "", ran.stdout + ran.stderr
