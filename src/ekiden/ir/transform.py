"""Passes: named module transformations that run under a PassContext.

@module_pass(opt_level=1, name="DropUnused")
def drop_unused(module, context):
    return module.with_functions(...)

pipeline = Sequential([InferType(), drop_unused, "FoldConstant"])
with PassContext(opt_level=3):
    module = pipeline(module)
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import overload

from ekiden.ir.expr import BaseFunc
from ekiden.ir.lazy_registry import LazyRegistry
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import PassContext, PassInfo, PassInstrument, register_option
from ekiden.ir.user_extensions import record_extension
from ekiden.runtime import Object, register_func
from ekiden.runtime.errors import EkidenError, PassError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.lazy_logger import LazyLogger

__all__ = [
    "FunctionPass",
    "ModulePass",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassInstrument",
    "PrintIR",
    "Sequential",
    "function_pass_over",
    "get_pass",
    "module_pass",
    "register_option",
    "register_pass",
    "registered_passes",
    "share_passes",
]

LOG = LazyLogger(__name__)

Transform = Callable[[IRModule, PassContext], IRModule]
"""Function (module, context) -> module that a pass runs."""

_PASS_FACTORIES: LazyRegistry[str, Callable[[], Pass]] = LazyRegistry()


def register_pass(name: str, factory: Callable[[], Pass]) -> None:
    """Register a pass factory by name, for `required` and `Sequential`."""
    record_extension(factory)
    _PASS_FACTORIES[name] = factory


def share_passes(prefix: str, factories: Mapping[str, object]) -> None:
    """Export pass factories to other languages as global functions `prefix.NAME`. Names that are no
    pass factories are skipped.
    """
    for name, factory in factories.items():
        if name[0].isupper() and callable(factory) and not isinstance(factory, type):
            register_func(f"{prefix}.{name}", factory, override=True)


def registered_passes() -> list[str]:
    """Return the names of all registered passes."""
    return sorted(_PASS_FACTORIES)


def get_pass(name: str) -> Pass:
    """Create the pass registered under the name. Raises PassError listing the passes."""
    if name not in _PASS_FACTORIES:
        raise PassError(f"no pass {name!r}; there are {', '.join(sorted(_PASS_FACTORIES))}")
    return _PASS_FACTORIES[name]()


@Object.register
@dataclass(frozen=True, slots=True)
class Pass:
    """Named module transformation.

    Calling it runs it, whatever the opt level, under the current context: the passes it requires
    first, with instruments around. Raises PassError when it is called with, or gives, something
    that is no module.
    """

    name: str
    transform: Transform
    opt_level: int = 0
    required: tuple[Pass | str, ...] = ()
    is_sequence: bool = False
    reason: str = ""
    """Reason why the sequence requires this pass; see `as_required_pass`."""

    @property
    def info(self) -> PassInfo:
        """Return the metadata that instruments see."""
        names = tuple(r if isinstance(r, str) else r.name for r in self.required)
        return PassInfo(self.name, self.opt_level, names, self.is_sequence)

    @property
    def pass_info(self) -> PassInfo:
        """Return `info` under TVM's name."""
        return self.info

    def __call__(self, module: IRModule) -> IRModule:
        """Run the pass on a module; return the module unchanged if an instrument skips it."""
        _expect_module(module, self.name, "got")
        context, info = PassContext.current(), self.info
        if not context.notify(lambda instrument: instrument.should_run(module, info)):
            return module
        # Before the pass is announced: required passes have events of their own.
        for needed in self.required:
            module = (get_pass(needed) if isinstance(needed, str) else needed)(module)
        context.notify(lambda instrument: instrument.run_before_pass(module, info))
        started = time.perf_counter()
        try:
            result = self.transform(module, context)
        except Exception as error:
            # The innermost pass names itself; sequences around it would only repeat the way down.
            if isinstance(error, EkidenError) and not self.is_sequence:
                error.add_note(f"in pass {self.name!r}")
            failure = error  # the lambda's, as Python unbinds the other name
            context.notify(lambda instrument: instrument.run_failed(module, info, failure))
            raise
        _expect_module(result, self.name, "returned")
        LOG.debug("pass %s: %.1f ms", self.name, 1e3 * (time.perf_counter() - started))
        context.notify(lambda instrument: instrument.run_after_pass(result, info))
        return result

    def __str__(self) -> str:
        return str(self.info)


def as_required_pass(member: Pass, reason: str) -> Pass:
    """Return a pass marked as required in its sequence: it runs at every opt level, and disabling
    it is an error.

    `reason` is shown in that error: the later passes depend on the result.
    """
    return Pass(member.name, member.transform, member.opt_level, member.required, reason=reason)


def _expect_module(value: object, name: str, verb: str) -> None:
    if not isinstance(value, IRModule):
        hint = "; wrap it: IRModule.from_expr(...)" if isinstance(value, BaseFunc) else ""
        raise PassError(
            f"pass {name!r} {verb} a {type(value).__name__}, expected an IRModule{hint}"
        )


class ModulePass(Pass):
    """Pass made by `module_pass`."""

    __slots__ = ()


class FunctionPass(Pass):
    """Pass made by a `function_pass` decorator."""

    __slots__ = ()


