#!/usr/bin/env python3
"""Collect what a user may name: modules, functions, classes, members, command-line options.

    public_names.py --record            write added.txt: what is public now, not in baseline.txt
    public_names.py --baseline FOLDER   write baseline.txt, of the sources in FOLDER (a built `src`)
    public_names.py --print             print all names, one a line

A name is public if `ekiden`, a module that the API reference has a page of, or a module at a place
of TVM's declares it; of packages that these declare the same holds. One line is a name and its
signature without annotations: `ekiden.relay.nn.relu(data)`. What a class has stands under its first
name alone.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BASELINE, ADDED = HERE / "baseline.txt", HERE / "added.txt"
BASELINE_COMMIT = "2e54ab58"
COMMAND = "python tests/public_names/public_names.py --record"

TVM_PLACES = """
container contrib.cc contrib.debugger.debug_executor contrib.debugger.debug_result
contrib.download contrib.graph_executor contrib.ndk contrib.target.onnx contrib.utils
driver.build_module error instrument ir ir.affine_type
ir.attrs ir.base ir.container ir.diagnostics ir.expr ir.instrument ir.memory_pools ir.module ir.op
ir.transform ir.type micro.project micro.session micro.testing parser relay.adt relay.backend
relay.backend.executor relay.backend.interpreter relay.backend.name_transforms
relay.backend.runtime relay.backend.te_compiler relay.backend.utils relay.backend.vm relay.base
relay.build_module relay.data_dep_optimization relay.expr relay.expr_functor relay.frontend
relay.frontend.keras relay.frontend.onnx relay.frontend.pytorch relay.frontend.tensorflow
relay.frontend.tensorflow2 relay.frontend.tflite relay.function relay.loops relay.op.annotation
relay.op.contrib relay.op.contrib.register relay.op.image relay.op.memory relay.op.op
relay.op.random relay.op.reduce relay.op.strategy relay.op.transform relay.op.vision relay.op.vm
relay.param_dict relay.prelude relay.qnn relay.qnn.op.canonicalizations relay.qnn.op.legalizations
relay.qnn.transform relay.scope_builder relay.testing relay.testing.init relay.testing.layers
relay.testing.py_converter relay.ty relay.type_functor rpc.client rpc.proxy rpc.server rpc.tracker
runtime.container runtime.module runtime.ndarray runtime.object_path runtime.params
runtime.profiler_vm runtime.vm script target.target target.virtual_device te.hybrid te.schedule
te.tensor testing.aot tir.analysis tir.data_layout tir.expr tir.ir_builder tir.op tir.schedule
tir.stmt tir.stmt_functor tir.tensor_intrin topi.image topi.sparse topi.vision transform
""".split()
"""Modules where TVM has them, that the API reference has no page of; without their `ekiden.`."""
LATE_MEMBERS = {"printer", "html_printer", "script_printer"}
"""Members of classes that are set when another module is imported."""
PLAIN_DEFAULTS = (bool, int, float, str, bytes, type(None))


def documented_modules(root: Path) -> set[str]:
    """Return the modules that the API reference has a page of."""
    return set(re.findall(r"api/(ekiden[\w.]*)\.md", (root / "mkdocs.yml").read_text()))


def declared_names(module: types.ModuleType) -> list[str]:
    """Return the names in the `__all__` of a module."""
    return sorted({str(n) for n in getattr(module, "__all__", ()) if not str(n).startswith("_")})


def shown_names(module: types.ModuleType, is_documented: bool, declared: set[int]) -> list[str]:
    """Return the names of a module without `__all__`: those that it loads late, and what it defines
    itself, if it has a page or another module declares that."""
    is_late = "__getattr__" in vars(module)
    names = []
    for name in dir(module):
        if name.startswith("_"):
            continue
        value = _value(module, name)
        is_code = inspect.isclass(value) or inspect.isroutine(value)
        is_own = is_code and value.__module__ == module.__name__
        is_known = is_documented or id(value) in declared
        if isinstance(value, Unavailable) or (is_late and is_code) or (is_own and is_known):
            names.append(name)
    return names


def collect(root: Path, is_every_member: bool = False) -> dict[str, str]:
    """Return name -> signature of all that is public in the package that is imported.

    The signature is `(...)` of what is called, ` data` of what is not, ` module`, ` property`; for
    what needs a package that is missing it is ` unavailable`. `is_every_member`: what a class has
    stands under all names of the class.
    """
    documented = documented_modules(root)
    modules = _import_all(sorted({*documented, *(f"ekiden.{name}" for name in TVM_PLACES)}))
    names = {path: declared_names(module) for path, module in modules.items()}
    declared = {id(_value(modules[path], name)) for path, own in names.items() for name in own}
    described: set[int] | None = None if is_every_member else set()
    lines: dict[str, str] = {}
    for path, module in modules.items():
        lines[path] = " module"
        for name in names[path] or shown_names(module, path in documented, declared):
            value, full = _value(module, name), f"{path}.{name}"
            if isinstance(value, types.ModuleType):
                if value.__name__.startswith("ekiden"):
                    lines[full] = " module"
            elif not _is_from_elsewhere(value):
                lines.update(_lines_of(full, value, described))
    return lines


def _import_all(paths: list[str]) -> dict[str, types.ModuleType]:
    """Return modules by their path, `ekiden` first, then those in the `__all__` of others too."""
    waiting, modules = ["ekiden", *(path for path in paths if path != "ekiden")], {}
    while waiting:
        path = waiting.pop(0)
        if path in modules:
            continue
        try:
            module = importlib.import_module(path)
        except ImportError:  # the test finds what was there
            continue
        modules[path] = module
        for name in declared_names(module):
            value = _value(module, name)
            if isinstance(value, types.ModuleType) and value.__name__ == f"{path}.{name}":
                waiting.append(value.__name__)
    return modules


class Unavailable:
    """The value of a name that needs a package which is missing here."""


def _value(owner: object, name: str) -> object:
    """Return what a name stands for. Raises AttributeError for a declared name without a value."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise
    except Exception:  # an ImportError, or an error of Ekiden's that names the package
        return Unavailable()


