"""Executors for immediate evaluation of Relay (TVM's `relay.create_executor`).

f = create_executor("vm", module, target="llvm").evaluate()
y = f(x).numpy()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np

from ekiden import runtime
from ekiden.compiler.compile import compile
from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.build_module import bind_params_in_module
from ekiden.relay.expr import Constant, Constructor, Expr, Function, Var, const
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.interpreter_values import Closure, ConstructorValue, RefValue
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.match_declared_shapes import MatchDeclaredShapes
from ekiden.relay.transform.language.remove_unused_functions import RemoveUnusedFunctions
from ekiden.relay.visitor import bind, close_over_free_vars, free_vars
from ekiden.runtime.errors import CompileError, InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.target import Target, TargetLike
from ekiden.target.virtual_device import DeviceLike, Targets, compilation_config, is_target

Result = object
"""Result of an evaluation: a tensor, a tuple, an ADT value, a RefValue, or a function."""


class Executor:
    """Evaluator of expressions over the functions of a module."""

    def __init__(self, mod: IRModule, target: Targets) -> None:
        self.mod = mod
        self.target = target

    def evaluate(
        self, expr: Expr | None = None, binds: Mapping[Var, object] | None = None
    ) -> Result:
        """Evaluate an expression, by default `main`.

        A function becomes a Python function of arrays, tensors and numbers, by position or name.

        Args:
            expr: The expression.
            binds: Values of free variables.

        Raises:
            TypeInferenceError: The types do not fit.
            CompileError: The expression cannot be compiled.
        """
        if expr is None:
            if "main" not in self.mod:
                raise CompileError("evaluate: no expression given, and the module has no 'main'")
            expr = self.mod["main"]
        if binds:
            expr = bind(expr, {v: _to_bound_expr(value) for v, value in binds.items()})
        function = self.mod[expr] if isinstance(expr, GlobalVar) else expr
        if isinstance(function, BaseFunc):
            return self._make_callable(function)
        if isinstance(expr, Constructor):
            return partial(_constructor_function, expr)
        if unbound := free_vars(expr):
            names = ", ".join(f"%{v.name_hint}" for v in unbound)
            raise CompileError(f"evaluate: the expression has free variables: {names}")
        return self._make_callable(close_over_free_vars(expr))()

    def _make_callable(self, function: BaseFunc) -> Callable[..., Result]:
        if not isinstance(function, Function):
            raise CompileError(f"evaluate: expected a Relay function, got {function!r}")
        # As main, beside the functions of the module, which it may call.
        module = self.mod.with_function("main", function)
        return self._compile(module, InferType()(module)["main"])

    def _compile(self, module: IRModule, main: BaseFunc) -> Callable[..., Result]:
        raise NotImplementedError


def _to_bound_expr(value: object) -> Expr:
    return value if isinstance(value, Expr) else const(value)


class DebugExecutor(Executor):
    """Interpreter of the whole language by the operators' reference implementations."""

    def _compile(self, module: IRModule, main: BaseFunc) -> Callable[..., Result]:
        assert isinstance(main, Function)
        # So that shapes are checked where compiled programs check them.
        module = MatchDeclaredShapes()(module)
        checked = module["main"]
        machine = Interpreter(module)

        def run(*args: object, **named: object) -> Result:
            """Run `main` once by the interpreter; arguments by position or by name."""
            arguments = _bind_arguments(main, args, named)
            value = machine.evaluate(checked, *map(_to_interpreter_value, arguments))
            return _to_result(value, machine)

        return run


class VMExecutor(Executor):
    """Executor that compiles to VM bytecode."""

    kind = "vm"

    def _compile(self, module: IRModule, main: BaseFunc) -> Callable[..., Result]:
        assert isinstance(main, Function)
        executable: Executable = compile(
            RemoveUnusedFunctions()(module), self.target, executor=self.kind
        )

        def run(*args: object, **named: object) -> Result:
            arguments = _bind_arguments(main, args, named)
            return executable(*map(_to_argument, arguments))

        return run


class AOTExecutor(VMExecutor):
    """Executor that also compiles functions to native code ahead of time."""

    kind = "aot"