class Sequential(Pass):
    """Sequence of passes, itself a pass; members may be given by name.

    The context decides whether a member runs, by its opt level and its lists, except for members
    that have a `reason` (`as_required_pass`). Raises PassError where one of these is disabled.
    """

    __slots__ = ("passes",)
    passes: tuple[Pass, ...]

    def __init__(
        self,
        passes: Iterable[Pass | str],
        name: str = "sequential",
        opt_level: int = 0,
        required: Iterable[Pass | str] = (),
    ) -> None:
        members = tuple(get_pass(p) if isinstance(p, str) else p for p in passes)

        def run_all(module: IRModule, context: PassContext) -> IRModule:
            """Run the enabled members in order. Raises PassError where one that is needed was
            disabled by name.
            """
            for member in members:
                if member.reason and member.name in context.disabled_pass:
                    why = f"the sequence {name!r} needs it {member.reason}"
                    raise PassError(f"pass {member.name!r} is disabled, and {why}")
                # A sequence decides for its own members, and is not left out itself.
                if member.is_sequence or member.reason or context.enables(member.info):
                    module = member(module)
            return module

        Pass.__init__(self, name, run_all, opt_level, tuple(required), is_sequence=True)
        object.__setattr__(self, "passes", members)


def PrintIR(header: str = "", show_meta_data: bool = False) -> Pass:  # noqa: N802
    """Create a pass that prints the module to stderr and returns it unchanged."""

    def print_module(module: IRModule, context: PassContext) -> IRModule:
        """Print the module and return it."""
        text = module.astext(show_meta_data=show_meta_data)
        print(f"PrintIR({header}):\n{text}", file=sys.stderr)
        return module

    return Pass("PrintIR", print_module)


PassFunction = Callable[..., object]


def _make_pass_decorator(
    kind: type[Pass],
    make: Callable[[Callable[..., object]], Transform],
    method: str,
    function: PassFunction | type | None,
    opt_level: int,
    name: str | None,
    required: Sequence[Pass | str] | None,
) -> object:
    """Build the decorator of one kind of pass, over a function or a class with a method.

    A decorated class gives passes when it is called with its own arguments, as in TVM.
    """

    def make_pass(run: Callable[..., object], label: str) -> Pass:
        return kind(name or label, make(run), opt_level, tuple(required or ()))

    def decorate(decorated: PassFunction | type) -> object:
        """Return a pass for a function, or for a class a factory with its constructor's arguments.

        Raises PassError where the class does not have the method.
        """
        if not inspect.isclass(decorated):
            return make_pass(decorated, decorated.__name__)
        if not hasattr(decorated, method):
            raise PassError(f"pass class {decorated.__name__!r} has no method {method!r}")

        def build_pass(*args: object, **kwargs: object) -> Pass:
            # TVM's pass classes have a method; each construction makes a pass.
            return make_pass(getattr(decorated(*args, **kwargs), method), decorated.__name__)

        build_pass.__name__, build_pass.__doc__ = decorated.__name__, decorated.__doc__
        return build_pass

    return decorate if function is None else decorate(function)


@overload
def module_pass(
    pass_func: Callable[[IRModule, PassContext], IRModule],
    opt_level: int = 0,
    name: str | None = None,
    required: Sequence[Pass | str] | None = None,
) -> Pass:
    """Return the Pass of a function."""


@overload
def module_pass(
    pass_func: None = None,
    opt_level: int = 0,
    name: str | None = None,
    required: Sequence[Pass | str] | None = None,
) -> Callable[[Callable[[IRModule, PassContext], IRModule]], Pass]:
    """Return the decorator of a function or of a class with a method `transform_module`."""


def module_pass(
    pass_func: PassFunction | None = None,
    opt_level: int = 0,
    name: str | None = None,
    required: Sequence[Pass | str] | None = None,
) -> object:
    """Decorator that makes a function (module, context) -> module a Pass named after it.

    Over a class with a method `transform_module(module, context)`, calling the class makes a pass.
    """

    def make(run: Callable[..., object]) -> Transform:
        """Return the function itself, in the type of a transformation."""
        return run  # type: ignore[return-value]

    return _make_pass_decorator(
        ModulePass, make, "transform_module", pass_func, opt_level, name, required
    )


def _function_attr(function: BaseFunc, key: str) -> object:
    attrs: Mapping[str, object] | None = getattr(function, "attrs", None)
    return (attrs or {}).get(key)


def function_pass_over(kind: type[BaseFunc]) -> Callable[..., Pass]:
    """Return the `function_pass` decorator for one function class.

    It decorates (function, module, context) -> function, which is called for each function of that
    kind that lacks the attribute SkipOptimization. Over a class, its method is
    `transform_function`. Takes what `module_pass` takes. The pass raises PassError for a result
    that is no function.
    """

    def make(run: Callable[..., object]) -> Transform:
        """Lift a function transformation to a module transformation."""

        def transform(module: IRModule, context: PassContext) -> IRModule:
            """Apply the transformation to each function of the class and return the new module.

            Raises PassError for what is no function.
            """
            functions: dict[object, BaseFunc] = {}
            for name, function in module.functions.items():
                # TVM's attribute SkipOptimization exempts a function from all function passes.
                skips = not isinstance(function, kind) or _function_attr(
                    function, "SkipOptimization"
                )
                result = function if skips else run(function, module, context)
                if not isinstance(result, BaseFunc):
                    raise PassError(
                        f"a function pass gave {type(result).__name__} for {name.name_hint!r}, "
                        f"expected a function"
                    )
                functions[name] = result
            return module.with_functions(functions)  # type: ignore[arg-type]

        return transform

    def function_pass(
        pass_func: PassFunction | None = None,
        opt_level: int = 0,
        name: str | None = None,
        required: Sequence[Pass | str] | None = None,
    ) -> object:
        """Decorator that makes a function (function, module, context) -> function a Pass."""
        return _make_pass_decorator(
            FunctionPass, make, "transform_function", pass_func, opt_level, name, required
        )

    return function_pass  # type: ignore[return-value]
