"""Search spaces and strategies, without measurement."""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence

import pytest

from ekiden.kernels.decision import Decision, Knob, Overrides
from ekiden.runtime.errors import CompileError, InputError
from ekiden.tune import Candidate, Evolution, FamilySpace, Random, Records, Replay, Task, learned
from ekiden.tune.cost_model import BoostedTrees, CostModel, Features, NearestNeighbours
from ekiden.tune.records import Trial
from ekiden.tune.search import Search

ROWS, ORDER = Knob("rows", (4, 3, 2, 1), "rows"), Knob("order", ("panel", "row"), "order")
EARLY = Knob("panel", (16, 32), "chosen before", is_early=True)
ONE = Knob("own", (8,), "only one")


def decide(fixed: Overrides) -> Decision:
    if fixed.get("rows") == 1 and fixed.get("order") == "row":
        raise CompileError("these do not go together")
    rows = fixed.get("rows", 3)
    order = fixed.get("order", "panel")
    return Decision.from_mapping({"panel": 16, "rows": rows, "order": order, "own": 8})


SPACE = FamilySpace("toy", (EARLY, ROWS, ORDER, ONE), decide)


def cost(candidate: Candidate) -> float:
    decision = Decision.parse(candidate.choice)
    return 0.5 + 0.1 * abs(decision.int_value("rows") - 2) + 0.2 * (decision["order"] == "panel")


def test_decided_knobs_are_not_searched() -> None:
    assert [c.name for c in SPACE.free] == ["rows", "order"] and SPACE.size == 8
    source = random.Random(0)
    drawn = {SPACE.mutate(SPACE.default, source).choice for _ in range(50)}
    assert drawn <= {"", *(f"rows={r} order={o}" for r in (1, 2, 3, 4) for o in ("panel", "row"))}


@pytest.mark.parametrize("search", [Random(), Evolution(), Evolution(exploration=1.0)])
def test_all_of_a_small_space_is_found_once(search: Search) -> None:
    history: dict[Candidate, float] = {}
    source = random.Random(1)
    while new := search.propose(SPACE, history, 3, source):
        assert not history.keys() & set(new) and len(new) == len(set(new)) <= 3
        history |= {c: cost(c) for c in new}
    assert len(history) == 6  # of eight one is refused, one is the default
    assert min(history, key=history.__getitem__).choice == "rows=2 order=row"


def test_failed_candidates_have_no_offspring() -> None:
    failed = Candidate("toy", "rows=4 order=row")
    space = FamilySpace("toy", (Knob("rows", tuple(range(1000)), "rows"),), decide)
    history = {failed: math.inf, Candidate("toy", "rows=500"): 0.1}
    result = Evolution(exploration=0.0, crossing=0.0).propose(space, history, 8, random.Random(0))
    assert result and all(c not in history for c in result)


def test_equal_seeds_propose_the_same() -> None:
    first, second = (Evolution().propose(SPACE, {}, 4, random.Random(7)) for _ in range(2))
    assert first == second


def test_replay_gives_what_is_of_the_space() -> None:
    inputs = (
        Candidate("toy", "rows=1 order=panel"),
        Candidate("other", "rows=1"),
        Candidate("toy", "rows=9"),
        Candidate("toy", "row=1"),
        Candidate("toy", "rows=1 order=panel"),
    )
    assert Replay(inputs).propose(SPACE, {}, 8, random.Random(0)) == [inputs[0]]
    assert [SPACE.refusal(c) for c in inputs[1:4]] == [
        "the kernel is of the family 'toy', not 'other'",
        "'rows' cannot be 9 any more",
        "'toy' has no choice 'row'",
    ]


def test_shares_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="shares from 0 to 1"):
        Evolution(exploration=1.5)


class Guess:
    """A model that knows."""

    def fit(self, rows: Sequence[Features], ratios: Sequence[float]) -> None:
        self.seen = len(rows)

    def predict(self, rows: Sequence[Features]) -> list[float]:
        assert self.seen >= 12
        return [abs(row["rows"] - 77) for row in rows]


def test_model_chooses_among_children() -> None:
    space = FamilySpace("toy", (Knob("rows", tuple(range(1000)), "rows"),), decide)
    history = {Candidate("toy", f"rows={n}"): float(n) for n in range(60, 90)}
    plain = Evolution(exploration=0.0)
    guided = Evolution(exploration=0.0, model=Guess)

    def off(search: Evolution) -> float:
        result = search.propose(space, history, 4, random.Random(0))
        return sum(abs(Decision.parse(c.choice).int_value("rows") - 77) for c in result)

    assert off(guided) < off(plain)


def test_model_knows_what_earlier_records_say(task: Task) -> None:
    source = random.Random(3)
    tried = {task.space.sample(source): 1.0 + n / 10 for n in range(20)}
    records = Records()
    message = {"workload": task.workload, "target": str(task.target)}
    records.append(
        *(Trial(**message, rule=c.rule, choice=c.choice, ratio=r) for c, r in tried.items()),
        Trial(**message, rule="another", choice="", ratio=0.1),
        Trial(**message, rule=task.space.default.rule, choice="rows=99", ratio=0.1),
    )
    known = learned(records, [task])
    middle = statistics.median(tried.values())
    assert sorted(ratio for _, ratio in known) == pytest.approx(
        sorted(ratio / middle for ratio in tried.values())
    )
    seen: list[int] = []

    class Watched(NearestNeighbours):
        def fit(self, rows: Sequence[Features], ratios: Sequence[float]) -> None:
            seen.append(len(rows))
            super().fit(rows, ratios)

    Evolution(model=Watched, known=known, pool=2).propose(task.space, {}, 2, random.Random(0))
    assert seen == [len(known)]


def test_kernel_of_a_model_has_a_space(task: Task) -> None:
    source = random.Random(0)
    for _ in range(30):
        candidate = task.space.mutate(task.space.sample(source), source)
        assert task.space.refusal(candidate) == ""
        assert len(task.space.features(candidate)) == len(task.space.features(task.space.default))


def _trees() -> CostModel:
    pytest.importorskip("lightgbm", reason="needs lightgbm")
    return BoostedTrees()


@pytest.mark.parametrize("make", [NearestNeighbours, _trees], ids=["neighbours", "trees"])
def test_models_order_what_they_have_not_seen(make: Callable[[], CostModel]) -> None:
    source = random.Random(0)

    def drawn() -> dict[str, float]:
        word = source.choice(["order=row", "order=panel"])
        return {
            "rows": float(source.randint(1, 16)),
            "own": float(source.choice([0, 8])),
            word: 1.0,
        }

    def ratio(row: dict[str, float]) -> float:
        return 1.0 + abs(row["rows"] - 6) / 4 + ("order=row" in row)

    model = make()
    known = [drawn() for _ in range(80)]
    model.fit(known, [ratio(r) for r in known])
    new = [drawn() for _ in range(60)]
    guessed, true = model.predict(new), [ratio(r) for r in new]
    pairs = [(a, b) for a in range(60) for b in range(a) if true[a] != true[b]]
    right = sum((guessed[a] < guessed[b]) == (true[a] < true[b]) for a, b in pairs)
    assert right > 0.85 * len(pairs)
    assert len(model.predict([{"other": 1.0}])) == 1


def test_without_lightgbm_trees_say_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(CompileError, match="pip install ekiden\\[tune\\]"):
        BoostedTrees()
