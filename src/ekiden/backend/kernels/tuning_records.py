"""Tuning records of kernels, keyed by the computation and the target.

A record is of one compiler's choices. Where the kernel is of another family now, or a value cannot
be any more, the record is named in a warning and the default is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from ekiden.backend.kernels.lower import choose_primitive, describe_kernel_name, display_name
from ekiden.backend.kernels.size_ranges import TunedSizes
from ekiden.ir.pass_context import TUNING_RECORDS_OPTION, PassContext
from ekiden.ir.structural import structural_digest
from ekiden.kernels.decision import (
    Decision,
    Overrides,
    require_valid_overrides,
    with_current_names,
)
from ekiden.relay.expr import Function
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.lazy_logger import LazyLogger
from ekiden.target import Target

_LOG = LazyLogger(__name__)
TuningRecord: TypeAlias = tuple[TunedSizes, str, str]
"""Record (sizes of each tuned run, rule, choice)."""


@dataclass(slots=True)
class TuningRecords:
    """Tuning records of the current PassContext for a target, and counts of their use."""

    target: Target
    records: Mapping[str, Sequence[TuningRecord]]
    """Records by workload and target, per set of sizes."""
    num_used: int = 0
    num_foreign: int = 0
    """Number of kernels with records for other targets only."""
    refused: list[str] = field(default_factory=list)

    @staticmethod
    def current(target: Target) -> TuningRecords:
        """Return the records of the context. Raises CompileError for an invalid one."""
        option = PassContext.current().option(TUNING_RECORDS_OPTION)
        assert isinstance(option, dict)
        return TuningRecords(
            target, {str(key): _parse_records(key, value) for key, value in option.items()}
        )

    def applicable_decisions(self, form: Function) -> list[tuple[TunedSizes, str, Overrides]]:
        """Return the applicable (sizes, family, decision) of a canonical function; an empty family
        is the default, no sizes are all sizes.
        """
        if not self.records:
            return []
        workload = structural_digest(form)
        records = self.records.get(f"{workload} {self.target}")
        if records is None:
            self.num_foreign += any(key.startswith(f"{workload} ") for key in self.records)
            return []
        applicable = [
            (points, rule if fixed is not None else "", fixed or {})
            for points, rule, choice in records
            for fixed in [self._validate_decision(form, rule, choice) if rule else {}]
        ]
        self.num_used += any(rule for _, rule, _ in applicable)
        return applicable if any(rule for _, rule, _ in applicable) else []

    def _validate_decision(self, form: Function, rule: str, choice: str) -> Overrides | None:
        """Return the decision of a record; None, with a warning, if it does not apply."""
        try:
            chosen = choose_primitive(form, self.target)
            if chosen.family.name != rule or chosen.anchor is None:
                raise CompileError(f"the kernel is of the family '{chosen.family.name}' now")
            space = chosen.family.search_space(chosen.anchor, self.target)
            fixed = with_current_names(space, Decision.parse(choice))
            require_valid_overrides(space, fixed, f"'{rule}'")
            chosen.family.choose_decision(chosen.anchor, self.target, fixed)
        except CompileError as error:
            where = describe_kernel_name(form, display_name(form))
            self.refused.append(f"{rule}: {choice}")
            _LOG.warning(
                "records: '%s: %s' for %s does not apply, the default is used: %s",
                rule, choice, where, error,
            )  # fmt: skip
            return None
        return fixed

    def report(self, kernels: int) -> None:
        """Log the number of used records, with a warning if none was."""
        if not self.records:
            return
        if not self.num_used and not self.refused:
            _LOG.warning(
                "records: none of %d is of one of the %d kernels for %s%s",
                len(self.records), kernels, self.target,
                f"; {self.num_foreign} are of other targets" if self.num_foreign else "",
            )  # fmt: skip
        _LOG.info("records: %d of %d kernels are tuned", self.num_used, kernels)


def _parse_records(key: object, value: object) -> list[TuningRecord]:
    """Parse the records of a key. Raises CompileError for an invalid one."""
    rows = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    records: list[TuningRecord] = []
    for row in rows:
        match row:
            case [list() as points, str() as rule, str() as choice]:
                records.append((points, rule, choice))
            case _:
                raise CompileError(
                    f"records: sizes, a rule and a choice expected for '{key}', got {row!r}"
                )
    return records
