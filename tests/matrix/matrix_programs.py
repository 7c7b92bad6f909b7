"""Programs that are drawn from a sequence of choices, their arguments and what they should give."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from choices import Choices
from program_features import (
    FEATURES,
    LOOP,
    LOOPS,
    REQUIRES,
    STEP,
    feature_names,
    grow,
    loop_program,
    tensors,
)
from program_scope import (
    BOOL,
    FLOAT,
    INT,
    LIBRARY,
    NUMBERS,
    STATIC_ROWS,
    UNKNOWN_MATRIX,
    VECTOR,
    Maker,
    Scope,
)
from tensor_steps import TensorSteps

from comparison import Array, flatten
from ekiden import byoc, relay
from ekiden.frontend.common.import_result import INITIAL_STATE_FUNCTION, ImportResult
from ekiden.ir.expr import BaseFunc
from ekiden.relay import (
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    Match,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    const,
    op,
)
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.interpreter_values import ConstructorValue
from ekiden.relay.transform import InferType
from ekiden.relay.visitor import children, post_order, rebuild
from ekiden.runtime import Device

Argument = Array | list[Array]
"""A list is one of the language's, of float32 numbers."""
RUNS = 2
"""Calls of a program in a cell: what a program carries across runs is seen in the second."""
STATE = np.array([1.0, -0.5, 0.25], np.float32)
ENGINE = "onnxruntime"
DEPTH = 6
MAX_RESULTS = 2
"""Expressions of a type at random that a program gives, besides a network's tensor."""


@dataclass
class Program:
    """A module, the names of its features, and arguments for its `main`."""

    module: IRModule
    """What a cell compiles."""
    whole: IRModule
    """The same without regions of other engines: what the interpreter runs."""
    features: frozenset[str]
    steps: TensorSteps
    has_unknown: bool
    rows: int | None
    """Rows of the matrix where they are known, else None."""
    _calls: list[list[Argument]] = field(default_factory=list)
    _expected: list[list[Array]] = field(default_factory=list)

    @property
    def states(self) -> int:
        """How many of the last parameters and results are carried across runs."""
        return int("state" in self.features)

    def _arguments(self, seed: int) -> list[Argument]:
        """Return arguments without states: a float32, an int32, a bool, a vector, a matrix; a
        matrix of unknown rows and a list where the program has them; and those of the networks.
        Sizes differ with each seed; the first has no rows.
        """
        rng = np.random.default_rng(seed)
        for symbol in self.steps.symbols:
            self.steps.symbols[symbol] = (self.steps.symbols[symbol] * 3 + seed) % 7
        rows = seed * 2 % 5 if self.rows is None else self.rows
        args: list[Argument] = [
            _exact(rng),
            np.asarray(rng.integers(-3, 7), np.int32),
            np.asarray(seed % 2 == 1),
            _exact(rng, 3),
            _exact(rng, rows, 3),
        ]
        if self.has_unknown:
            args.append(_exact(rng, (seed * 3 + 1) % 4, 3))
        if "list argument" in self.features:
            args.append([_exact(rng) for _ in range(seed * 2)])
        return [*args, *self.steps.arrays(seed)]

    def calls(self) -> list[list[Argument]]:
        """Return the arguments of each run, the same ones each time."""
        if not self._calls:
            self._calls = [self._arguments(seed) for seed in range(RUNS)]
        return self._calls

    def expected(self) -> list[list[Array]]:
        """Return what the interpreter gives in each run, without states, as tensors in order."""
        if self._expected:
            return self._expected
        machine, results = Interpreter(self.whole), []
        states: list[object] = [STATE] * self.states
        for args in self.calls():
            result = machine.evaluate("main", *map(as_constructed, args), *states)
            if self.states:
                assert isinstance(result, tuple)
                result, states = result[: -self.states], list(result[-self.states :])
            results.append(flatten(result))
        self._expected = results
        return results


def _exact(rng: np.random.Generator, *shape: int) -> Array:
    return np.asarray(rng.integers(-20, 21, shape) * STEP, np.float32)


def as_constructed(arg: object) -> object:
    """Return a list as a value of the interpreter, anything else as it is."""
    if not isinstance(arg, list):
        return arg
    cons, nil = (LIBRARY.get_type("List")[1:][i] for i in (0, 1))
    value = ConstructorValue(nil, ())
    for item in reversed(arg):
        value = ConstructorValue(cons, (item, value))
    return value


