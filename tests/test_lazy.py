"""Modules and names that load when they are first used, also by several threads at once."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ekiden
from ekiden import _lazy
from ekiden._lazy import (
    LazyModule,
    _modules_in_import,
    exported_names,
    load_deferred,
    load_module,
    register_deferred_modules,
)

pytestmark = pytest.mark.quick

Events = dict[str, threading.Event]
Put = Callable[[str, str], Events]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts modules into `ekiden`, whose bodies have events by name."""
    monkeypatch.setattr(ekiden, "__path__", [*ekiden.__path__, str(tmp_path)])
    events: Events = {}
    monkeypatch.setattr(sys, "_events", events, raising=False)

    def make(name: str, body: str) -> Events:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"import sys\nevents = sys._events\n{body}\n")
        importlib.invalidate_caches()
        return events

    for item in ("begun", "inside", "go"):
        events[item] = threading.Event()
    return make


def test_rows_wait_for_modules_that_another_thread_imports(put: Put) -> None:
    """They were missing: what one thread had begun to import was nobody else's to wait for."""
    events = put("late_rows", "events['begun'].set()\nevents['go'].wait(20)\nwhole = True")
    register_deferred_modules(["ekiden.late_rows"])
    thread = threading.Thread(target=load_deferred)
    thread.start()
    assert events["begun"].wait(20)
    releasing = threading.Timer(0.1, events["go"].set)
    releasing.start()
    load_deferred()
    assert sys.modules["ekiden.late_rows"].whole
    thread.join()
    releasing.join()


def test_module_may_ask_for_all_rows_while_it_is_imported(put: Put) -> None:
    put("late_asking", "from ekiden._lazy import load_deferred\nload_deferred()\nrow = 1")
    register_deferred_modules(["ekiden.late_asking"])
    load_deferred()
    assert sys.modules["ekiden.late_asking"].row == 1
    assert "ekiden.late_asking" not in _lazy._DEFERRED_MODULES


def test_package_and_a_module_of_it_are_imported_by_two_threads(put: Put) -> None:
    """Each would wait for the other: one of them got half a module."""
    body = "events['begun'].set()\nevents['inside'].wait(0.2)\nname = 1\nfrom ekiden.late_package "
    events = put("late_package/__init__", f"{body} import part")
    put("late_package/part", "events['inside'].set()\nfrom ekiden.late_package import name")
    with ThreadPoolExecutor(1) as pool:
        package = pool.submit(load_module, "ekiden.late_package")
        assert events["begun"].wait(20)
        part: Any = load_module("ekiden.late_package.part")
        assert part.name == 1 and package.result() is sys.modules["ekiden.late_package"]


def test_module_that_is_being_imported_may_load_module(put: Put) -> None:
    """Who holds a lock of importlib's never waits for one that others hold while they import."""
    events = put("late_first", "events['begun'].set()\nevents['inside'].wait(20)\nwhole = 1")
    put("late_other", "pass")
    body = "from ekiden._lazy import load_module\nevents['go'].set()"
    put("late_second", f"{body}\nload_module('ekiden.late_other')\nevents['inside'].set()")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load_module, "ekiden.late_first")  # has the lock, and waits
        assert events["begun"].wait(20)
        second = pool.submit(importlib.import_module, "ekiden.late_second")
        assert second.result(20).__name__ == "ekiden.late_second"
        assert first.result(20).whole == 1


def test_module_that_uses_a_package_is_loaded_while_another_thread_loads_the_package(
    put: Put,
) -> None:
    """importlib alone gives the package half a module: each thread would wait for the other."""
    body = "events['begun'].set()\nevents['inside'].wait(0.2)\nlater = 1"
    body = f"{body}\nevents['go'].wait(0.2)\nfrom ekiden.late_house.room import whole"
    events = put("late_house/__init__", body)
    body = "events['inside'].set()\nfrom ekiden.late_house import later\nwhole = True"
    put("late_house/room", body)
    put("late_guest", "from ekiden.late_house.room import whole")
    with ThreadPoolExecutor(1) as pool:
        house = pool.submit(load_module, "ekiden.late_house")
        assert events["begun"].wait(20)
        assert load_module("ekiden.late_guest").whole
        assert house.result().room.whole


