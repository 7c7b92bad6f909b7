"""Random sparse matrices."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden.topi.sparse.utils import random_bsr_matrix

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "shape, block, density", [((32, 12), (8, 3), 0.3), ((4, 4), (1, 1), 1.0), ((0, 4), (2, 2), 0.5)]
)
def test_random_matrix_has_so_many_blocks(
    shape: tuple[int, int], block: tuple[int, int], density: float
) -> None:
    pytest.importorskip("scipy")
    result = random_bsr_matrix(*shape, *block, density, "float32")
    dense, all_blocks = np.asarray(result.todense()), shape[0] * shape[1] // (block[0] * block[1])
    assert dense.shape == shape and result.data.dtype == np.float32
    assert len(result.data) == min(int(int(density * dense.size) / np.prod(block)) + 1, all_blocks)
    assert np.count_nonzero(dense) == result.data.size


def test_blocks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="3x1 blocks do not divide 8x4"):
        random_bsr_matrix(8, 4, 3, 1, 0.5)
