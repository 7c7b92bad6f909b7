"""Train a recurrent network written in Relay: tail recursion over a list, differentiated.

python examples/train_rnn.py

The network reads a batch of sequences of any length and tells whether the sum of the first numbers
of a sequence is positive. The recursion is a loop: neither the run nor the gradient takes stack.
"""

from __future__ import annotations

import numpy as np
from train_tree_lstm import sized, training_step

import ekiden
from ekiden.runtime import ADT

BATCH, FEATURES, HIDDEN, CLASSES = 16, 8, 64, 2
RATE = 0.03

PROGRAM = """
type List[A] { Cons(A, List[A]), Nil, }

def @states(%xs: List[Tensor[(B, F), float32]], %h: Tensor[(B, H), float32],
            %input: Tensor[(H, F), float32], %state: Tensor[(H, H), float32],
            %bias: Tensor[(H,), float32]) -> Tensor[(B, H), float32] {
  match (%xs) {
    Nil => %h,
    Cons(%x, %rest) => {
      let %sum = add(nn.dense(%x, %input), nn.dense(%h, %state));
      @states(%rest, tanh(nn.bias_add(%sum, %bias)), %input, %state, %bias)
    },
  }
}

def @loss(%xs: List[Tensor[(B, F), float32]], %labels: Tensor[(B,), int32],
          %input: Tensor[(H, F), float32], %state: Tensor[(H, H), float32],
          %bias: Tensor[(H,), float32], %out: Tensor[(K, H), float32]) -> float32 {
  let %h = @states(%xs, zeros(shape=[B, H], dtype="float32"), %input, %state, %bias);
  let %log = nn.log_softmax(nn.dense(%h, %out), axis=1);
  let %hot = one_hot(%labels, 1f, 0f, depth=K, axis=-1, dtype="float32");
  negative(divide(sum(multiply(%log, %hot)), 16f))
}
"""


def loss_module() -> ekiden.IRModule:
    """Return the module with @loss."""
    return sized(PROGRAM, {"B": BATCH, "F": FEATURES, "H": HIDDEN, "K": CLASSES})


def initial_weights() -> list[np.ndarray]:
    """Return random weights: input, state, bias, out."""
    random = np.random.default_rng(0)
    shapes = (HIDDEN, FEATURES), (HIDDEN, HIDDEN), (HIDDEN,), (CLASSES, HIDDEN)
    return [random.normal(0, 0.1, shape).astype("float32") for shape in shapes]


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return batches of sequences, each (length, batch, features), and their labels."""
    random = np.random.default_rng(1)
    made = []
    for _ in range(count):
        x = random.normal(size=(int(random.integers(5, 25)), BATCH, FEATURES)).astype("float32")
        made.append((x, (x[:, :, 0].sum(0) > 0).astype("int32")))
    return made


def as_list(items: np.ndarray) -> ADT:
    """Return an array's items as a value of the type List: Cons has tag 0, Nil has tag 1."""
    made = ADT(1)
    for item in items[::-1]:
        made = ADT(0, (item, made))
    return made


def main() -> None:
    """Train for some epochs, and print the mean loss of each."""
    step = ekiden.compile(training_step(loss_module(), 2, RATE))
    weights = initial_weights()
    for epoch in range(8):
        losses = []
        for x, labels in batches(40):
            loss, *weights = step(as_list(x), labels, *weights)
            losses.append(float(loss.numpy()))
        print(f"epoch {epoch}: mean loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()
