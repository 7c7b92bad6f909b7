"""Tables of PyTorch's operators that do not depend on its version."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ekiden.frontend.torch.overloads import existing_overloads, find_overload, overload_table  # noqa: E402


def test_operators_that_this_pytorch_lacks_are_left_out() -> None:
    # 2.14 removed aten::cholesky, 2.6 lacks what later versions add
    assert find_overload("no_such_operator.default") is None
    assert find_overload("add.no_such_overload") is None
    add = torch.ops.aten.add.Tensor
    assert existing_overloads(("no_such_operator.default", "add.Tensor")) == (add,)
    assert overload_table({"add.Tensor": 1, "no_such_operator.out": 2}) == {add: 1}
