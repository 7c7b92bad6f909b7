"""Random PyTorch programs of views, writes in place, copies and returns, compiled beside eager.

    python tests/frontend/torch_programs.py --programs 1000 --seed 1
    python tests/frontend/torch_programs.py --seed 1 --number 12     a find again, with its program

A program is the text of a function or module over a few inputs, some of them views of one tensor,
a buffer and a parameter. It is right when results, inputs and the buffer have eager's values after
each of two runs, and when all of these share memory, at the same places, exactly where eager's do;
with gradients, when these are eager's too. Between the runs whatever can be written is written
over: nothing that was given may be read again. All numbers are small integers, so that no value is
rounded and every comparison is one of bits.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import ekiden
from ekiden.frontend.torch.backend import counters
from ekiden.runtime.errors import ImportModelError, UnsupportedError

SHAPES = ((2, 3), (4,), (2, 3, 2), (1, 4), (3, 1), (0, 3), ())
VIEWS = (
    "{x}.view(-1)", "{x}.t()", "{x}.transpose(0, -1)", "{x}[1:]", "{x}[:, 1:]", "{x}[::2]",
    "{x}[..., 0]", "{x}[-1]", "{x}.unsqueeze(0)", "{x}.squeeze()", "{x}.expand(2, *{x}.shape)",
    "{x}.diagonal()", "{x}.split(1)[0]", "{x}.chunk(2, -1)[-1]", "{x}.unbind(0)[-1]",
    "{x}.view(*{x}.shape, 1)", "{x}.flatten()", "{x}.reshape(-1, 1)", "{x}.movedim(0, -1)",
    "{x}.detach()", "{x}.view(torch.int32)", "{x}.view(torch.float32)", "{x}.unfold(0, 2, 1)",
    "{x}.narrow(0, 0, 1)", "{x}.as_strided((2,), (1,))", "{x}.view_as({x})", "{x}.mT",
    "{x}.contiguous()", "{x}.to({x}.dtype)", "{x}.reshape({x}.shape)", "{x}.real",
    "{x}.view(torch.int16)", "{x}.swapaxes(0, 1)",
    "{x}.permute(*[-1 - a for a in range({x}.dim())])",
)  # fmt: skip
"""What may share memory with what it is made of."""
COPIES = (
    "{x}.clone()", "{x} + 0", "{x} * 1", "{x}.repeat(1, 1)", "{x} + 1", "{x}.neg()", "{x}.relu()",
    "torch.ones_like({x})", "torch.zeros(3)", "torch.full((2,), 3.0)", "torch.cat([{x}])",
    "torch.cat([{x}, {y}])", "torch.stack([{x}, {y}])", "{x} + {y}", "{x}.sum(0)", "{x} - {y}",
    "{x}.flip(0)", "torch.where({x} > 0, {x}, {y})", "{x}.to(torch.int32)", "{x}.float()",
    "{x}.amax()", "{x}[[0]]", "torch.tensor([1.0, 2.0])", "{x}.roll(1)", "{x}.clamp(min=-99)",
    "{x}.index_select(0, torch.tensor([0]))", "{x}.masked_fill({x} > 90, 0)", "{x}.new_zeros(2)",
    "{x}.clone(memory_format=torch.contiguous_format)", "torch.empty_like({x}).fill_(2)",
    "torch.arange(3)", "nn.functional.pad({x}, (0, 0))", "torch.atleast_1d({x}).clone()",
)  # fmt: skip
WRITES = (
    "{x}.add_(1)", "{x}.mul_(2)", "{x}.copy_({y})", "{x}.zero_()", "{x}.fill_(3)", "{x}.relu_()",
    "{x}[0] = 5", "{x}[..., 0] = {y}[..., 0]", "{x}.add_({y})", "{x}[1:].sub_(1)", "{x}.neg_()",
    "{x}.t()[0].add_(1)", "{x}.view(-1)[0] = 7", "{x}[{x} > 2] = 1", "{x}.clamp_(max=50)",
    "{x}.index_fill_(0, torch.tensor([0]), 4)", "{x} += {y}", "{x}.transpose_(0, -1)",
    "{x}.unsqueeze_(0)", "{x}.squeeze_()", "{x}.index_add_(0, torch.tensor([0]), {x}[:1])",
    "{x}.masked_fill_({x} < 0, 0)", "{x}.diagonal().fill_(6)", "{x}[0].copy_({y}[-1])",
)  # fmt: skip
RETURNS = ("({0},)", "({0}, {1})", "({0}, {1}, {2})", "[{0}, ({1}, {2})]", '{{"a": {0}, "b": {1}}}')
REFUSED = ("changes its input", "changes the shape of its own", "torch.export: ", "as_strided")
"""What messages of ekiden.compile say of programs that it refuses."""
MOST_STEPS = 7
BOUND = 2.0**20
"""Values of a program are below this, so that sums of a few are exact in float32."""
Tensors = list[torch.Tensor]


@dataclass
class Program:
    """The lines of a function, the arguments it is called with, and how it is compiled."""

    shapes: list[tuple[int, ...]]
    is_view: list[bool]
    """Which inputs are views of the one before them."""
    has_gradients: bool
    is_dynamic: bool
    is_exported: bool
    """Whether ekiden.compile makes it, whose results share nothing."""
    lines: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The inputs."""
        return [f"x{at}" for at in range(len(self.shapes))]

    @property
    def text(self) -> str:
        """The module as Python."""
        body = "\n        ".join(self.lines)
        return f"""
class Made(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        self.w = nn.Parameter(torch.tensor([[2.0, -1.0, 1.0], [1.0, 3.0, -2.0]]))

    def forward(self, {", ".join(self.names)}):
        {body}
"""

    def module(self) -> nn.Module:
        """A module of it."""
        names: dict[str, Any] = {"torch": torch, "nn": nn}
        exec(compile(self.text, "<program>", "exec"), names)
        result: nn.Module = names["Made"]()
        return result

    def inputs(self) -> Tensors:
        """Fresh arguments, the same each time."""
        result: Tensors = []
        for shape, is_view in zip(self.shapes, self.is_view, strict=True):
            count = int(np.prod(shape))
            new = (torch.arange(count, dtype=torch.float32) - 1).reshape(shape)
            result.append(result[-1].view(-1) if is_view and result else new)
        return [x.requires_grad_() if self.has_gradients else x for x in result]


