"""Compilation, execution and comparison of programs without an allocator, at TVM's path.

    model = AOTTestModel(module=mod, inputs={"x": x}, outputs=generate_ref_data(mod, {"x": x}))
    compile_and_run(model, AOTTestRunner(), interface_api="c", use_unpacked_api=True)

The C of all models becomes one library of this machine, by its C compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekiden import runtime
from ekiden.backend.crt.c_emitter import COMPILER_FLAGS_NOTE, emit_files, tvmgen_prefix
from ekiden.codegen.c.compiler import find_compiler
from ekiden.compiler.export.micro import MicroProgram
from ekiden.frontend.tflite.relay import from_tflite
from ekiden.ir.expr import BaseFunc
from ekiden.ir.memory_pools import WorkspaceMemoryPools
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import MAX_FUSE_DEPTH_OPTION, PassContext
from ekiden.relay.backend import Executor, Runtime
from ekiden.relay.backend.build import build
from ekiden.runtime.errors import CompileError, InputError, RunError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import TargetLike

Array = NDArray[Any]
AOT_SUCCESS_TOKEN = "AOT_TEST_SUCCESS"
AOT_FAILURE_TOKEN = "AOT_TEST_FAILURE"
MAX_LISTED_MISMATCHES = 20
"""Elements that differ, of those that a message lists."""


class AOTTestModel(NamedTuple):
    """Test model with its inputs by name and expected outputs, by name or in order.
    `output_tolerance` is the allowed error: by default 0.001 for floats and 0 otherwise.
    """

    module: IRModule | BaseFunc
    inputs: Mapping[str, Array] | None
    outputs: Mapping[str, Array] | None
    output_tolerance: float | None = None
    name: str = "default"
    params: Mapping[str, Array] | None = None
    extra_memory_in_bytes: int = 0


class AOTCompiledTestModel(NamedTuple):
    """Test model with the result of `relay.build`."""

    model: AOTTestModel
    executor_factory: MicroProgram


@dataclass(frozen=True)
class AOTTestRunner:
    """Test runner configuration; `pass_config` configures the PassContext. The models have no
    surrounding program, so fields that would add to one are rejected.
    """

    makefile: str = "default"
    prologue: str = ""
    epilogue: str = ""
    includes: Sequence[str] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    pass_config: dict[str, Any] = field(default_factory=dict)


Models = Sequence[AOTTestModel] | AOTTestModel


def compile_models(
    models: Models,
    interface_api: str,
    use_unpacked_api: bool,
    workspace_byte_alignment: int = 8,
    constant_byte_alignment: int = 8,
    enable_op_fusion: bool = True,
    pass_config: Mapping[str, Any] | None = None,
    target: TargetLike = "c",
    workspace_memory_pools: WorkspaceMemoryPools | None = None,
    use_runtime_executor: bool = True,
) -> list[AOTCompiledTestModel]:
    """Compile the models to C at opt level 3. Raises CompileError."""
    if not use_runtime_executor:
        raise CompileError("compile models: an executor and a runtime are always said")
    options = {
        "interface-api": interface_api,
        "unpacked-api": use_unpacked_api,
        "workspace-byte-alignment": workspace_byte_alignment,
        "constant-byte-alignment": constant_byte_alignment,
    }
    config = dict(pass_config or {}) | ({} if enable_op_fusion else {MAX_FUSE_DEPTH_OPTION: 1})
    compiled = []
    for model in _model_list(models):
        with PassContext(opt_level=3, config=config):
            program = build(
                model.module,
                target,
                params=model.params,
                executor=Executor("aot", options),
                runtime=Runtime("crt"),
                mod_name=model.name,
                workspace_memory_pools=workspace_memory_pools,
            )
        assert isinstance(program, MicroProgram)
        compiled.append(AOTCompiledTestModel(model, program))
    return compiled


def _model_list(models: Models) -> list[AOTTestModel]:
    return [models] if isinstance(models, AOTTestModel) else list(models)


def run_and_check(
    models: Sequence[AOTCompiledTestModel],
    runner: AOTTestRunner,
    interface_api: str,
    test_dir: str | None = None,
    print_output_on_mismatch: bool = False,
) -> bool:
    """Compile the C code of all models into one library, run each and compare; return True.
    `test_dir` is a folder that keeps the files. Raises RunError for a mismatch, listing the
    elements if `print_output_on_mismatch`, and CompileError if the C compiler fails.
    """
    unsupported = [
        f for f in ("prologue", "epilogue", "includes", "parameters") if getattr(runner, f)
    ]
    if runner.makefile != "default" or unsupported:
        what = unsupported[0] if unsupported else "makefile"
        raise InputError(f"run models: they run in this process, without a {what} of the runner")
    with contextlib.ExitStack() as stack:
        folder = test_dir or stack.enter_context(tempfile.TemporaryDirectory())
        library = _build_shared_library([m.executor_factory for m in models], Path(folder))
        for compiled_model in models:
            outputs = _run_compiled_model(compiled_model, library, interface_api)
            _compare_outputs(compiled_model.model, outputs, print_output_on_mismatch)
    return True


def _build_shared_library(programs: Sequence[MicroProgram], folder: Path) -> Path:
    """Write the C code of programs to a folder, and build one shared library from it."""
    sources: dict[Path, None] = {}
    for program in programs:
        for path, text in emit_files(program.module).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            if file.suffix == ".c":
                sources[file] = None
    library = folder / "models.so"
    flags = [word for word in COMPILER_FLAGS_NOTE.rstrip(".").split() if word.startswith("-")]
    command = [find_compiler(), "-std=c99", "-O1", "-shared", "-fPIC", *flags]
    command += [f"-I{folder / 'include'}", *map(str, sources), "-lm", "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(f"run models: the C compiler failed:\n{done.stderr[:2000]}")
    return library


def _run_compiled_model(model: AOTCompiledTestModel, library: Path, interface: str) -> list[Array]:
    """Run a compiled model through its `packed` or `c` interface, and return its outputs."""
    module = model.executor_factory.module
    inputs_left = dict(model.model.inputs or {})
    inputs = []
    for tensor in module.inputs:
        if tensor.name not in inputs_left:
            raise InputError(f"run models: {model.model.name}: input '{tensor.name}' is missing")
        value = np.array(inputs_left.pop(tensor.name), order="C")
        if value.shape != tensor.shape or str(value.dtype) != tensor.dtype:
            raise InputError(
                f"run models: {model.model.name}: input '{tensor.name}': expected "
                f"{tensor.dtype}{tensor.shape}, got {value.dtype}{value.shape}"
            )
        inputs.append(value)
    if inputs_left:
        raise InputError(f"run models: {model.model.name}: no input is named '{min(inputs_left)}'")
    outputs = [np.zeros(t.shape, t.dtype) for t in module.outputs]
    name = f"{tvmgen_prefix(module.name)}_run"
    if interface == "packed":
        tensors = [runtime.tensor(v) for v in (*inputs, *outputs)]
        runtime.load_module(str(library))[name](*tensors)
        return [t.numpy() for t in tensors[len(inputs) :]]
    rows = [[v.ctypes.data for v in values] for values in (inputs, outputs)]
    memories = [np.zeros(p.used + 16, np.uint8) for p in module.pools]
    if not module.has_own_memory:
        # Pools are over-allocated by 16 bytes and aligned here, as generated code assumes 16-byte
        # alignment.
        rows.append([-(-m.ctypes.data // 16) * 16 for m in memories])
    # A C array needs at least one element, even for a model without inputs.
    structures = [(ctypes.c_void_p * max(len(row), 1))(*row) for row in rows]
    status = getattr(ctypes.CDLL(str(library)), name)(*structures)
    if status != 0:
        raise RunError(f"run models: {model.model.name} refuses its inputs: {status}")
    return outputs


def _compare_outputs(model: AOTTestModel, outputs: Sequence[Array], shows: bool) -> None:
    """Raise RunError if an output differs from the expected one."""
    expected = list((model.outputs or {}).items())
    if len(expected) != len(outputs):
        raise RunError(
            f"run models: {model.name}: {len(expected)} outputs expected, got {len(outputs)}"
        )
    texts = [
        _describe_mismatch(name, output, np.asarray(value), model.output_tolerance, shows)
        for (name, value), output in zip(expected, outputs, strict=True)
    ]
    if any(texts):
        shown = "\n".join(filter(None, texts))
        raise RunError(f"run models: {model.name}: {shown}\n{AOT_FAILURE_TOKEN}")


def _describe_mismatch(
    name: str, actual: Array, expected: Array, tolerance: float | None, shows: bool
) -> str:
    """Describe how an output differs from the expected array; empty if they match."""
    if actual.size != expected.size:
        return f"output '{name}': shape {expected.shape} expected, got {actual.shape}"
    default_tolerance = 0.001 if np.issubdtype(actual.dtype, np.inexact) else 0
    allowed = default_tolerance if tolerance is None else tolerance
    a, b = (v.reshape(actual.shape).astype(np.float64) for v in (actual, expected))
    # `==` covers equal infinities, whose difference is NaN.
    off = ~((np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not off.any():
        return ""
    count = int(off.sum())
    text = f"output '{name}': Mismatched elements: {count} / {off.size} ({count / off.size:.2%})"
    if not shows:
        return text
    rows = [
        f"Element [{', '.join(map(str, position))}]: {a[tuple(position)]:f}, {b[tuple(position)]:f}"
        for position in np.argwhere(off)[:MAX_LISTED_MISMATCHES].tolist()
    ]
    return "\n".join([text, "Actual, Reference", *rows])


def compile_and_run(
    models: Models,
    runner: AOTTestRunner,
    interface_api: str,
    use_unpacked_api: bool,
    debug_calculated_workspaces: bool = False,
    workspace_byte_alignment: int = 8,
    constant_byte_alignment: int = 8,
    enable_op_fusion: bool = True,
    target: TargetLike = "c",
    target_opts: Mapping[str, object] | None = None,
    test_dir: str | None = None,
    print_output_on_mismatch: bool = False,
) -> bool:
    """Run `compile_models`, then `run_and_check`. `debug_calculated_workspaces` has no effect: the
    workspace is planned, so there is no allocator to check.
    """
    if target_opts:
        target = " ".join([str(target), *(f"{key}={value}" for key, value in target_opts.items())])
    compiled = compile_models(
        models,
        interface_api,
        use_unpacked_api,
        workspace_byte_alignment,
        constant_byte_alignment,
        enable_op_fusion,
        runner.pass_config,
        target,
    )
    return run_and_check(compiled, runner, interface_api, test_dir, print_output_on_mismatch)


def generate_ref_data(
    mod: IRModule | BaseFunc,
    input_data: Mapping[str, Array],
    params: Mapping[str, Array] | None = None,
    target: TargetLike = "llvm",
) -> dict[str, Array]:
    """Return a program's outputs for inputs by name, computed on this machine: "output", or
    "output0", "output1", ... in order; or by the names in the attribute `output_tensor_names`.
    """
    lib = build(mod, target, params=params)
    assert not isinstance(lib, MicroProgram)
    outputs = _flatten_tensors(
        lib(**{name: np.asarray(value) for name, value in input_data.items()})
    )
    main = mod["main"] if isinstance(mod, IRModule) else mod
    names = main.attr("output_tensor_names")
    if names is None:
        names = ["output"] if len(outputs) == 1 else [f"output{n}" for n in range(len(outputs))]
    assert isinstance(names, (list, tuple))
    return dict(zip(map(str, names), outputs, strict=True))


def _flatten_tensors(result: object) -> list[Array]:
    """Return the tensors of a nested result, depth first."""
    stack: list[Any] = [result]
    tensors: list[Array] = []
    while stack:
        current = stack.pop()
        if hasattr(current, "numpy"):
            tensors.append(current.numpy())
        else:
            stack.extend(reversed(list(current)))
    return tensors


def create_relay_module_and_inputs_from_tflite_file(
    tflite_model_file: str, bind_params_by_name: bool = True
) -> tuple[IRModule, dict[str, Array], dict[str, Any]]:
    """Return a TensorFlow Lite file's module, random inputs over the range of their dtypes (floats:
    standard normal), and its parameters: none, since they are constants of the module. Raises
    InputError if `bind_params_by_name` is false.
    """
    if not bind_params_by_name:
        raise InputError("import of a TFLite file: parameters are constants of the module")
    module, params = from_tflite(Path(tflite_model_file).read_bytes())
    generator, inputs = np.random.default_rng(0), {}
    for param in module["main"].params:  # type: ignore[attr-defined]
        shape, dtype = param.checked_type.concrete_shape, param.checked_type.dtype
        if re.match("u?int", dtype):
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            inputs[param.name_hint] = generator.integers(low, high, shape, dtype, endpoint=True)
        else:
            inputs[param.name_hint] = generator.standard_normal(shape).astype(dtype)
    return module, inputs, dict(params)


__all__ = [
    "AOT_FAILURE_TOKEN",
    "AOT_SUCCESS_TOKEN",
    "AOTCompiledTestModel",
    "AOTTestModel",
    "AOTTestRunner",
    "compile_and_run",
    "compile_models",
    "create_relay_module_and_inputs_from_tflite_file",
    "generate_ref_data",
    "run_and_check",
]
