"""Templates with knobs: AutoTVM's API."""

from __future__ import annotations

import random

import numpy as np
import pytest

import ekiden
from ekiden import te, tune
from ekiden.runtime.errors import InputError
from ekiden.te.schedule import Schedule
from ekiden.tune import Candidate, FamilySpace, Measurer, Session
from ekiden.tune import te_workload as of


@tune.template("tests/product")
def product(n: int, m: int, k: int) -> tuple[Schedule, list[te.Tensor]]:
    a, b, c = of.matmul(1, n, m, k)
    s = te.create_schedule(c.op)
    op = s[c].op
    assert isinstance(op, te.ComputeOp)
    _, y, x = op.axis
    (r,) = op.reduce_axis
    cfg = tune.get_config()
    cfg.define_split("rows", y, num_outputs=2, max_factor=8)
    cfg.define_split("columns", x, policy="candidate", candidate=[[-1, 8], [-1, 16]])
    y_outer, y_inner = cfg["rows"].apply(s, c, y)
    x_outer, x_inner = cfg["columns"].apply(s, c, x)
    axes = [r, y_inner, x_inner]
    cfg.define_reorder("order", axes, policy="candidate", candidate=[axes, [y_inner, r, x_inner]])
    s[c].reorder(y_outer, x_outer)
    cfg["order"].apply(s, c, axes)
    cfg.define_annotate("how", [y_inner, x_inner], policy="try_unroll_vec")
    cfg["how"].apply(s, c, [y_inner, x_inner])
    cfg.define_knob("threads", [False, True])
    if cfg["threads"].val:
        s[c].parallel(y_outer)
    return s, [a, b, c]


def test_every_choice_computes_the_same() -> None:
    task = tune.template_task("tests/product", (12, 32, 16), "llvm")
    assert isinstance(task.space, FamilySpace)
    assert {c.name: len(c.domain) for c in task.space.free} == {
        "rows": 5, "columns": 2, "order": 2, "how": 3, "threads": 2,
    }  # fmt: skip
    assert (
        str(task.space.decide({}))
        == "rows=12,1 columns=4,8 order=0,1,2 how=none,none threads=False"
    )
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, np.float32) for s in ((1, 12, 16), (1, 16, 32)))
    source = random.Random(0)
    for candidate in (task.space.default, *(task.space.sample(source) for _ in range(3))):
        result, sent = task.sent(candidate)
        out = np.zeros((1, 12, 32), np.float32)
        ekiden.build(result.lower(sent, task.target), name="main")["main"](a, b, out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
    assert "cannot be 5,5" in task.space.refusal(Candidate("tests/product", "rows=5,5"))


def test_template_is_tuned_and_its_records_are_found() -> None:
    task = tune.template_task(product, (8, 16, 8), "llvm", name="tests/product")
    measurer = Measurer(turns=3, race_seconds=0.05, jobs=1, batch=4)
    session = Session([task], measurer=measurer)
    session.run(4)
    trials = session.records.query(kind="trial")
    assert len(trials) == 4 and {t.rule for t in trials} == {"tests/product"}
    assert {t.status for t in trials} <= {"ok", "unsteady"}
    assert task.program(session.records).params


def test_invalid_templates_are_refused() -> None:
    with pytest.raises(InputError, match="no template is called 'nothing'; there are: .*product"):
        tune.template_task("nothing", ())
    with pytest.raises(InputError, match="the template 'plain' has no knobs"):
        tune.template_task(plain, (4,))
    config = tune.get_config()
    config.define_knob("a", [1, 2])
    with pytest.raises(InputError, match="'a' is defined twice, with other values"):
        config.define_knob("a", [1, 3])
    with pytest.raises(InputError, match="no knob is called 'b'; there are: a"):
        config["b"]
    with pytest.raises(InputError, match="are no factors of 16"):
        config.define_split("s", 16, policy="candidate", candidate=[[2, 4]])


def plain(n: int) -> tuple[Schedule, list[te.Tensor]]:
    a, b, c = of.matmul(1, n, n, n)
    return te.create_schedule(c.op), [a, b, c]
