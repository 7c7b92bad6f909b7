"""Child-sum Tree-LSTM (input 300, hidden 150) with the same seeded weights in each engine; a case
is the number of leaves of the tree, whose every node has a word of the sentence as its input.

    f_k = sigmoid(W_f x + U_f h_k + b_f)           for each child k
    i, o, u = W x + U (h_1 + h_2 + ...) + b
    c = sigmoid(i) * tanh(u) + sum of f_k * c_k;  h = sigmoid(o) * tanh(c)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count

import numpy as np
from nimble_engines import WEIGHT_SEED, Array, ForeignModule, Run, SeededWeights, import_torch

import ekiden
from ekiden import relay, runtime

INPUTS, HIDDEN = 300, 150
TREE_LSTM_SHAPES = {
    "w": (3 * HIDDEN, INPUTS),
    "u": (3 * HIDDEN, HIDDEN),
    "b": (3 * HIDDEN,),
    "wf": (HIDDEN, INPUTS),
    "uf": (HIDDEN, HIDDEN),
    "bf": (HIDDEN,),
}

TREE_LSTM_PROGRAM = """
#[version = "0.0.5"]
def @main(%words: Tensor[(?, 300), float32], %root: Tree[Tensor[(1), int32]],
          %w: Tensor[(450, 300), float32], %u: Tensor[(450, 150), float32],
          %b: Tensor[(450), float32],
          %wf: Tensor[(150, 300), float32], %uf: Tensor[(150, 150), float32],
          %bf: Tensor[(150), float32]) {
  let %inputs = nn.dense(%words, %w) + %b;
  let %keeps = nn.dense(%words, %wf) + %bf;
  let %cell = fn (%sums: Tensor[(1, 450), float32], %kept: Tensor[(1, 150), float32])
      -> (Tensor[(1, 150), float32], Tensor[(1, 150), float32]) {
    let %gates = split(%sums, indices_or_sections=3, axis=1);
    let %c = sigmoid(%gates.0) * tanh(%gates.2) + %kept;
    (sigmoid(%gates.1) * tanh(%c), %c)
  };
  let %visit = fn (%tree: Tree[Tensor[(1), int32]])
      -> (Tensor[(1, 150), float32], Tensor[(1, 150), float32]) {
    match (%tree) {
      Rose(%word, Nil) =>
        %cell(take(%inputs, %word, axis=0), zeros(shape=[1, 150], dtype="float32")),
      Rose(%word, %below) => {
        let %keep = take(%keeps, %word, axis=0);
        let %children = fn (%rest: List[Tree[Tensor[(1), int32]]],
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
        %cell(take(%inputs, %word, axis=0) + nn.dense(%sums.0, %u), %sums.1)
      },
    }
  };
  %visit(%root)
}
"""


class TreeNode:
    """Tree node: the index of its word in the sentence, and its children."""

    def __init__(self, word: int, children: list[TreeNode]) -> None:
        self.word, self.children = word, children


@cache
def random_tree(leaves: int) -> TreeNode:
    """Return a random tree with this many leaves and two to four children per inner node."""
    rng = np.random.default_rng((WEIGHT_SEED, leaves))
    words = count()

    def random_subtree(leaves: int) -> TreeNode:
        """Return a random subtree."""
        word = next(words)
        if leaves == 1:
            return TreeNode(word, [])
        child_count = int(rng.integers(2, min(leaves, 4) + 1))
        cuts = np.sort(rng.choice(np.arange(1, leaves), child_count - 1, replace=False))
        return TreeNode(word, [random_subtree(int(n)) for n in np.diff([0, *cuts, leaves])])

    return random_subtree(leaves)


def count_nodes(root: TreeNode) -> int:
    """Return the number of nodes of a tree."""
    return 1 + sum(map(count_nodes, root.children))


@cache
def random_word_vectors(leaves: int) -> Array:
    """Return the word vectors of a tree's nodes, one row each."""
    size = count_nodes(random_tree(leaves))
    return np.random.default_rng((WEIGHT_SEED, leaves)).standard_normal((size, INPUTS), np.float32)


def tree_lstm_weights() -> dict[str, Array]:
    """Return seeded weights by name."""
    draw = SeededWeights()
    return {name: draw(*shape) for name, shape in TREE_LSTM_SHAPES.items()}


def tree_lstm_module() -> relay.IRModule:
    """Return the program with its weights."""
    bound = relay.parse(TREE_LSTM_PROGRAM, "tree_lstm", relay.Prelude().mod)
    bound["main"] = relay.build_module.bind_params_by_name(bound["main"], tree_lstm_weights())
    return bound


def run_ekiden(threads: int) -> Run:
    """Return Ekiden's run: one artifact, with trees as ADT values."""
    exe = ekiden.compile(tree_lstm_module())
    arguments = cache(
        lambda leaves: (
            runtime.tensor(random_word_vectors(leaves)),
            _tree_to_adt(random_tree(leaves)),
        )
    )
    return lambda leaves: list(exe(*arguments(leaves)))


def _tree_to_adt(root: TreeNode) -> runtime.ADT:
    below = runtime.ADT(1, ())  # Nil
    for child in reversed(root.children):
        below = runtime.ADT(0, (_tree_to_adt(child), below))  # Cons
    return runtime.ADT(0, (runtime.tensor(np.array([root.word], np.int32)), below))


class _TorchTreeLstm:
    """Tree-LSTM as a recursion in Python over PyTorch operators, as such models are written. `step`
    computes a node from its projected input and its children's states.
    """

    def __init__(self, threads: int) -> None:
        self.torch = import_torch(threads)
        self.weights = {
            name: self.torch.from_numpy(value) for name, value in tree_lstm_weights().items()
        }
        self.step = self.compute_node

    def linear(self, x: ForeignModule, weight: str, bias: str | None = None) -> ForeignModule:
        linear = self.torch.nn.functional.linear
        return linear(x, self.weights[weight], None if bias is None else self.weights[bias])

    def compute_node(
        self, inputs: ForeignModule, keep: ForeignModule, h: ForeignModule, c: ForeignModule
    ) -> ForeignModule:
        torch = self.torch
        i, o, u = (inputs + self.linear(h.sum(0, keepdim=True), "u")).chunk(3, dim=1)
        f = torch.sigmoid(keep + self.linear(h, "uf"))
        cell = torch.sigmoid(i) * torch.tanh(u) + (f * c).sum(0, keepdim=True)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    def compute_leaf(self, inputs: ForeignModule) -> ForeignModule:
        torch = self.torch
        i, o, u = inputs.chunk(3, dim=1)
        cell = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    def concat_child_states(
        self, root: TreeNode, visit: Callable[[TreeNode], ForeignModule]
    ) -> ForeignModule:
        """Return the concatenated states of a node's children."""
        states = [visit(child) for child in root.children]
        return [self.torch.cat(child_states) for child_states in zip(*states, strict=True)]

    def run_node_by_node(self, leaves: int) -> list[Array]:
        """Run node by node: each projects its own input, and leaves have zero children."""
        words = self.torch.from_numpy(random_word_vectors(leaves))
        none = [self.torch.zeros(1, HIDDEN)] * 2

        def visit(root: TreeNode) -> ForeignModule:
            x = words[root.word : root.word + 1]
            below = self.concat_child_states(root, visit) if root.children else none
            return self.step(self.linear(x, "w", "b"), self.linear(x, "wf", "bf"), *below)

        return [state.numpy() for state in visit(random_tree(leaves))]

    def run_hoisted(self, leaves: int) -> list[Array]:
        """Run with all inputs projected in one product and a separate case for leaves, as Ekiden's
        program does.
        """
        words = self.torch.from_numpy(random_word_vectors(leaves))
        inputs, keeps = self.linear(words, "w", "b"), self.linear(words, "wf", "bf")

        def visit(root: TreeNode) -> ForeignModule:
            word_slice = slice(root.word, root.word + 1)
            if not root.children:
                return self.compute_leaf(inputs[word_slice])
            return self.step(
                inputs[word_slice], keeps[word_slice], *self.concat_child_states(root, visit)
            )

        return [state.numpy() for state in visit(random_tree(leaves))]


def run_torch(threads: int) -> Run:
    """Return a run of operators one by one, node by node."""
    return _TorchTreeLstm(threads).run_node_by_node


def run_torch_hoisted(threads: int) -> Run:
    """Return a PyTorch run in the order of computation of Ekiden's program."""
    return _TorchTreeLstm(threads).run_hoisted


def run_torch_compile(threads: int) -> Run:
    """Return that run with the computation of a node compiled; trees prevent compiling more."""
    runner = _TorchTreeLstm(threads)
    runner.step = runner.torch.compile(runner.compute_node, dynamic=True)
    return runner.run_hoisted


TREE_ENGINES = {
    "ekiden": run_ekiden,
    "torch": run_torch,
    "torch hoisted": run_torch_hoisted,
    "torch.compile": run_torch_compile,
}
"""Each engine's workload, ours first. ONNX has no trees."""
