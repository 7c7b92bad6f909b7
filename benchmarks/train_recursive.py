"""Training steps of recursive programs, compared with PyTorch: a Tree-LSTM and an RNN over lists.

python benchmarks/train_recursive.py [--epochs 5] [--threads 1]

The programs are those of examples/: one step computes the loss and all gradients, and subtracts
them from the weights. PyTorch runs the same model eagerly, with its own autograd, on the same data
from the same weights; the two take turns step by step. Figures are medians of single steps, on the
clock and of the processor's time, which other programs on the machine do not change. The losses of
both are compared: the same up to rounding is part of the result.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import ekiden

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train_rnn
import train_tree_lstm as tree_lstm

Step = Callable[..., float]


def torch_tree_loss(tree: tree_lstm.Nested, label: int, weights: Sequence[object]) -> object:
    """Return the loss of examples/train_tree_lstm.py, as PyTorch computes it."""
    words, leaf, leaf_bias, node, node_bias, out = weights

    def cell(t: tree_lstm.Nested) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the hidden and cell state of a subtree."""
        if isinstance(t, int):
            i, o, u = functional.linear(words[t][None], leaf, leaf_bias).chunk(3, 1)
            c = torch.sigmoid(i) * torch.tanh(u)
            return torch.sigmoid(o) * torch.tanh(c), c
        (left_h, left_c), (right, right_c) = cell(t[0]), cell(t[1])
        gates = functional.linear(torch.cat([left_h, right], 1), node, node_bias)
        i, f, g, o, u = gates.chunk(5, 1)
        remembered = torch.sigmoid(f) * left_c + torch.sigmoid(g) * right_c
        c = torch.sigmoid(i) * torch.tanh(u) + remembered
        return torch.sigmoid(o) * torch.tanh(c), c

    return functional.cross_entropy(functional.linear(cell(tree)[0], out), torch.tensor([label]))


def torch_rnn_loss(xs: np.ndarray, labels: np.ndarray, weights: Sequence[object]) -> object:
    """Return the loss of examples/train_rnn.py, as PyTorch computes it."""
    of_input, of_state, bias, out = weights
    state = torch.zeros(train_rnn.BATCH, train_rnn.HIDDEN)
    for x in torch.from_numpy(xs):
        state = torch.tanh(
            functional.linear(x, of_input) + functional.linear(state, of_state) + bias
        )
    return functional.cross_entropy(functional.linear(state, out), torch.from_numpy(labels).long())


def torch_step(loss: Callable[..., object], weights: Sequence[np.ndarray], rate: float) -> Step:
    """Return a PyTorch training step with weights of its own, updated in place."""
    own = [torch.tensor(w, requires_grad=True) for w in weights]

    def step(data: object, label: object) -> float:
        value = loss(data, label, own)
        value.backward()
        with torch.no_grad():
            for w in own:
                w -= rate * w.grad
                w.grad = None
        return value.item()

    return step


def ekiden_step(module: object, weights: Sequence[np.ndarray], rate: float) -> Step:
    """Return a compiled training step that feeds back the weights it returned last."""
    program = ekiden.compile(tree_lstm.training_step(module, 2, rate))
    own = list(weights)

    def step(data: object, label: np.ndarray) -> float:
        loss, *own[:] = program(data, label, *own)
        return float(loss.numpy())

    return step


def compare_training(
    ours: Step, theirs: Step, data: Sequence[tuple[tuple, tuple]], epochs: int
) -> None:
    """Run both steps in turns over (our arguments, PyTorch's), and print medians and losses."""
    times: tuple[list[tuple[float, float]], list[tuple[float, float]]] = [], []
    largest = 0.0
    for _ in range(epochs):
        for pair in data:
            losses = []
            for step, args, spent in zip((ours, theirs), pair, times, strict=True):
                begin, work = time.perf_counter(), time.process_time()
                losses.append(step(*args))
                spent.append((time.perf_counter() - begin, time.process_time() - work))
            largest = max(largest, abs(losses[0] - losses[1]))
    mine, torch_times = (1e6 * np.median(spent, axis=0) for spent in times)
    for what, ekiden_us, torch_us in zip(("clock", "processor"), mine, torch_times, strict=True):
        shown = f"Ekiden {ekiden_us:8.0f} us, PyTorch {torch_us:8.0f} us a step"
        print(f"  {what:9} {shown}: {torch_us / ekiden_us:.1f} times")
    print(f"  {len(times[0])} steps, the largest difference of losses {largest:.1e}")


def cpu_model_name() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = dict(line.partition(":")[::2] for line in reversed(lines) if ":" in line)
    info = {key.strip(): value.strip() for key, value in named.items()}
    return f"{info.get('model name')}, family {info.get('cpu family')} model {info.get('model')}"


def main() -> None:
    """Print the figures of both programs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    os.environ["EKIDEN_NUM_THREADS"] = str(chosen.threads)

    torch.set_num_threads(chosen.threads)
    print(f"{cpu_model_name()}, {chosen.threads} threads, PyTorch {torch.__version__}")

    trees = tree_lstm.examples(40)
    pairs = [((tree_lstm.as_value(t), np.array([n], "int32")), (t, n)) for t, n in trees]
    weights = tree_lstm.initial_weights()
    print("Tree-LSTM, trees of 3 to 12 words")
    compare_training(
        ekiden_step(tree_lstm.loss_module(), weights, tree_lstm.RATE),
        torch_step(torch_tree_loss, weights, tree_lstm.RATE), pairs, chosen.epochs,
    )  # fmt: skip
    batches = train_rnn.batches(40)
    both = [((train_rnn.as_list(x), labels), (x, labels)) for x, labels in batches]
    weights = train_rnn.initial_weights()
    print("RNN, batches of 16 sequences of 5 to 24 items")
    compare_training(
        ekiden_step(train_rnn.loss_module(), weights, train_rnn.RATE),
        torch_step(torch_rnn_loss, weights, train_rnn.RATE), both, chosen.epochs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