def draw(seed: int, number: int) -> Program:
    """A random program, of which each step has been tried."""
    numbers = np.random.default_rng((seed, number))
    kinds = numbers.random(4)
    has_gradients, is_exported = bool(kinds[0] < 0.25), bool(kinds[1] < 0.15)
    count = int(numbers.integers(1, 4))
    shapes = [SHAPES[int(numbers.integers(len(SHAPES)))] for _ in range(count)]
    is_view = [bool(numbers.random() < 0.2) and not has_gradients and not is_exported
               for _ in shapes]  # fmt: skip
    program = Program(shapes, is_view, has_gradients, bool(kinds[2] < 0.2), is_exported)
    names = [*program.names, "self.b", "self.w"]
    for _ in range(int(numbers.integers(1, MOST_STEPS + 1))):
        kind = (VIEWS, COPIES, WRITES)[int(numbers.choice(3, p=(0.45, 0.25, 0.3)))]
        text = kind[int(numbers.integers(len(kind)))]
        x, y = (names[int(numbers.integers(len(names)))] for _ in range(2))
        line = text.format(x=x, y=y)
        name = f"t{len(names)}"
        if kind is not WRITES:
            line = f"{name} = {line}"
        if _can_follow(program, line):
            program.lines.append(line)
            names += [name] if kind is not WRITES else []
    chosen = [names[int(numbers.integers(len(names)))] for _ in range(3)]
    if numbers.random() < 0.7:
        chosen[0] = names[-1]
    returned = RETURNS[int(numbers.integers(len(RETURNS)))].format(*chosen)
    program.lines.append(f"return {returned}")
    return program


def _can_follow(program: Program, line: str) -> bool:
    """Whether eager PyTorch can make a step where the program stands, and numbers stay small."""
    every = "[v for v in [*locals().values(), self.b, self.w] if isinstance(v, torch.Tensor)]"
    longer = replace(program, lines=[*program.lines, line, f"return {every}"])
    try:
        with torch.set_grad_enabled(program.has_gradients):
            tensors = longer.module()(*longer.inputs())
            if program.has_gradients:
                _backward(tensors)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return False
    sizes = [t.detach().abs() for t in tensors if t.is_floating_point()]
    return all(bool(((s == 0) | ((s < BOUND) & (s > 1 / BOUND))).all()) for s in sizes)


def _backward(results: Tensors) -> None:
    """Gradients of the sum of what has some."""
    terms = [t.sum() for t in results if t.requires_grad and t.is_floating_point()]
    if terms:
        torch.stack(terms).sum().backward()


