"""Text and JSON of every operator."""

from __future__ import annotations

import pytest
from operator_cases import Case
from operator_checks import CASES

from ekiden.ir.json import load_json, save_json
from ekiden.ir.structural import structural_equal
from ekiden.relay import Function, parse_expr
from long_runs import share

pytestmark = pytest.mark.quick


@share(2, by=lambda case: case.name)
@pytest.mark.parametrize("case", CASES, ids=[c.label for c in CASES])
def test_call_reads_back_from_text_and_json(case: Case) -> None:
    function = Function(case.params, case.call, None)
    assert structural_equal(parse_expr(function.astext()), function)
    assert structural_equal(load_json(save_json(function)), function)
