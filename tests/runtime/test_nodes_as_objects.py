"""Nodes of the compiler are objects for every language: type key, parent, fields, JSON."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import sysconfig
import threading
import weakref
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import IRModule, relay, runtime, tir
from ekiden.ir.node import NODE_KEYS, NODE_TYPES
from ekiden.ir.structural import structural_equal
from ekiden.runtime.errors import EkidenError

SOURCE = Path(__file__).parents[2] / "examples/c/rebuild.c"

PRINTED = """\
one object
relay.Function < ir.BaseFunc < ir.RelayExpr < ir.Node < ffi.Object
  params: ek.ADT
  body: relay.Call
  ret_type: None
  type_params: ek.ADT
  attrs: None
  span: None
json: long, equal
0.0498 0.1353 0.3679 1.0000 2.7183 7.3891
"""


def test_c_program_rebuilds_a_function(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    include = Path(sysconfig.get_path("include"))
    folder, version = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDVERSION")
    if compiler is None or not (include / "Python.h").exists():
        pytest.skip("needs a C compiler and the headers of Python: install gcc, python3-dev")
    if not list(Path(folder).glob(f"libpython{version}.so*")):
        pytest.skip("needs Python as a shared library, to start it from C")
    library = runtime.library_path()
    link = [str(library), f"-Wl,-rpath,{library.parent}", f"-L{folder}", f"-lpython{version}"]
    command = [
        compiler,
        "-std=c11",
        "-Wall",
        "-Wextra",
        f"-I{include}",
        f"-I{runtime.include_dir()}",
    ]
    program = tmp_path / "rebuild"
    completed = subprocess.run(
        [*command, str(SOURCE), *link, f"-Wl,-rpath,{folder}", "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    done = subprocess.run([program, sys.executable], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (PRINTED, "")


def through(value: object) -> object:
    """What comes back of a value that a function of the runtime was given and gave back."""
    return runtime.convert(lambda it: it)(value)


def test_node_comes_back_as_itself() -> None:
    x = relay.var("x", shape=(2, 3))
    module = IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))
    for item in (x, module, module["main"], tir.Add(tir.Var("i"), 1), relay.TensorType((2,))):
        assert through(item) is item
        assert runtime.convert(item) is item


def test_every_class_of_nodes_is_a_type_with_its_fields() -> None:
    for key, cls in NODE_TYPES.items():
        assert runtime.is_defined(key), key
        assert NODE_KEYS[cls] == key
    assert runtime.is_defined("IRModule")
    assert not runtime.is_defined("ir.RelayExpr"), "an abstract class makes no objects"


def test_node_is_made_by_type_key_and_fields() -> None:
    x = runtime.make_node("relay.Var", name_hint="x", type_annotation=relay.TensorType((2,)))
    assert isinstance(x, relay.Var) and x.name_hint == "x"
    call = runtime.make_node("relay.Call", op=relay.op.op.get("exp"), args=[x])
    function = runtime.make_node("relay.Function", params=[x], body=call)
    assert structural_equal(function, relay.Function([x], relay.exp(x)))
    loop = runtime.make_node(
        "tir.For", loop_var=tir.Var("i"), min=tir.IntImm(0), extent=tir.IntImm(2), kind="PARALLEL",
        body=tir.Evaluate(tir.IntImm(0)),
    )  # fmt: skip
    assert isinstance(loop, tir.For) and loop.kind is tir.ForKind.PARALLEL
    constant = runtime.make_node("relay.Constant", data=runtime.tensor(np.arange(3)))
    assert isinstance(constant, relay.Constant) and constant.data.tolist() == [0, 1, 2]
    module = runtime.make_node("IRModule", functions={relay.GlobalVar("main"): function})
    assert isinstance(module, IRModule) and module["main"] is function


def test_invalid_node_fields_are_refused() -> None:
    with pytest.raises(TypeError, match=r"make 'relay\.Var': field 'name_hint' is missing"):
        runtime.make_node("relay.Var")
    with pytest.raises(TypeError, match="'color' is not one of its fields"):
        runtime.make_node("relay.Var", name_hint="x", color=1)
    with pytest.raises(ValueError, match=r"no type has the key 'relay\.Vor'"):
        runtime.make_node("relay.Vor")
    with pytest.raises(TypeError, match="made by the runtime"):
        runtime.make_node("ir.RelayExpr")
    with pytest.raises((TypeError, KeyError, EkidenError)):
        runtime.make_node("tir.For", loop_var=1, min=1, extent=1, kind="SIDEWAYS", body=None)


def test_variables_are_distinct_map_keys() -> None:
    """Nodes are equal to themselves alone, also where the runtime compares: maps."""
    a, b = relay.var("x"), relay.var("x")
    back = through({a: 1, b: 2})
    assert isinstance(back, dict) and back[a] == 1 and back[b] == 2
    assert len(back) == 2


def test_handle_lifetime_follows_its_references() -> None:
    kept: list[object] = []
    hold = runtime.convert(lambda it: kept.append(runtime.convert(lambda: it)))
    x = relay.var("x")
    gone = weakref.ref(x)
    hold(x)
    del x
    gc.collect()
    assert gone() is not None and kept[0]() is gone()  # type: ignore[operator]
    kept.clear()
    gc.collect()
    assert gone() is None


def test_nodes_are_shared_between_threads() -> None:
    x = relay.var("x")
    wrong: list[object] = []

    def work() -> None:
        for _ in range(2000):
            if through([x])[0] is not x:  # type: ignore[index]
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_functions_of_the_compiler_for_other_languages() -> None:
    x = relay.var("x", shape=(2,))
    function = relay.Function([x], relay.exp(x))
    ask = ekiden.get_global_func
    assert ask("ir.GetOp")("exp") is function.body.op
    text = ask("node.SaveJSON")(function)
    assert ask("node.StructuralEqual")(ask("node.LoadJSON")(text), function) is True
    assert ask("node.StructuralHash")(function) == ask("node.StructuralHash")(function)
    import_module("ekiden.relay.backend.build")
    module = ask("ekiden.compile")(function, "llvm")
    np.testing.assert_allclose(module["main"](np.zeros(2, "float32")).numpy(), [1, 1])