@dataclass
class Run:
    """What can be seen of a run: all tensors that its caller has."""

    tensors: Tensors
    """Inputs, the buffer, the parameter, and results."""
    grads: Tensors

    @property
    def shared(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Of each tensor: which of all is the first in the same memory, where it begins in that,
        and its steps, of axes with more than one element."""
        memory = [t.untyped_storage()._cdata for t in self.tensors]
        return [
            (memory.index(m), t.storage_offset() * t.element_size(),
             tuple(s for s, d in zip(t.stride(), t.shape, strict=True) if d > 1 and t.numel()))
            for m, t in zip(memory, self.tensors, strict=True)
        ]  # fmt: skip


def _run(call: Callable[..., Any], module: nn.Module, program: Program) -> Run:
    """One run, with gradients where the program has them."""
    inputs = program.inputs()
    module.zero_grad()
    with torch.set_grad_enabled(program.has_gradients):
        results = [t for t in tree_leaves(call(*inputs)) if isinstance(t, torch.Tensor)]
        if program.has_gradients:
            _backward(results)
    parameters = dict(module.named_parameters())
    tensors = [*inputs, module.get_buffer("b"), parameters["w"], *results]
    leaves = [*inputs, parameters["w"]]
    return Run(tensors, [x.grad for x in leaves if x.grad is not None])


def _overwrite(tensors: Tensors) -> None:
    """Write over whatever can be written."""
    with torch.no_grad():
        for at, tensor in enumerate(tensors):
            try:
                tensor.fill_(11 + at)
            except RuntimeError:  # several elements in one place
                continue


def _equal(result: Tensors, reference: Tensors) -> bool:
    return len(result) == len(reference) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        for a, b in zip(result, reference, strict=True)
    )


def differences(program: Program, backend: str = "ekiden") -> Iterator[str]:
    """What is wrong with a program."""
    torch._dynamo.reset()
    if program.is_exported:
        yield from _exported_differences(program)
        return
    eager, module = program.module(), program.module()
    compiled = torch.compile(module, backend=backend, dynamic=program.is_dynamic or None)
    for turn in range(2):
        expected, actual = _run(eager, eager, program), _run(compiled, module, program)
        if not _equal(actual.tensors, expected.tensors):
            yield f"run {turn}: {actual.tensors} where eager has {expected.tensors}"
        if actual.shared != expected.shared:
            yield f"run {turn}: memory is shared as {actual.shared}, in eager as {expected.shared}"
        if not _equal(actual.grads, expected.grads):
            yield f"run {turn}: gradients {actual.grads} where eager has {expected.grads}"
        for run in (expected, actual):
            _overwrite(run.tensors)
        if not _equal(actual.tensors, expected.tensors):
            yield f"run {turn}: written over {actual.tensors} where eager has {expected.tensors}"


def _exported_differences(program: Program) -> Iterator[str]:
    """Of `ekiden.compile`, whose results have memory of their own."""
    eager, module = program.module().eval(), program.module().eval()
    try:
        with torch.no_grad():
            exe = ekiden.compile(module, tuple(program.inputs()))
    except (UnsupportedError, ImportModelError) as error:
        if any(text in str(error) for text in REFUSED):
            return
        raise
    for turn in range(2):
        inputs = program.inputs()
        with torch.no_grad():
            expected = [t for t in tree_leaves(eager(*program.inputs())) if torch.is_tensor(t)]
        outputs = exe(*inputs)
        many = outputs if isinstance(outputs, tuple) else (outputs,)
        actual = [torch.from_dlpack(t) for t in many]
        if not _equal(actual, expected):
            yield f"run {turn}: {actual} where eager has {expected}"
        places = [t.data_ptr() for t in (*inputs, *actual) if t.numel()]
        if len(set(places)) < len(places):
            yield f"run {turn}: results share memory"
        if not _equal(inputs, program.inputs()):
            yield f"run {turn}: inputs are changed"
        _overwrite([*inputs, *actual])


def check(seed: int, number: int) -> list[str]:
    """What is wrong with one program. What PyTorch's own backend does wrong too is its own."""
    counters.clear()
    program = draw(seed, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = _finds(program, "ekiden")
        if result and not program.is_exported and _finds(program, "aot_eager"):
            return []
    if counters["eager"]:
        result.append("it ran eagerly")
    return result


def _finds(program: Program, backend: str) -> list[str]:
    try:
        return list(differences(program, backend))
    except Exception as error:  # whatever it is, it is a find
        return [f"{type(error).__name__}: {str(error)[:600]}"]


def main(arguments: Sequence[str]) -> int:
    """The finds of many programs, one a line; of one, the program too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int)
    argument = parser.parse_args(arguments)
    chosen: Sequence[int] = range(argument.first, argument.first + argument.programs)
    if argument.number is not None:
        chosen = [argument.number]
        print(draw(argument.seed, argument.number))
        print(draw(argument.seed, argument.number).text)
    logging.disable(logging.CRITICAL)
    finds = 0
    for number in chosen:
        result = check(argument.seed, number)
        finds += bool(result)
        for line in result:
            print(f"seed {argument.seed} number {number}: {line}", flush=True)
    print(f"{len(chosen)} programs, {finds} with finds")
    return min(finds, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
