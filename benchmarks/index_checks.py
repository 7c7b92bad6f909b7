"""Overhead of run-time index checks: models that look up many embeddings, with `take(mode="raise")`
and without checks, in turns in one process, by the time of the thread.

    python benchmarks/index_checks.py [--rounds 200]

Without: indices are clipped alone (`take(mode="fast")`), or those below 0 count from the end first,
as in ONNX. Prints the least times, and the ratios of the least and of the lower quartiles.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import ekiden
from ekiden import relay
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr

INDEX_CHECK_FORMS = ("checked", "fast", "clipped")


def take_rows(table: Expr, indices: Expr, form: str) -> Call:
    """Return rows of a table, with out-of-range indices refused, clipped, or wrapped and
    clipped.
    """
    if form != "clipped":
        return op.take(table, indices, axis=0, mode="raise" if form == "checked" else "fast")
    size = relay.const(np.int64(table.data.shape[0]))  # type: ignore[attr-defined]
    shifted = op.where(op.less(indices, relay.const(np.int64(0))), op.add(indices, size), indices)
    return op.take(table, shifted, axis=0, mode="clip")


def bert_embeddings(form: str) -> tuple[ekiden.IRModule, list[np.ndarray]]:
    """Return words, positions and segments of 8 x 128 tokens, added and normalized."""
    rng = np.random.default_rng(0)
    sizes = (30522, 512, 2)
    tables = [relay.const(rng.random((n, 768), dtype=np.float32)) for n in sizes]
    ids = [relay.var(f"i{n}", shape=(8, 128), dtype="int64") for n in range(3)]
    rows = [take_rows(t, i, form) for t, i in zip(tables, ids, strict=True)]
    ones = relay.const(np.ones(768, np.float32))
    body = op.nn.layer_norm(op.add(op.add(rows[0], rows[1]), rows[2]), ones, ones)
    arrays = [rng.integers(0, n, (8, 128)) for n in sizes]
    return ekiden.IRModule.from_expr(relay.Function(ids, body)), arrays


def dlrm_embeddings(form: str) -> tuple[ekiden.IRModule, list[np.ndarray]]:
    """Return 26 tables of 10,000 rows of 64, for 256 examples, followed by two layers (as DLRM)."""
    rng = np.random.default_rng(0)
    ids = [relay.var(f"i{n}", shape=(256,), dtype="int64") for n in range(26)]
    tables = [relay.const(rng.random((10_000, 64), dtype=np.float32)) for _ in ids]
    rows = [take_rows(t, i, form) for t, i in zip(tables, ids, strict=True)]
    x: Expr = op.concatenate(rows, axis=1)
    for wide, narrow in ((26 * 64, 256), (256, 64)):
        weight = relay.const(rng.standard_normal((narrow, wide)).astype(np.float32) / wide)
        x = op.nn.relu(op.nn.dense(x, weight))
    arrays = [rng.integers(0, 10_000, 256) for _ in ids]
    return ekiden.IRModule.from_expr(relay.Function(ids, x)), arrays


def main() -> None:
    """Time all forms of every model in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    for name, make in (("bert embeddings", bert_embeddings), ("recommender", dlrm_embeddings)):
        runs = []
        for form in INDEX_CHECK_FORMS:
            module, arrays = make(form)
            runs.append((ekiden.compile(module), arrays))
        results = [np.asarray(exe(*arrays)) for exe, arrays in runs]
        for other_result in results[1:]:
            np.testing.assert_allclose(other_result, results[0], rtol=1e-5)
        times: list[list[float]] = [[] for _ in INDEX_CHECK_FORMS]
        for round_index in range(rounds):
            for n in range(len(INDEX_CHECK_FORMS)):
                # The order rotates, so that no form always follows the same one.
                which = (round_index + n) % len(INDEX_CHECK_FORMS)
                exe, arrays = runs[which]
                started = time.thread_time_ns()
                exe(*arrays)
                times[which].append((time.thread_time_ns() - started) / 1e3)
        checked, *unchecked = (sorted(t) for t in times)
        print(f"{name}: checked {checked[0]:.1f} us")
        for form, plain in zip(INDEX_CHECK_FORMS[1:], unchecked, strict=True):
            quarter = rounds // 4
            print(
                f"  {form:8} {plain[0]:8.1f} us  checked to it: minima"
                f" {checked[0] / plain[0]:.4f}, quartiles {checked[quarter] / plain[quarter]:.4f}"
            )


if __name__ == "__main__":
    main()