class GraphExecutor(Executor):
    """Executor that compiles to a graph; programs that are not straight-line raise CompileError.

    An array of another dtype is converted to that of its input, as TVM's graph executor does.
    """

    def _compile(self, module: IRModule, main: BaseFunc) -> Callable[..., Result]:
        assert isinstance(main, Function)
        for param in main.params:
            if not isinstance(param.checked_type, TensorType):
                kind = f"no tensor: {format_type(param.checked_type)}"
                raise CompileError(
                    f"graph: input '{param.name_hint}' is {kind}; the virtual machine runs it"
                )
        executable = compile(RemoveUnusedFunctions()(module), self.target)
        graph = runtime.get_global_func("ek.graph_executor.create")(executable.raw, None)
        assert isinstance(graph, runtime.Module)
        set_input, get_output, start = (graph[n] for n in ("set_input", "get_output", "run"))

        def run(*args: object, **named: object) -> Result:
            """Run once: inputs are converted to their dtypes, results have the structure of main's
            type.
            """
            for index, value in enumerate(_bind_arguments(main, args, named)):
                converted = _cast_array(_to_argument(value), main.params[index])
                set_input(index, runtime.tensor(converted))  # type: ignore[arg-type]
            start()
            return _unflatten_outputs(main.body.checked_type, map(get_output, count()))

        return run


def _cast_array(value: object, param: Var) -> object:
    """Cast a NumPy array to the dtype of a parameter."""
    kind = param.checked_type
    if not isinstance(value, np.ndarray) or not isinstance(kind, TensorType):
        return value
    return value.astype(to_numpy(kind.dtype), copy=False)


def _unflatten_outputs(kind: Type, leaves: Iterator[object]) -> Result:
    """Unflatten the outputs of a graph to nested tuples."""
    if isinstance(kind, TupleType):
        return tuple(_unflatten_outputs(field, leaves) for field in kind.fields)
    return next(leaves)


EXECUTOR_CLASSES: dict[str, type[Executor]] = {
    "debug": DebugExecutor,
    "vm": VMExecutor,
    "aot": AOTExecutor,
    "graph": GraphExecutor,
}
"""Executor classes by kind."""


def create_executor(
    kind: str = "debug",
    mod: IRModule | None = None,
    device: object = None,
    target: Targets = None,
    params: Mapping[str, object] | None = None,
) -> Executor:
    """Create an executor by kind.

    Args:
        kind: "debug" interprets, "vm" compiles; so do "aot", to native code, and "graph", for
            straight lines.
        mod: The module whose functions expressions may use.
        device: The device to run on, by default that of `target`.
        target: The target of code, by default the kind of the device.
        params: Values of parameters of `main` by name.

    Raises:
        CompileError: There is no such kind, no code can be generated for the target, or it is of
            another kind than the device.
        DeviceError: The device is not present.
        InputError: `target` names other devices, or "debug", which interprets on the host, is asked
            for another device.
    """
    if kind not in EXECUTOR_CLASSES:
        raise CompileError(
            f"create_executor: no kind {kind!r}; there are {', '.join(EXECUTOR_CLASSES)}"
        )
    module = mod if mod is not None else IRModule()
    if params:
        module = bind_params_in_module(module, params)
    targets = _resolve_targets(device, target)
    devices = [
        place_of_code.device for place_of_code in compilation_config(targets).devices
    ]  # its errors come here
    if kind == "debug":
        runtime.check_devices("create_executor: 'debug' interprets on the host", devices)
    for needed in devices:
        if needed.type != runtime.cpu().type:
            # Now and not at the first run.
            runtime.get_global_func("ek.device.open")(needed)  # says what is missing
    return EXECUTOR_CLASSES[kind](module, targets)


def _resolve_targets(device: object, target: Targets) -> Targets:
    """Return the compile targets for a device (or several) and a target.

    Raises:
        InputError: The devices are not those of the target.
        TypeError: The target is none.
        CompileError: The target is not known.
    """
    if device is None:
        return target
    several = isinstance(device, (list, tuple)) and not isinstance(device, runtime.Device)
    requested = list(device) if several else [device]  # type: ignore[call-overload]
    named = [runtime.device(entry) if isinstance(entry, str) else entry for entry in requested]
    devices = [candidate for candidate in named if isinstance(candidate, runtime.Device)]
    chosen = target if target is not None else Target.current()
    if len(devices) == len(named) and chosen is None:
        return devices
    if len(devices) == len(named) == 1 and is_target(chosen):
        pair: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {devices[0]: chosen}
        return pair
    available = [placement.device for placement in compilation_config(chosen).devices]
    runtime.check_devices("create_executor", named, available)
    return chosen


