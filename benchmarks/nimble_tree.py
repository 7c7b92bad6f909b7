"""Child-sum Tree-LSTM (inputs 300, hidden 150) with the same seeded weights in each engine; a case
is the number of leaves of the tree, whose every node has an input.

    f_k = sigmoid(W_f x + U_f h_k + b_f)           for each child k
    i, o, u = W x + U (h_1 + h_2 + ...) + b
    c = sigmoid(i) * tanh(u) + sum of f_k * c_k;  h = sigmoid(o) * tanh(c)
"""

from __future__ import annotations

from functools import cache

import numpy as np
from nimble_engines import SEED, Array, Foreign, Run, Weights, torch_for

import ekiden
from ekiden import relay, runtime

INPUTS, HIDDEN = 300, 150
SHAPES = {
    "w": (3 * HIDDEN, INPUTS),
    "u": (3 * HIDDEN, HIDDEN),
    "b": (3 * HIDDEN,),
    "wf": (HIDDEN, INPUTS),
    "uf": (HIDDEN, HIDDEN),
    "bf": (HIDDEN,),
}

PROGRAM = """
#[version = "0.0.5"]
def @main(%root: Tree[Tensor[(1, 300), float32]],
          %w: Tensor[(450, 300), float32], %u: Tensor[(450, 150), float32],
          %b: Tensor[(450), float32],
          %wf: Tensor[(150, 300), float32], %uf: Tensor[(150, 150), float32],
          %bf: Tensor[(150), float32]) {
  let %visit = fn (%tree: Tree[Tensor[(1, 300), float32]])
      -> (Tensor[(1, 150), float32], Tensor[(1, 150), float32]) {
    match (%tree) {
      Rose(%x, %below) => {
        let %keep = nn.dense(%x, %wf) + %bf;
        let %children = fn (%rest: List[Tree[Tensor[(1, 300), float32]]],
                            %h: Tensor[(1, 150), float32], %c: Tensor[(1, 150), float32])
            -> (Tensor[(1, 150), float32], Tensor[(1, 150), float32]) {
          match (%rest) {
            Nil => (%h, %c),
            Cons(%child, %others) => {
              let %state = %visit(%child);
              let %f = sigmoid(%keep + nn.dense(%state.0, %uf));
              %children(%others, %h + %state.0, %c + %f * %state.1)
            },
          }
        };
        let %none = zeros(shape=[1, 150], dtype="float32");
        let %sums = %children(%below, %none, %none);
        let %gates = split(nn.dense(%x, %w) + nn.dense(%sums.0, %u) + %b,
                           indices_or_sections=3, axis=1);
        let %cell = sigmoid(%gates.0) * tanh(%gates.2) + %sums.1;
        (sigmoid(%gates.1) * tanh(%cell), %cell)
      },
    }
  };
  %visit(%root)
}
"""


class Tree:
    """A node: its input and its children."""

    def __init__(self, value: Array, children: list[Tree]) -> None:
        self.value, self.children = value, children


@cache
def tree(leaves: int) -> Tree:
    """A tree with that many leaves and one to four children below each other node."""
    rng = np.random.default_rng((SEED, leaves))

    def node(count: int) -> Tree:
        value = rng.standard_normal((1, INPUTS), np.float32)
        if count == 1:
            return Tree(value, [])
        parts = int(rng.integers(2, min(count, 4) + 1))
        cuts = np.sort(rng.choice(np.arange(1, count), parts - 1, replace=False))
        return Tree(value, [node(int(n)) for n in np.diff([0, *cuts, count])])

    return node(leaves)


def count_nodes(root: Tree) -> int:
    """Nodes of a tree."""
    return 1 + sum(map(count_nodes, root.children))


def weights() -> dict[str, Array]:
    """Seeded ones, by name."""
    draw = Weights()
    return {name: draw(*shape) for name, shape in SHAPES.items()}


def module() -> relay.IRModule:
    """The program with its weights."""
    made = relay.parse(PROGRAM, "tree_lstm", relay.Prelude().mod)
    made["main"] = relay.build_module.bind_params_by_name(made["main"], weights())
    return made


def run_ekiden(threads: int) -> Run:
    """One artifact; trees are ADT values."""
    exe = ekiden.compile(module())
    values = cache(lambda leaves: _value(tree(leaves)))
    return lambda leaves: list(exe(values(leaves)))


def _value(root: Tree) -> runtime.ADT:
    below = runtime.ADT(1, ())  # Nil
    for child in reversed(root.children):
        below = runtime.ADT(0, (_value(child), below))  # Cons
    return runtime.ADT(0, (runtime.tensor(root.value), below))


def run_torch(threads: int) -> Run:
    """Recursion in Python over operators, as such models are written for PyTorch."""
    torch = torch_for(threads)
    return _torch(torch, lambda node: node)


def run_torch_compile(threads: int) -> Run:
    """The same, with the computation of one node compiled; trees defeat compiling more."""
    torch = torch_for(threads)
    return _torch(torch, lambda node: torch.compile(node, dynamic=True))


def _torch(torch: Foreign, wrap: Foreign) -> Run:
    nn = torch.nn
    given = {name: torch.from_numpy(value) for name, value in weights().items()}

    def node(x: Foreign, h: Foreign, c: Foreign) -> Foreign:
        linear = nn.functional.linear
        gates = linear(x, given["w"], given["b"]) + linear(h.sum(0, keepdim=True), given["u"])
        i, o, u = gates.chunk(3, dim=1)
        f = torch.sigmoid(linear(x, given["wf"], given["bf"]) + linear(h, given["uf"]))
        cell = torch.sigmoid(i) * torch.tanh(u) + (f * c).sum(0, keepdim=True)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    step = wrap(node)
    none = torch.zeros(1, HIDDEN)

    def visit(root: Tree) -> Foreign:
        if not root.children:
            return step(torch.from_numpy(root.value), none, none)
        states = [visit(child) for child in root.children]
        h, c = (torch.cat(parts) for parts in zip(*states, strict=True))
        return step(torch.from_numpy(root.value), h, c)

    return lambda leaves: [part.numpy() for part in visit(tree(leaves))]


ENGINES = {"ekiden": run_ekiden, "torch": run_torch, "torch.compile": run_torch_compile}
"""Each engine's workload, ours first. ONNX has no trees."""
