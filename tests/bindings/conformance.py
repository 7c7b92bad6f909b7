"""Python's part of bindings/conformance.json: `python conformance.py FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ekiden
from ekiden import runtime

Json = Any
Step = dict[str, Json]


def _double(x: Json) -> object:
    return x + x


def _fail() -> None:
    raise ValueError("told to fail")


CALLBACKS: dict[str, Callable[..., object]] = {
    "double": _double,
    "echo": lambda x: x,
    "sum": lambda x: float(np.asarray(x).sum()),
    "apply": lambda f, *args: f(*args),
    "fail": _fail,
}


def value(of: Json) -> Json:
    """A value of the script as one of Python."""
    if "tensor" in of:
        return np.array(of["data"], of["tensor"]).reshape(of["shape"])
    ((kind, inside),) = of.items()
    if kind == "array":
        return [value(item) for item in inside]
    if kind == "callback":
        return runtime.convert(CALLBACKS[inside])
    return None if kind == "none" else inside


def same(result: Json, wanted: Json) -> bool:
    """Whether a result is what the script says."""
    if isinstance(wanted, np.ndarray):
        actual = np.asarray(result)
        right = actual.dtype == wanted.dtype and actual.shape == wanted.shape
        return bool(right and np.allclose(actual, wanted, rtol=1e-6))
    if isinstance(wanted, list):
        items = list(result)
        return len(items) == len(wanted) and all(map(same, items, wanted))
    return type(result) is type(wanted) and bool(result == wanted)


class Closed:
    """A module that was given back."""

    def __getattr__(self, name: str) -> object:
        raise ValueError("the module is closed")


class Runner:
    """Runs the steps of one case; each operation is a method."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.things: dict[str, Any] = {}
        self.types: dict[str, type] = {}

    def model(self, step: Step) -> Json:
        """The file of a module as a model with named inputs."""
        return self.things[step["of"] + " model"]

    def open(self, step: Step) -> None:
        path = self.folder / step["path"]
        self.things[step["as"]] = runtime.load_module(path)
        if path.suffix == ".eki":
            self.things[step["as"] + " model"] = ekiden.load(path)

    def functions(self, step: Step) -> object:
        return self.things[step["of"]].names()

    def inputs(self, step: Step) -> object:
        return self.model(step).raw.params("main")

    def call(self, step: Step) -> object:
        return self.things[step["of"]][step["function"]](*map(value, step["args"]))

    def run(self, step: Step) -> object:
        return self.model(step)(**{k: value(v) for k, v in step["inputs"].items()})

    def run_into(self, step: Step) -> object:
        outputs = [value(item) for item in step["outputs"]]
        self.model(step)(**{k: value(v) for k, v in step["inputs"].items()}, out=outputs)
        return outputs

    def overwrite(self, step: Step) -> object:
        function, x = self.things[step["of"]]["main"], runtime.empty((step["size"],))
        x.copyfrom(np.arange(step["size"], dtype="float32"))
        results = function(x)
        first = [result.numpy().copy() for result in results]
        right = True
        for result, expected in zip(results, first, strict=True):
            right = right and np.array_equal(result.numpy(), expected)
            for array in (result.numpy(), np.from_dlpack(result)):
                if array.flags.writeable:
                    array.fill(9)
        return right and all(map(np.array_equal, (r.numpy() for r in function(x)), first))

    def kernels(self, step: Step) -> object:
        inputs = {k: value(v) for k, v in step["inputs"].items()}
        return len({call.name for call in self.model(step).profile(**inputs).calls})

    def threads(self, step: Step) -> object:
        self.model(step).num_threads = step["n"]
        return self.model(step).num_threads

    def device(self, step: Step) -> object:
        device = runtime.tensor(value(step["value"])).device
        return [device.device_type, device.device_id]

    def register(self, step: Step) -> None:
        runtime.register_func(step["name"], CALLBACKS[step["callback"]])

    def remove(self, step: Step) -> object:
        return runtime.remove_global_func(step["name"])

    def global_(self, step: Step) -> object:
        function = runtime.get_global_func(step["name"], allow_missing=True)
        if function is None:
            raise KeyError(f"there is no function '{step['name']}'")
        return function(*map(value, step["args"]))

    def define(self, step: Step) -> None:
        kinds = {"int": int, "float": float, "any": object}
        body = {"__annotations__": {name: kinds[kind] for name, kind in step["fields"]}}
        result = type("Point", (runtime.Object,), body)
        self.types[step["type"]] = runtime.register_object(step["type"])(result)

    def new(self, step: Step) -> None:
        if step["type"] not in self.types:
            raise TypeError(f"there is no type '{step['type']}'")
        self.things[step["as"]] = self.types[step["type"]](*map(value, step["values"]))

    def type(self, step: Step) -> object:
        return self.things[step["of"]].type_key

    def fields(self, step: Step) -> object:
        return list(runtime.fields_of(self.things[step["of"]]))

    def get(self, step: Step) -> object:
        return getattr(self.things[step["of"]], step["field"])

    def set(self, step: Step) -> None:
        setattr(self.things[step["of"]], step["field"], value(step["value"]))

    def equal(self, step: Step) -> object:
        return runtime.structural_equal(self.things[step["a"]], self.things[step["b"]])

    def close(self, step: Step) -> None:
        self.things[step["of"]] = Closed()


def judge(runner: Runner, step: Step) -> str:
    """What is wrong with a step, or nothing."""
    name = step["op"] + "_" if step["op"] == "global" else step["op"]
    try:
        result = getattr(runner, name)(step)
    except Exception as error:
        fails = step.get("fails")
        kinds = {item.__name__ for item in type(error).__mro__}
        if fails and fails["kind"] in kinds and fails["message"] in str(error):
            return ""
        return f"raised {type(error).__name__}: {error}"
    if "fails" in step or ("is" in step and not same(result, value(step["is"]))):
        return f"got {result!r}"
    return ""


def main(folder: Path) -> int:
    """Runs all cases; the number of steps that went wrong."""
    script = json.loads((folder / "conformance.json").read_text())
    wrong = steps = 0
    for case in script["cases"]:
        runner = Runner(folder)
        for step in case["steps"]:
            turns = (judge(runner, step) for _ in range(step.get("times", 1)))
            why = next(filter(None, turns), "")
            wrong += bool(why)
            steps += 1
            if why:
                print(f"{case['name']}: {step}: {why}")
    print(f"{steps} steps")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
