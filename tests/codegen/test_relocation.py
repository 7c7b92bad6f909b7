"""Relocations out of range are errors."""

from __future__ import annotations

import pytest

from ekiden.codegen.llvm.relocation import (
    AARCH64,
    ARMV7,
    R_AARCH64_CALL26,
    R_ARM_CALL,
    LinkArchitecture,
    ResolvedReference,
)
from ekiden.runtime.errors import InternalError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("architecture", "kind", "reach"),
    [(AARCH64, R_AARCH64_CALL26, 1 << 27), (ARMV7, R_ARM_CALL, 1 << 25)],
)
def test_branch_range_is_that_of_its_instruction(
    architecture: LinkArchitecture, kind: int, reach: int
) -> None:
    def relocated(target: int) -> int:
        out = bytearray(4)
        architecture.apply_relocation(out, ResolvedReference(kind, 0, target, False, "f"))
        return int.from_bytes(out, "little")

    assert relocated(reach - 4) == reach // 4 - 1
    assert relocated(-reach) == reach // 4
    for target in (reach, -reach - 4):
        with pytest.raises(InternalError, match=f"'f' is {target} bytes away, too far"):
            relocated(target)
