"""Ranking accuracy of cost models on candidates of unseen tasks.

    python benchmarks/tune_cost_models.py records.json [--most 60]

Of the records that benchmarks/tune_workloads.py wrote, each workload in turn is held out: a model
learns from up to `--most` trials of each of the others. Printed are the rank correlation over the
trials held out, and how many of the best tenth are among the tenth that the model guesses best.
"""

from __future__ import annotations

import argparse
import random

import numpy as np

from ekiden.target import Target
from ekiden.tune import Candidate, Records, te_task
from ekiden.tune.cost_model import BoostedTrees, CostModel, Features, NearestNeighbours
from ekiden.tune.te_workload import WORKLOADS

COST_MODELS: dict[str, type] = {"neighbours": NearestNeighbours, "trees": BoostedTrees}
Rows = tuple[list[Features], list[float]]


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Return Spearman's rank correlation, with ties in order."""
    first, second = (np.argsort(np.argsort(x, kind="stable")).astype(float) for x in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def top_decile_recall(guessed: list[float], true: list[float]) -> float:
    """Return the share of the truly best tenth that is predicted to be in the best tenth."""
    count = max(1, len(true) // 10)
    best = set(np.argsort(true)[:count].tolist())
    return len(best & set(np.argsort(guessed)[:count].tolist())) / count


def load_trials(name: str, records: Records, limit: int) -> Rows:
    """Return the features and ratios of some of a workload's trials, relative to their median."""
    space = te_task(WORKLOADS[name](), Target("llvm"), name).space
    trials = [t for t in records.query(name=name, kind="trial") if t.status == "ok" and t.choice]
    random.Random(0).shuffle(trials)
    trials = trials[:limit]
    middle = float(np.median([t.ratio for t in trials])) if trials else 1.0
    rows = [space.features(Candidate(t.rule, t.choice)) for t in trials]
    return rows, [t.ratio / middle for t in trials]


def main() -> None:
    """Print a line for each workload and model, then the means."""
    parser = argparse.ArgumentParser()
    parser.add_argument("records")
    parser.add_argument("--most", type=int, default=60)
    options = parser.parse_args()
    records = Records.open(options.records)
    every = {name: load_trials(name, records, options.most) for name in WORKLOADS}
    every = {name: rows for name, rows in every.items() if len(rows[0]) >= 20}
    for kind, make in COST_MODELS.items():
        scores = []
        for name, (rows, true) in every.items():
            training = [r for n, r in every.items() if n != name]
            model: CostModel = make()
            model.fit([f for r in training for f in r[0]], [y for r in training for y in r[1]])
            guessed = model.predict(rows)
            scores.append((rank_correlation(guessed, true), top_decile_recall(guessed, true)))
            print(f"{kind:10} {name}  rank correlation {scores[-1][0]:5.2f}  of the best tenth"
                  f" {scores[-1][1]:4.0%}", flush=True)  # fmt: skip
        means = np.mean(scores, axis=0)
        print(f"{kind:10} mean of {len(scores)}: {means[0]:.2f}, {means[1]:.0%}")


if __name__ == "__main__":
    main()
