"""Projects: generated, built, run on this machine and on boards that QEMU has."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from bare_programs import BOARDS, need_board
from micro_models import MODELS, SMALL, quantized

import ekiden
from ekiden import micro, relay
from ekiden.micro.stack import CallGraph
from ekiden.rpc import RPCError
from ekiden.rpc.messages import FRAME_HEADER_BYTES, Kind
from ekiden.runtime.errors import ExportError, InputError, LoadError
from long_runs import alike

SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover -Wall -Wextra -Werror"


def saved(model: onnx.ModelProto, kind: str, folder: Path) -> Path:
    if kind == "int8":
        pytest.importorskip("onnxruntime.quantization", reason="needs onnxruntime")
        return quantized(model, folder)
    onnx.save(model, folder / "float.onnx")
    return folder / "float.onnx"


def sample(program: micro.MicroProgram) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(program.module.inputs[0].shape, np.float32)


def check(path: Path, template: str, target: str, folder: Path, **options: object) -> None:
    """Int8 is that of the virtual machine bit by bit; memory is what was planned."""
    program = micro.compile(str(path), target)
    project = micro.generate_project(template, program, folder / template, options)
    project.build()
    sizes = project.sizes()
    assert sizes.model_workspace == program.module.workspace
    if "cflags" not in options:  # sanitizers put room between constants
        off = abs(sizes.model_constants - program.module.constant_bytes)
        assert off <= sizes.model_constants / 100
    x = sample(program)
    if template in BOARDS:
        report = micro.memory_report(program, project, x)
        result = report.predicted
        assert (result.code, result.workspace) == (sizes.model_code, sizes.model_workspace)
        assert abs(result.constants - sizes.model_constants) <= sizes.model_constants / 100
        assert report.stack <= result.stack <= report.stack + 16 and result.calls == ()
    with micro.Session(project.open_transport()) as session:
        (actual,) = session.run(x)
    expected = ekiden.compile(str(path))(x).numpy()
    exact = path.stem == "int8"
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0 if exact else 1e-5,
                               atol=0 if exact else 1e-6)  # fmt: skip


@alike(4)
@pytest.mark.parametrize(
    ("name", "kind"),
    [("keyword", "int8"), ("person", "float"), ("anomaly", "int8"), ("lstm", "float"),
     ("forest", "float")],
)  # fmt: skip
def test_models_give_the_same_here_without_the_runtime(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = saved(SMALL[name](), kind, tmp_path)
    cpu = "cortex-m7" if name == "person" else "cortex-m55"  # with vectors it compiles for 10 s
    check(path, "host", f"c -mcpu={cpu}", tmp_path, cflags=SANITIZE)


@pytest.mark.quick
def test_stack_is_the_deepest_of_all_calls() -> None:
    stack = {"run": 8, "a": 100, "b": 40, "c": 80, "memcpy": None}
    calls = CallGraph(stack, {"run": ("a", "b", "b"), "b": ("c", "memcpy")})
    assert calls.worst_case_stack("run") == (128, ("memcpy",))
    library = (
        "00008000 <memcpy>:\n    8000:\tpush\t{r4, lr}\n    8002:\tvpush\t{d8-d9}\n"
        "    8004:\tstr.w\tr0, [sp, #-4]!\n    8008:\tsub\tsp, #12\n"
        "    800a:\tbl\t8010 <inner>\n\n00008010 <inner>:\n    8010:\tblx\tr3\n"
    )
    calls = calls.with_disassembly(library)
    assert (calls.frame_bytes["memcpy"], calls.worst_case_stack("run")) == (40, (128, ("inner",)))
    circle = CallGraph(stack, {"run": ("a",), "a": ("b",), "b": ("a",)})
    with pytest.raises(ExportError, match="a calls itself"):
        circle.worst_case_stack("run")


@pytest.mark.parametrize("template", BOARDS)
@pytest.mark.parametrize(("name", "kind"), [("keyword", "int8"), ("anomaly", "int8")])
def test_models_run_on_boards(template: str, name: str, kind: str, tmp_path: Path) -> None:
    need_board()
    check(saved(SMALL[name](), kind, tmp_path), template, BOARDS[template], tmp_path)


def vectors() -> ekiden.IRModule:
    """Rows that are no whole vectors, numbers of every width, NaN, conditions."""
    nn, x = relay.nn, relay.var("x", shape=(1, 5, 5, 6))
    lesser = relay.minimum(x, nn.relu(x) + relay.const(1.0))
    large = relay.maximum(lesser, relay.negative(x))
    root = relay.where(relay.not_equal(x, large), relay.floor(x), relay.sqrt(relay.abs(x)))
    picked = relay.where(relay.less_equal(x, relay.const(0.25)), relay.exp(large), root)
    scaled = relay.round(x * relay.const(40.0)) + relay.const(100.0)
    data = relay.cast(relay.clip(scaled, 0, 255), "uint8")
    weight = np.random.default_rng(3).integers(-128, 127, (10, 6, 3, 3)).astype(np.int8)
    conv = nn.conv2d(data, relay.const(weight), channels=10, kernel_size=(3, 3),
                     data_layout="NHWC", kernel_layout="OIHW", out_dtype="int32")  # fmt: skip
    short = relay.cast(conv, "int16") * relay.const(np.int16(7))
    both = relay.logical_and(relay.greater(x, relay.const(0.0)), relay.less(x, relay.const(1.0)))
    outputs = [picked, relay.cast(relay.cast(conv, "int8"), "int32"), relay.cast(short, "float32"),
               relay.cast(both, "uint8"), relay.mean(x, axis=[1, 2]), nn.softmax(x),
               relay.right_shift(conv, relay.const(np.int32(3))), short]  # fmt: skip
    return ekiden.IRModule.from_expr(relay.Function([x], relay.Tuple(outputs)))


@pytest.mark.parametrize("template", ["host", "qemu-mps3-an547"])
def test_micro_vectors_match_vm(template: str, tmp_path: Path) -> None:
    if template != "host":
        need_board()
    program = micro.compile(vectors(), "c -mcpu=cortex-m55")
    project = micro.generate_project(template, program, tmp_path / "p")
    project.build()
    x = np.random.default_rng(1).standard_normal((1, 5, 5, 6), np.float32)
    x[0, 0, 0, :3] = np.nan, -0.0, 3
    with micro.Session(project.open_transport()) as session:
        result = session.run(x)
    for a, b in zip(result, ekiden.compile(vectors())(x), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.long
@pytest.mark.parametrize("template", BOARDS)
@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_whole_models_run_on_boards(template: str, name: str, kind: str, tmp_path: Path) -> None:
    need_board()
    check(saved(MODELS[name](), kind, tmp_path), template, BOARDS[template], tmp_path)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> micro.GeneratedProject:
    folder = tmp_path_factory.mktemp("project")
    onnx.save(SMALL["forest"](), folder / "forest.onnx")
    program = micro.compile(str(folder / "forest.onnx"), "c -mcpu=cortex-m7", name="votes")
    micro.export_model_library_format(program, folder / "model.tar")
    result = micro.generate_project(
        "host", folder / "model.tar", folder / "p", {"cflags": SANITIZE}
    )
    result.build()
    return micro.GeneratedProject(result.folder)


def test_session_loads_runs_and_measures(project: micro.GeneratedProject) -> None:
    x = np.arange(5, dtype=np.float32).reshape(1, 5)
    with micro.Session(project.open_transport()) as session:
        module = session.load_module("votes")
        there = session.cpu().array(x)
        first = module["main"](there).numpy()
        executor = session.create_aot_executor()
        with pytest.raises(InputError, match="the model has not run"):
            executor.get_output(0)
        with pytest.raises(InputError, match="inputs 0 to 0 by number expected, got \\[1\\]"):
            executor.run({1: x})
        executor = session.create_aot_executor()
        executor.run({0: x})
        with pytest.raises(InputError, match="no output 1; there are 1"):
            executor.get_output(1)
        with pytest.raises(InputError, match="does not know its stack"):
            executor.measure_stack()
        np.testing.assert_array_equal(executor.get_output(0).numpy(), first)
        times = module.time_evaluator("main", number=3, repeat=4, min_repeat_ms=1)(there)
        assert len(times.results) == 4 and times.min > 0
        assert len(executor.benchmark(repeat=2).results) == 2
        for _ in range(200):  # what is let go makes room
            module["main"](session.cpu().array(x))


def test_invalid_calls_are_refused_by_the_program(project: micro.GeneratedProject) -> None:
    with micro.Session(project.open_transport()) as session:
        module, device = session.get_system_lib(), session.cpu()
        with pytest.raises(ValueError, match="another shape or dtype"):
            module["main"](device.array(np.zeros((1, 4), np.float32)))
        with pytest.raises(TypeError, match="another number of inputs"):
            module["main"]()
        with pytest.raises(TypeError, match="tensors of this side"):
            module["main"](1.5)
        with pytest.raises(MemoryError, match="no room"):
            device.empty((1 << 20,), "float32")
        with pytest.raises(FileNotFoundError, match="by its name"):
            session.load_module("other.eki")
        with pytest.raises(ValueError, match="no files"):
            session.upload(b"x", "x")
        with pytest.raises(AttributeError, match="no function named"):
            session.get_function("nothing")
        with pytest.raises(ValueError, match="takes number, repeat and min_repeat_ms"):
            x = device.array(np.zeros((1, 5), np.float32))
            module.time_evaluator("main", cooldown_interval_ms=5)(x)
        assert module["main"](x).shape == (1, 3)  # the session goes on


def test_malformed_frames_end_the_session(project: micro.GeneratedProject) -> None:
    """The program is built with sanitizers: it says nothing on standard error, and lives."""
    rng = np.random.default_rng(0)
    x = np.zeros((1, 5), np.float32)
    for _ in range(25):
        with micro.Session(project.open_transport()) as session:
            session.cpu().array(x)
            stream = session._endpoint.channel.stream
            kind = int(rng.integers(1, 20))
            body = bytearray(rng.integers(0, 4, int(rng.integers(0, 60))).astype(np.uint8))
            assert FRAME_HEADER_BYTES == 8
            stream.sendall(struct.pack("<IB3x", len(body), kind) + body)
            with pytest.raises((RPCError, ValueError, TypeError, OSError, MemoryError)):
                session._endpoint._await_answer(5.0)
                session._endpoint.request(Kind.LOAD, "nothing")
                raise OSError


def test_invalid_projects_are_refused(project: micro.GeneratedProject, tmp_path: Path) -> None:
    library = project.folder.parent / "model.tar"
    with pytest.raises(InputError, match=r"no template is named 'zephyr'; there are host \("):
        micro.generate_project("zephyr", library, tmp_path / "a")
    with pytest.raises(InputError, match=r"no option is named 'speed'; there are cc"):
        micro.generate_project("host", library, tmp_path / "a", {"speed": 1})
    with pytest.raises(InputError, match=r"cpu one of cortex-m3"):
        micro.generate_project("bare", library, tmp_path / "b", {"cpu": "cortex-a72"})
    with pytest.raises(FileExistsError, match="generate project '"):
        micro.generate_project("host", library, project.folder)
    with pytest.raises(FileNotFoundError, match="read 'none.tar'"):
        micro.generate_project("host", "none.tar", tmp_path / "c")
    for template, name, value in (
        ("host", "ram", "0:4"), ("host", "icount", True), ("host", "stack_bytes", 4),
        ("bare", "icount", True), ("host", "cpu", "cortex-m7"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"the template '{template}' takes no option '{name}'"):
            micro.generate_project(template, library, tmp_path / "c", {name: value})
    with pytest.raises(InputError, match="ram: ORIGIN:BYTES"):
        micro.generate_project("bare", library, tmp_path / "c", {"ram": "much"})
    assert not (tmp_path / "c").exists()
    with pytest.raises(LoadError, match="no tar"):
        micro.generate_project("host", project.folder / "Makefile", tmp_path / "c")
    with pytest.raises(LoadError, match="open project"):
        micro.GeneratedProject(tmp_path)
    for text in ("[]", '{"template": [], "options": {}}', "[" * 100_000):
        (tmp_path / "project.json").write_text(text)
        with pytest.raises(LoadError, match="open project"):
            micro.GeneratedProject(tmp_path)
    bare = micro.generate_project("bare", library, tmp_path / "d", {"cpu": "cortex-m4"})
    with pytest.raises(ExportError, match="is not built yet"):
        bare.flash()
    bare.firmware.parent.mkdir()
    bare.firmware.touch()
    bare.options["flash_command"] = "no-such-program {firmware}"
    with pytest.raises(ExportError, match="no-such-program is missing"):
        bare.flash()
    missing = micro.generate_project("host", library, tmp_path / "e", {"cc": "no-such-compiler"})
    with pytest.raises(ExportError, match="no-such-compiler is missing"):
        missing.build()


def test_bare_project_links(project: micro.GeneratedProject, tmp_path: Path) -> None:
    need_board()
    options = {"cpu": "cortex-m33", "flash": "0x08000000:0x40000", "ram": "0x20000000:0x8000",
               "frame_bytes": 4096, "flash_command": "test -f {firmware}"}  # fmt: skip
    library = project.folder.parent / "model.tar"
    result = micro.generate_project("bare", library, tmp_path / "bare", options)
    result.build()
    result.flash()
    assert result.sizes().ram < 0x8000
    with pytest.raises(ExportError, match="serves none"):
        result.open_transport()