def draw_program(choices: Choices) -> Program:
    """Draw the features that a program may have, then the program."""
    allowed = _allowed(choices)
    steps = TensorSteps(choices, "symbolic sizes" in allowed)
    maker = Maker(choices, allowed, steps)
    params = [Var("f", FLOAT), Var("i", INT), Var("b", BOOL), Var("v", VECTOR)]
    params.append(Var("m", maker.matrix))
    if "unknown sizes" in allowed:
        params.append(Var("u", UNKNOWN_MATRIX))
    if "list argument" in allowed:
        params.append(Var("l", NUMBERS))
    states = [Var("s", VECTOR)] if "state" in allowed else []
    known = [(p, p.type_annotation) for p in (*params, *states)]
    scope = Scope(maker, [(p, kind) for p, kind in known if kind is not None])
    results = [
        grow(scope, maker.type(2), choices.integer(2, DEPTH))
        for _ in range(choices.integer(1, MAX_RESULTS))
    ]
    if "network" in allowed and choices.integer(0, 2) == 0:
        results.append(tensors(scope))
        maker.features.add("network")
    if states:
        results.append(_next_state(scope, states[0], choices))
    whole_body = results[0] if len(results) == 1 else Tuple(results)
    main = Function([*params, *steps.params, *states], whole_body)
    module = _module(main, maker)
    return _with_states_and_regions(module, maker, bool(states))


def _next_state(scope: Scope, state: Var, choices: Choices) -> Expr:
    """Return what the program carries to its next run: bounded, of this run's state too."""
    drawn = grow(scope, VECTOR, choices.integer(0, 2))
    return op.tanh(op.add(op.multiply(state, const(0.5)), drawn))


def _allowed(choices: Choices) -> frozenset[str]:
    """Draw the features of a program: those of straight lines alone, one in three times."""
    is_straight = choices.integer(0, 2) == 0
    rows = [row for row in FEATURES if row.is_straight or not is_straight]
    names = {"operators", *choices.some(feature_names(rows))}
    return frozenset(names | {REQUIRES[name] for name in names if name in REQUIRES})


def _module(main: Function, maker: Maker) -> IRModule:
    """Return a module of `main` and of what it calls."""
    needs = relay.analysis.CallGraph(LIBRARY)
    work = sorted(maker.used - {LOOP})
    names = dict.fromkeys(work)
    while work:
        callees = [g.name_hint for g in needs[work.pop()] if g.name_hint not in names]
        names.update(dict.fromkeys(callees))
        work += callees
    functions: dict[GlobalVar, BaseFunc] = {LIBRARY.get_global_var(n): LIBRARY[n] for n in names}
    if LOOP in maker.used:
        functions[LOOPS] = loop_program()
    functions[GlobalVar("main")] = main
    return IRModule(functions, LIBRARY.type_definitions)  # type: ignore[arg-type]


def _with_state_names(module: IRModule, main: Function) -> IRModule:
    """Return the module with the names of what it carries across runs, as importers give them."""
    assert isinstance(main.body, Tuple)
    inputs = tuple(p.name_hint for p in main.params)
    outputs = *(f"y{i}" for i in range(len(main.body.fields) - 1)), "s"
    return ImportResult(module, inputs, outputs, states=("s",)).to_module()


def _with_states_and_regions(module: IRModule, maker: Maker, has_state: bool) -> Program:
    """Return the program of a module; its features are those that it has, not those it may have."""
    features = set(maker.features)
    if has_state:
        features.add("state")
        initial = Function([], const(STATE))
        main = module["main"]
        assert isinstance(main, Function)
        module = module.with_functions(
            {**module.functions, GlobalVar(INITIAL_STATE_FUNCTION): initial}
        )
        module = _with_state_names(module, main)
    whole = module
    if "engine region" in maker.allowed:
        module = byoc.partition(module, ENGINE)
        if any(f.attr("Compiler") for f in module.functions.values() if isinstance(f, Function)):
            features.add("engine region")
    features |= maker.allowed & {"symbolic sizes", "unknown sizes", "list argument"}
    rows = None if "symbolic sizes" in maker.allowed else STATIC_ROWS
    has_unknown = "unknown sizes" in maker.allowed
    return Program(module, whole, frozenset(features), maker.steps, has_unknown, rows)


PLACED = (Call, If, Let, Match, TupleGetItem)


def with_places(module: IRModule, devices: Sequence[Device], share: float) -> IRModule:
    """Return a module with marks on a share of its tensors, by chance: where they are computed,
    where they are needed, or both."""
    chance = random.Random(zlib.crc32(module.astext().encode()))
    typed = InferType()(module)
    functions: dict[GlobalVar, BaseFunc] = dict(typed.functions.items())
    for name, function in typed.functions.items():
        if not isinstance(function, Function) or function.attr("Compiler"):
            continue
        rewritten: dict[Expr, Expr] = {}
        for expr in post_order(function, into_functions=True):
            parts = [rewritten[child] for child in children(expr)]
            rewritten[expr] = rebuild(expr, parts) if parts else expr
            kind = expr.checked_type_or_none()
            is_tensor = isinstance(expr, PLACED) and isinstance(kind, TensorType)
            if is_tensor and chance.random() < share:
                body = chance.random() < 0.8
                rewritten[expr] = relay.annotation.on_device(
                    rewritten[expr],
                    chance.choice(devices),
                    constrain_body=body,
                    constrain_result=not body or chance.random() < 0.3,
                )
        functions[name] = rewritten[function]  # type: ignore[assignment]
    return module.with_functions(functions)
