"""Train a Tree-LSTM written in Relay: recursion over a data type, differentiated and compiled.

python examples/train_tree_lstm.py

A binary Tree-LSTM (Tai, Socher and Manning 2015, N-ary with N = 2) reads a tree of words and tells
which of its classes the tree is of. One program runs trees of any shape: a step of stochastic
gradient descent computes the loss, the gradients of all weights, and the weights after the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

import ekiden
from ekiden import relay
from ekiden.runtime import ADT

WORDS, FEATURES, HIDDEN, CLASSES = 50, 16, 32, 2
RATE = 0.1

PROGRAM = """
type Tree { Leaf(int32), Node(Tree, Tree), }

def @cell(%t: Tree, %words: Tensor[(W, F), float32],
          %leaf: Tensor[(3H, F), float32], %leaf_bias: Tensor[(3H,), float32],
          %node: Tensor[(5H, 2H), float32], %node_bias: Tensor[(5H,), float32])
    -> (Tensor[(1, H), float32], Tensor[(1, H), float32]) {
  match (%t) {
    Leaf(%w) => {
      let %x = expand_dims(take(%words, %w, axis=0), axis=0);
      let %g = split(nn.bias_add(nn.dense(%x, %leaf), %leaf_bias), indices_or_sections=3, axis=1);
      let %c = multiply(sigmoid(%g.0), tanh(%g.2));
      (multiply(sigmoid(%g.1), tanh(%c)), %c)
    },
    Node(%l, %r) => {
      let %a = @cell(%l, %words, %leaf, %leaf_bias, %node, %node_bias);
      let %b = @cell(%r, %words, %leaf, %leaf_bias, %node, %node_bias);
      let %h = concatenate((%a.0, %b.0), axis=1);
      let %g = split(nn.bias_add(nn.dense(%h, %node), %node_bias), indices_or_sections=5, axis=1);
      let %kept = add(multiply(sigmoid(%g.1), %a.1), multiply(sigmoid(%g.2), %b.1));
      let %c = add(multiply(sigmoid(%g.0), tanh(%g.4)), %kept);
      (multiply(sigmoid(%g.3), tanh(%c)), %c)
    },
  }
}

def @loss(%t: Tree, %label: Tensor[(1,), int32], %words: Tensor[(W, F), float32],
          %leaf: Tensor[(3H, F), float32], %leaf_bias: Tensor[(3H,), float32],
          %node: Tensor[(5H, 2H), float32], %node_bias: Tensor[(5H,), float32],
          %out: Tensor[(K, H), float32]) -> float32 {
  let %s = @cell(%t, %words, %leaf, %leaf_bias, %node, %node_bias);
  let %log = nn.log_softmax(nn.dense(%s.0, %out), axis=1);
  negative(sum(multiply(%log, one_hot(%label, 1f, 0f, depth=K, axis=-1, dtype="float32"))))
}
"""


def sized(text: str, sizes: Mapping[str, int]) -> ekiden.IRModule:
    """Return the module of a text in which names of sizes stand for numbers: `(3H, F)`."""

    def number(name: re.Match[str]) -> str:
        return str(int(name[1] or 1) * sizes[name[2]]) if name[2] in sizes else name[0]

    return relay.parse(re.sub(r"\b(\d*)([A-Z])\b(?=[,)\]])", number, text))


def loss_module() -> ekiden.IRModule:
    """Return the module with @loss."""
    return sized(PROGRAM, {"W": WORDS, "F": FEATURES, "H": HIDDEN, "K": CLASSES})


def training_step(module: ekiden.IRModule, data: int, rate: float) -> ekiden.IRModule:
    """Return the program (data..., weights...) -> (loss, new weights...) of @loss, whose first
    `data` parameters are no weights.
    """
    back = relay.transform.gradient(module.get_global_var("loss"), module)
    params = [relay.var(p.name_hint, p.checked_type) for p in back.params]
    result = relay.var("result")
    grads = relay.TupleGetItem(result, 1)
    new = [p - relay.const(rate) * relay.TupleGetItem(grads, i) for i, p in enumerate(params)
           if i >= data]  # fmt: skip
    body = relay.Tuple([relay.TupleGetItem(result, 0), *new])
    module["main"] = relay.Function(params, relay.Let(result, relay.Call(back, params), body))
    return module


def initial_weights() -> list[np.ndarray]:
    """Return random weights: words, leaf, leaf_bias, node, node_bias, out."""
    random = np.random.default_rng(0)
    shapes = ((WORDS, FEATURES), (3 * HIDDEN, FEATURES), (3 * HIDDEN,),
              (5 * HIDDEN, 2 * HIDDEN), (5 * HIDDEN,), (CLASSES, HIDDEN))  # fmt: skip
    return [random.normal(0, 0.3, shape).astype("float32") for shape in shapes]


Nested = int | tuple["Nested", "Nested"]
"""A tree: the number of a word, or two trees."""


def random_tree(random: np.random.Generator, leaves: int) -> Nested:
    """Return a tree of random shape with so many words."""
    if leaves == 1:
        return int(random.integers(WORDS))
    left = int(random.integers(1, leaves))
    return random_tree(random, left), random_tree(random, leaves - left)


def as_value(tree: Nested) -> ADT:
    """Return a tree as a value of the type Tree: Leaf has tag 0, Node has tag 1."""
    if isinstance(tree, int):
        return ADT(0, (np.array(tree, "int32"),))
    return ADT(1, tuple(map(as_value, tree)))


def first_word(tree: Nested) -> int:
    """Return the leftmost word."""
    while not isinstance(tree, int):
        tree = tree[0]
    return tree


def examples(count: int) -> list[tuple[Nested, int]]:
    """Return trees of 3 to 12 words; the class is the parity of the leftmost word."""
    random = np.random.default_rng(1)
    trees = [random_tree(random, int(random.integers(3, 13))) for _ in range(count)]
    return [(tree, first_word(tree) % CLASSES) for tree in trees]


def main() -> None:
    """Train for some epochs, and print the mean loss of each."""
    step = ekiden.compile(training_step(loss_module(), 2, RATE))
    weights, data = initial_weights(), examples(40)
    for epoch in range(8):
        losses = []
        for tree, label in data:
            loss, *weights = step(as_value(tree), np.array([label], "int32"), *weights)
            losses.append(float(loss.numpy()))
        print(f"epoch {epoch}: mean loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()