def _bind_arguments(
    main: Function, args: Sequence[object], named: Mapping[str, object]
) -> list[object]:
    """Bind positional and named arguments to the parameters.

    Raises:
        InputError: Arguments are missing, too many, or of unknown names.
    """
    names = [p.name_hint for p in main.params]
    if unknown := [n for n in named if n not in names]:
        raise InputError(f"run: no parameter is named {unknown[0]!r}; there are {', '.join(names)}")
    missing = [n for n in names[len(args) :] if n not in named]
    if missing or len(args) + len(named) != len(names):
        expected = f"expected {len(names)} arguments ({', '.join(names)})"
        raise InputError(f"run: {expected}, got {len(args)} and by name {len(named)}")
    return [*args, *(named[n] for n in names[len(args) :])]


class _SharedRef(RefValue):
    """Reference of the caller, who sees what the program writes."""

    __slots__ = ("shared",)

    def __init__(self, shared: runtime.Ref) -> None:
        self.shared = shared

    @property  # type: ignore[override]
    def value(self) -> object:
        """Return the current value as the interpreter has values."""
        return _to_interpreter_value(self.shared.value)

    @value.setter
    def value(self, value: object) -> None:
        self.shared.value = _to_argument(value)


def _constructor_function(constructor: Constructor, *args: object) -> ConstructorValue:
    return ConstructorValue(constructor, tuple(map(_to_interpreter_value, args)))


def _to_interpreter_value(value: object) -> object:
    """Convert an argument to an interpreter value. Python numbers become int32 and float32, as in
    TVM.
    """
    if isinstance(value, (tuple, list)) and not isinstance(value, runtime.ADT):
        return tuple(map(_to_interpreter_value, value))
    if isinstance(value, runtime.Ref):
        return _SharedRef(value)
    if isinstance(value, (ConstructorValue, RefValue, Closure, Constructor, Op)):
        return _unwrap_tensors(value)
    if isinstance(value, Constant):
        return np.asarray(value.data)
    return np.asarray(const(value).data.view(np.ndarray))


def _unwrap_tensors(value: object) -> object:
    """Convert tensors in a value back to arrays.

    The fields of a constructed value would be shared otherwise.
    """
    if isinstance(value, ConstructorValue):
        return _map_constructed(value, _to_interpreter_value)
    if isinstance(value, RefValue) and not isinstance(value, _SharedRef):
        return RefValue(_to_interpreter_value(value.value))  # type: ignore[arg-type]
    return value


def _to_argument(value: object) -> object:
    """Convert an argument for a compiled function."""
    if isinstance(value, Constant):
        return np.asarray(value.data)
    if isinstance(value, ConstructorValue):
        return _map_constructed(value, _to_argument)
    if isinstance(value, (tuple, list)) and not isinstance(value, runtime.ADT):
        return tuple(map(_to_argument, value))
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, (bool, int, float)):
        return const(value).data.view(np.ndarray)
    return value


def _to_result(value: object, machine: Interpreter) -> Result:
    """Convert a result for the caller: tensors for arrays, Python functions for closures."""
    match value:
        case np.ndarray():
            return runtime.tensor(np.asarray(value, order="C"))
        case ConstructorValue():
            return _map_constructed(value, lambda leaf: _to_result(leaf, machine))
        case tuple():
            return tuple(_to_result(v, machine) for v in value)
        case _SharedRef():
            return value.shared
        case RefValue():
            return RefValue(_to_result(value.value, machine))  # type: ignore[arg-type]
        case Closure():
            return lambda *args: _to_result(
                machine.apply(value, *map(_to_interpreter_value, args)), machine
            )
        case _:
            return value


def _map_constructed(root: ConstructorValue, convert: Callable[[object], object]) -> object:
    """Map a conversion over the leaves of a constructed value, iteratively for long lists."""
    rebuilt: dict[int, object] = {}
    stack: list[tuple[ConstructorValue, bool]] = [(root, False)]
    while stack:
        value, is_open = stack.pop()
        if id(value) in rebuilt:
            continue
        inner = [f for f in value.fields if isinstance(f, ConstructorValue)]
        # The value is visited again when the values inside it are rebuilt.
        if not is_open:
            stack.append((value, True))
            stack.extend((f, False) for f in inner)
            continue
        fields = tuple(rebuilt[id(f)] if id(f) in rebuilt else convert(f) for f in value.fields)
        rebuilt[id(value)] = ConstructorValue(value.tag, fields, value.constructor)
    return rebuilt[id(root)]


__all__ = [
    "EXECUTOR_CLASSES",
    "AOTExecutor",
    "DebugExecutor",
    "Executor",
    "GraphExecutor",
    "VMExecutor",
    "create_executor",
]