def test_exec_waits_for_other_threads_imports() -> None:
    """Programs that run tests or notebooks execute code in a namespace that is no module."""
    names: dict[str, Any] = {"__name__": "no_module", "running": _modules_in_import}
    exec("found = running()", names)
    assert "no_module" not in names["found"]


PACKAGE = """
from ekiden._lazy import attach
EXPORTED_NAMES = {"products": "dense", "conv": "conv2d deconv:transposed", "": "layers:conv"}
__getattr__, __dir__ = attach(__name__, EXPORTED_NAMES)
"""


@pytest.fixture
def package(put: Put) -> Any:  # noqa: ANN401
    """Return a package with names of its modules."""
    put("late_nn/__init__", PACKAGE)
    put("late_nn/products", "def dense(): return 'dense'\nunits = 3")
    put("late_nn/conv", "def conv2d(): return 'conv2d'\ndef transposed(): return 'transposed'")
    yield importlib.import_module("ekiden.late_nn")
    for name in [name for name in sys.modules if name.startswith("ekiden.late_nn")]:
        del sys.modules[name]
    vars(ekiden).pop("late_nn", None)


def test_module_is_imported_when_its_first_name_is_used(package: Any) -> None:  # noqa: ANN401
    assert "ekiden.late_nn.conv" not in sys.modules
    assert package.conv2d() == "conv2d" and package.deconv() == "transposed"
    assert "ekiden.late_nn.conv" in sys.modules and "ekiden.late_nn.products" not in sys.modules
    assert "conv2d" in vars(package), "a name is looked up once"


def test_modules_of_a_package_are_its_attributes(package: Any) -> None:  # noqa: ANN401
    assert package.layers is package.conv is sys.modules["ekiden.late_nn.conv"]


def test_names_that_are_not_loaded_are_listed(package: Any) -> None:  # noqa: ANN401
    assert exported_names(package.EXPORTED_NAMES) == ["conv2d", "deconv", "dense", "layers"]
    assert {"conv2d", "deconv", "dense", "layers"} <= set(dir(package))


@pytest.mark.parametrize("name", ["missing", "__wrapped__", "__all__"])
def test_unknown_name_raises_an_error_with_the_package(
    package: Any,  # noqa: ANN401
    name: str,
) -> None:
    with pytest.raises(AttributeError, match=f"'ekiden.late_nn' has no attribute '{name}'"):
        getattr(package, name)


def test_all_names_of_a_package_may_stand_in_one_of_its_modules(put: Put) -> None:
    put(
        "late_rest/__init__",
        """
from ekiden._lazy import attach
__getattr__, __dir__ = attach(__name__, {}, rest="names")
""",
    )
    put("late_rest/names", "__all__ = ['one', 'two']\none, two, other = 1, 2, 3")
    package: Any = importlib.import_module("ekiden.late_rest")
    assert "ekiden.late_rest.names" not in sys.modules
    assert package.one == 1 and package.__all__ == ["one", "two"]
    assert {"one", "two"} <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        package.missing  # noqa: B018


def test_module_that_is_no_package_may_have_names_of_others(put: Put) -> None:
    put(
        "late_face",
        """
from ekiden._lazy import attach
__getattr__, __dir__ = attach(__name__, {"ekiden.error": "TVMError"})
""",
    )
    face: Any = importlib.import_module("ekiden.late_face")
    assert face.TVMError is ekiden.TVMError
    with pytest.raises(AttributeError, match="'ekiden.late_face' has no attribute 'missing'"):
        face.missing  # noqa: B018


def test_lazy_module_stands_for_the_module(put: Put) -> None:
    put("late_whole", "value = [1]")
    module: Any = LazyModule("ekiden.late_whole")
    assert "ekiden.late_whole" not in sys.modules
    assert module.value == [1] and module.value is sys.modules["ekiden.late_whole"].value
    with pytest.raises(AttributeError, match="'ekiden.late_whole' has no attribute 'missing'"):
        module.missing  # noqa: B018
