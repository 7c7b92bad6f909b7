"""Executors: ways to evaluate Relay at once (TVM's `relay.create_executor`).

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
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.build_module import bind_params_in_module
from ekiden.relay.expr import Constant, Constructor, Expr, Function, Var, const
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.match_declared_shapes import MatchDeclaredShapes
from ekiden.relay.transform.language.remove_unused_functions import RemoveUnusedFunctions
from ekiden.relay.values import Closure, ConstructorValue, RefValue
from ekiden.relay.visitor import bind, closed, free_vars
from ekiden.runtime.errors import CompileError, InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.target import Target, TargetLike
from ekiden.target.virtual_device import DeviceLike, Targets, compilation_config, is_target

Result = object
"""A runtime.Tensor, a tuple of results, a value of a data type, a RefValue, or a function."""


class Executor:
    """Evaluates expressions over the functions of a module."""

    def __init__(self, mod: IRModule, target: Targets) -> None:
        self.mod = mod
        self.target = target

    def evaluate(
        self, expr: Expr | None = None, binds: Mapping[Var, object] | None = None
    ) -> Result:
        """The value of an expression; of `main` where none is given.

        A function becomes a Python function of arrays, tensors and numbers, by position or name.
        `binds` gives free variables their values. Raises TypeInferenceError or CompileError.
        """
        if expr is None:
            if "main" not in self.mod:
                raise CompileError("evaluate: no expression given, and the module has no 'main'")
            expr = self.mod["main"]
        if binds:
            expr = bind(expr, {v: _bound(value) for v, value in binds.items()})
        function = self.mod[expr] if isinstance(expr, GlobalVar) else expr
        if isinstance(function, BaseFunc):
            return self._callable(function)
        if isinstance(expr, Constructor):
            return partial(_construct, expr)
        if unbound := free_vars(expr):
            names = ", ".join(f"%{v.name_hint}" for v in unbound)
            raise CompileError(f"evaluate: the expression has free variables: {names}")
        return self._callable(closed(expr))()

    def _callable(self, function: BaseFunc) -> Callable[..., Result]:
        if not isinstance(function, Function):
            raise CompileError(f"evaluate: expected a Relay function, got {function!r}")
        module = self.mod.with_function("main", function)
        return self._compiled(module, InferType()(module)["main"])

    def _compiled(self, module: IRModule, main: BaseFunc) -> Callable[..., Result]:
        raise NotImplementedError


def _bound(value: object) -> Expr:
    return value if isinstance(value, Expr) else const(value)


class DebugExecutor(Executor):
    """Interprets: every construct of the language, slowly, with the reference of each operator."""

    def _compiled(self, module: IRModule, main: BaseFunc) -> Callable[..., Result]:
        assert isinstance(main, Function)
        module = MatchDeclaredShapes()(module)
        checked = module["main"]
        machine = Interpreter(module)

        def run(*args: object, **named: object) -> Result:
            """One run of `main` by the interpreter; arguments by position or by name."""
            given = _arrange(main, args, named)
            value = machine.evaluate(checked, *map(_to_value, given))
            return _to_result(value, machine)

        return run


class VMExecutor(Executor):
    """Compiles to the virtual machine."""

    kind = "vm"

    def _compiled(self, module: IRModule, main: BaseFunc) -> Callable[..., Result]:
        assert isinstance(main, Function)
        executable: Executable = compile(
            RemoveUnusedFunctions()(module), self.target, executor=self.kind
        )

        def run(*args: object, **named: object) -> Result:
            given = _arrange(main, args, named)
            return executable(*map(_to_argument, given))

        return run


class AOTExecutor(VMExecutor):
    """Compiles functions to native code as well."""

    kind = "aot"


class GraphExecutor(Executor):
    """Compiles to a graph: straight-line programs, others are a CompileError with the reason.

    An array of another dtype is converted to that of its input, as TVM's graph executor does.
    """

    def _compiled(self, module: IRModule, main: BaseFunc) -> Callable[..., Result]:
        assert isinstance(main, Function)
        made = compile(RemoveUnusedFunctions()(module), self.target)
        graph = runtime.get_global_func("ek.graph_executor.create")(made.raw, None)
        assert isinstance(graph, runtime.Module)
        set_input, get_output, start = (graph[n] for n in ("set_input", "get_output", "run"))

        def run(*args: object, **named: object) -> Result:
            """One run: inputs converted to their dtypes, results gathered in the shape of main's
            type.
            """
            for index, value in enumerate(_arrange(main, args, named)):
                given = _of_dtype(_to_argument(value), main.params[index])
                set_input(index, runtime.tensor(given))  # type: ignore[arg-type]
            start()
            return _unflatten(main.body.checked_type, map(get_output, count()))

        return run


def _of_dtype(value: object, param: Var) -> object:
    """A NumPy array in the dtype of a parameter."""
    kind = param.checked_type
    if not isinstance(value, np.ndarray) or not isinstance(kind, TensorType):
        return value
    return value.astype(to_numpy(kind.dtype), copy=False)


def _unflatten(kind: Type, leaves: Iterator[object]) -> Result:
    """The results of a graph as the tuples that they are fields of."""
    if isinstance(kind, TupleType):
        return tuple(_unflatten(field, leaves) for field in kind.fields)
    return next(leaves)


EXECUTORS: dict[str, type[Executor]] = {
    "debug": DebugExecutor,
    "vm": VMExecutor,
    "aot": AOTExecutor,
    "graph": GraphExecutor,
}
"""Kind -> executor."""


def create_executor(
    kind: str = "debug",
    mod: IRModule | None = None,
    device: object = None,
    target: Targets = None,
    params: Mapping[str, object] | None = None,
) -> Executor:
    """An executor of a kind: "debug" interprets, "vm" compiles; so do "aot", to native code, and
    "graph", for straight lines.

    `device` is where it runs, by default where `target` says: code is made for `target`, or for the
    kind of the device. `params` gives parameters of `main` their values by name. Raises
    CompileError for a kind that there is not, for a target that no code can be made for, and for
    one of another kind than the device; DeviceError for a device that is not there; InputError for
    one that `target` does not name where it names some, and for "debug", which interprets on the
    host, of any other.
    """
    if kind not in EXECUTORS:
        raise CompileError(f"create_executor: no kind {kind!r}; there are {', '.join(EXECUTORS)}")
    module = mod if mod is not None else IRModule()
    if params:
        module = bind_params_in_module(module, params)
    targets = _placed(device, target)
    devices = [each.device for each in compilation_config(targets).devices]  # its errors come here
    if kind == "debug":
        runtime.check_devices("create_executor: 'debug' interprets on the host", devices)
    for each in devices:
        if each.type != runtime.cpu().type:
            runtime.get_global_func("ek.device.open")(each)  # says what is missing
    return EXECUTORS[kind](module, targets)


def _placed(device: object, target: Targets) -> Targets:
    """What `compile` takes for a device, or some, and a target. Raises InputError, TypeError,
    CompileError.
    """
    if device is None:
        return target
    several = isinstance(device, (list, tuple)) and not isinstance(device, runtime.Device)
    given = list(device) if several else [device]  # type: ignore[call-overload]
    named = [runtime.device(each) if isinstance(each, str) else each for each in given]
    devices = [each for each in named if isinstance(each, runtime.Device)]
    wanted = target if target is not None else Target.current()
    if len(devices) == len(named) and wanted is None:
        return devices
    if len(devices) == len(named) == 1 and is_target(wanted):
        pair: dict[DeviceLike, TargetLike | Sequence[TargetLike]] = {devices[0]: wanted}
        return pair
    there = [each.device for each in compilation_config(wanted).devices]
    runtime.check_devices("create_executor", named, there)
    return wanted


def _arrange(main: Function, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
    """Arguments in the order of the parameters. Raises InputError."""
    names = [p.name_hint for p in main.params]
    if unknown := [n for n in named if n not in names]:
        raise InputError(f"run: no parameter is named {unknown[0]!r}; there are {', '.join(names)}")
    left = [n for n in names[len(args) :] if n not in named]
    if left or len(args) + len(named) != len(names):
        expected = f"expected {len(names)} arguments ({', '.join(names)})"
        raise InputError(f"run: {expected}, got {len(args)} and by name {len(named)}")
    return [*args, *(named[n] for n in names[len(args) :])]


def _construct(constructor: Constructor, *args: object) -> ConstructorValue:
    return ConstructorValue(constructor, tuple(map(_to_value, args)))


def _to_value(value: object) -> object:
    """A value of the interpreter. Python numbers become int32 and float32, as in TVM."""
    if isinstance(value, (tuple, list)) and not isinstance(value, runtime.ADT):
        return tuple(map(_to_value, value))
    if isinstance(value, (ConstructorValue, RefValue, Closure, Constructor, Op)):
        return _plain(value)
    if isinstance(value, Constant):
        return np.asarray(value.data)
    return np.asarray(const(value).data.view(np.ndarray))


def _plain(value: object) -> object:
    """What results hold as arrays again: the fields of a constructed value are shared otherwise."""
    if isinstance(value, ConstructorValue):
        return _rebuild(value, _to_value)
    if isinstance(value, RefValue):
        return RefValue(_to_value(value.value))  # type: ignore[arg-type]
    return value


def _to_argument(value: object) -> object:
    """An argument of a compiled function."""
    if isinstance(value, Constant):
        return np.asarray(value.data)
    if isinstance(value, ConstructorValue):
        return _rebuild(value, _to_argument)
    if isinstance(value, (tuple, list)) and not isinstance(value, runtime.ADT):
        return tuple(map(_to_argument, value))
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, (bool, int, float)):
        return const(value).data.view(np.ndarray)
    return value


def _to_result(value: object, machine: Interpreter) -> Result:
    """What a caller gets: tensors for arrays, Python functions for closures."""
    match value:
        case np.ndarray():
            return runtime.tensor(np.asarray(value, order="C"))
        case ConstructorValue():
            return _rebuild(value, lambda each: _to_result(each, machine))
        case tuple():
            return tuple(_to_result(v, machine) for v in value)
        case RefValue():
            return RefValue(_to_result(value.value, machine))  # type: ignore[arg-type]
        case Closure():
            return lambda *args: _to_result(machine.apply(value, *map(_to_value, args)), machine)
        case _:
            return value


def _rebuild(root: ConstructorValue, convert: Callable[[object], object]) -> object:
    """A constructed value with its leaves converted; a long list does not nest Python calls."""
    made: dict[int, object] = {}
    stack: list[tuple[ConstructorValue, bool]] = [(root, False)]
    while stack:
        value, is_open = stack.pop()
        if id(value) in made:
            continue
        inner = [f for f in value.fields if isinstance(f, ConstructorValue)]
        if not is_open:
            stack.append((value, True))
            stack.extend((f, False) for f in inner)
            continue
        fields = tuple(made[id(f)] if id(f) in made else convert(f) for f in value.fields)
        made[id(value)] = ConstructorValue(value.tag, fields, value.constructor)
    return made[id(root)]


__all__ = [
    "EXECUTORS",
    "AOTExecutor",
    "DebugExecutor",
    "Executor",
    "GraphExecutor",
    "VMExecutor",
    "create_executor",
]
