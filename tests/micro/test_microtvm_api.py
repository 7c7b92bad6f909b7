"""microTVM's API: board targets, templates, sessions, header files of data."""

from __future__ import annotations

import pathlib
import tarfile
from typing import Any, cast

import numpy as np
import pytest

import ekiden as tvm
import ekiden.micro.testing
from ekiden import micro, relay
from ekiden.micro.testing.utils import create_header_file
from ekiden.relay.backend import Executor, Runtime
from ekiden.runtime.errors import InputError
from ekiden.runtime.executor import AotModule


def program() -> micro.MicroProgram:
    """Two inputs, of which the difference is the result."""
    x, y = relay.var("x", shape=(2, 3)), relay.var("y", shape=(2, 3))
    module = tvm.IRModule.from_expr(relay.Function((x, y), relay.subtract(x, y)))
    with tvm.transform.PassContext(opt_level=3, config={"tir.disable_vectorize": True}):
        built = relay.build(
            module,
            target=micro.testing.get_target("crt"),
            runtime=Runtime("crt", {"system-lib": True}),
            executor=Executor("aot"),
        )
    assert isinstance(built, micro.MicroProgram)
    return built


def test_project_of_the_platform_crt_runs_here_by_names(tmp_path: pathlib.Path) -> None:
    template = pathlib.Path(micro.get_microtvm_template_projects("crt"))
    options = {"verbose": False, "workspace_size_bytes": 1 << 20}
    project = micro.generate_project(template, program(), tmp_path / "project", options)
    project.build()
    project.flash()
    one, two = np.full((2, 3), 5, "float32"), np.full((2, 3), 2, "float32")
    with micro.Session(project.transport()) as session:
        executor = session.create_aot_executor()
        executor.get_input("y").copyfrom(two)
        executor.set_input("x", one)
        executor.run()
        np.testing.assert_array_equal(executor.get_output(0).numpy(), one - two)
        with pytest.raises(InputError, match="no input is named 'z'; there are x, y"):
            executor.set_input("z", one)
        module = AotModule(cast(Any, session.create_aot_executor()))
        module.get_input("x").copyfrom(two)
        module.run(y=one)
        np.testing.assert_array_equal(module.get_output(0).numpy(), two - one)
        assert module.get_num_inputs() == 2
    with pytest.raises(InputError, match="Session: a transport expected"):
        micro.Session()
    with micro.Session(transport_context_manager=project.transport()) as session:
        assert session.run(one, two)[0].shape == (2, 3)


def test_too_small_workspace_is_an_error(tmp_path: pathlib.Path) -> None:
    x = relay.var("x", shape=(1, 64))
    w = relay.const(np.ones((64, 64), "float32"))
    body = relay.nn.dense(relay.nn.softmax(relay.nn.dense(x, w)), w)
    large = micro.compile(tvm.IRModule.from_expr(relay.Function((x,), body)))
    with pytest.raises(InputError, match="workspace_size_bytes: the model needs .* 1 are given"):
        micro.generate_project("host", large, tmp_path / "p", {"workspace_size_bytes": 1})


def test_platforms_without_a_template_say_what_there_is() -> None:
    with pytest.raises(InputError, match="'zephyr': there is none: 'crt' is this machine"):
        micro.get_microtvm_template_projects("zephyr")


def test_boards_have_the_targets_of_their_processors() -> None:
    target = micro.testing.get_target("zephyr", "nucleo_l4r5zi")
    assert target.kind.name == "c" and target.mcpu == "cortex-m4"
    with pytest.raises(InputError, match="board 'nothing' is not known; there are disco_l475vg"):
        micro.testing.get_target("zephyr", "nothing")
    assert tvm.target.micro("stm32f746xx").model == "stm32f746xx"
    with pytest.raises(ValueError, match="no model 'pdp11'"):
        tvm.target.micro("pdp11")


def test_header_of_an_array_has_its_elements(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "extra.tar"
    with tarfile.open(path, "w") as archive:
        create_header_file("sample", np.array([[1, -2]], "int8"), "include", archive)
        with pytest.raises(InputError, match="got float64"):
            create_header_file("sample", np.zeros(1), "include", archive)
    with tarfile.open(path) as archive:
        file = archive.extractfile("include/sample.h")
        assert file is not None
        text = file.read().decode()
    assert "const size_t sample_len = 2;" in text and "int8_t sample[] = {1, -2};" in text