def _is_from_elsewhere(value: object) -> bool:
    """Return whether it is a function or class of another package, which a module only imports."""
    home = getattr(value, "__module__", None)
    is_code = inspect.isclass(value) or inspect.isroutine(value)
    return is_code and not str(home).startswith("ekiden")


def _lines_of(full: str, value: object, described: set[int] | None) -> Iterator[tuple[str, str]]:
    """Yield the line of a value, and of what a class has that is not described."""
    if isinstance(value, Unavailable):
        yield full, " unavailable"
    elif inspect.isclass(value):
        yield full, _signature(value)
        if described is None or id(value) not in described:
            if described is not None:
                described.add(id(value))
            yield from ((f"{full}.{name}", text) for name, text in _members(value))
    elif callable(value):
        yield full, _signature(value)
    else:
        yield full, " data"


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the public members of a class that it has from Ekiden's classes."""
    homes = [item for item in kind.__mro__ if item.__module__.startswith("ekiden")]
    for name in sorted(
        {n for home in homes for n in vars(home) if not n.startswith("_")} - LATE_MEMBERS
    ):
        raw = inspect.getattr_static(kind, name)
        if isinstance(raw, (staticmethod, classmethod)) or inspect.isroutine(raw):
            yield name, _signature(getattr(kind, name))
        elif isinstance(kind, enum.EnumType) or not callable(raw):
            yield name, " property"


def _signature(value: object) -> str:
    """Return the parameters with their defaults; of what Python cannot tell, `(?)`."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(?)"
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_default(parameter.default))
        for parameter in signature.parameters.values()
    ]
    plain = inspect.Signature(parameters)
    return str(plain)


class _Opaque:
    """A default whose text is no promise: an object, a table."""

    def __repr__(self) -> str:
        return "..."


def _default(value: object) -> object:
    if value is inspect.Parameter.empty or type(value) in PLAIN_DEFAULTS:
        return value
    if isinstance(value, (tuple, list)) and all(type(v) in PLAIN_DEFAULTS for v in value):
        return value
    return _Opaque()


def command_options() -> dict[str, str]:
    """Return `ekiden COMMAND OPTION` -> what it takes, of the whole command line."""
    cli = importlib.import_module("ekiden.cli")
    lines: dict[str, str] = {}
    for name in cli.COMMANDS:
        parser = argparse.ArgumentParser()
        cli._import_command_module(name).add_arguments(parser)
        lines[f"ekiden {name}"] = " command"
        _add_options(lines, f"ekiden {name}", parser)
    return lines


def _add_options(lines: dict[str, str], command: str, parser: argparse.ArgumentParser) -> None:
    waiting = [(command, parser)]
    while waiting:
        path, current = waiting.pop()
        for action in current._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    lines[f"{path} {name}"] = " command"
                    waiting.append((f"{path} {name}", inner))
                continue
            for option in action.option_strings or [action.dest]:
                lines[f"{path} {option}"] = _values_of(action)


def _values_of(action: argparse.Action) -> str:
    """Return what an option takes: how many values, and of which."""
    choices = "" if action.choices is None else f" of {','.join(sorted(map(str, action.choices)))}"
    return f" nargs={action.nargs}{choices}{' required' if action.required else ''}"


def all_names(root: Path = ROOT, is_every_member: bool = False) -> dict[str, str]:
    """Return name -> signature of the Python names, as `collect`, and of the command line."""
    return dict(sorted({**collect(root, is_every_member), **command_options()}.items()))


def added_text(names: dict[str, str], baseline: dict[str, str]) -> str:
    """Return what added.txt holds."""
    head = f"# Public names that were added since {BASELINE_COMMIT}; written by `{COMMAND}`.\n"
    return head + text_of({n: text for n, text in names.items() if n not in baseline})


def text_of(names: dict[str, str]) -> str:
    """Return names as the lines of a file."""
    return "".join(f"{name}{signature}\n" for name, signature in names.items())


def parse(text: str) -> dict[str, str]:
    """Return name -> signature of the lines of a file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(_split(line) for line in lines)


def _split(line: str) -> tuple[str, str]:
    """Return the name and the signature of a line."""
    for mark in (" nargs=", " command", "(", " module", " property", " data", " unavailable"):
        name, result, rest = line.partition(mark)
        if result:
            return name, result + rest
    raise ValueError(f"no line of public names: {line!r}")


def _use_sources(source: Path) -> None:
    """Import the package from a folder, not from where it is installed."""
    sys.meta_path[:] = [f for f in sys.meta_path if "skbc" not in type(f).__module__.lower()]
    sys.path.insert(0, str(source))


def main() -> None:
    """Write or print the names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--record", action="store_true")
    group.add_argument("--baseline", type=Path, metavar="FOLDER")
    group.add_argument("--print", action="store_true")
    options = parser.parse_args()
    if options.baseline:
        _use_sources(options.baseline)
        head = f"# All public names at {BASELINE_COMMIT}, as public_names.py collects them.\n"
        BASELINE.write_text(head + text_of(all_names(options.baseline.parent)))
        return
    names = all_names()
    if options.print:
        sys.stdout.write(text_of(names))
        return
    ADDED.write_text(added_text(names, parse(BASELINE.read_text())))


if __name__ == "__main__":
    main()
