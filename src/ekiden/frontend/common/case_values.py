"""Symbol table of a graph with rank-polymorphic values: values by name, with one entry per case
behind a value of several ranks (see ekiden.frontend.common.rank_cases).

The walk of a frontend imports a node that reads such a value by `import_in_cases`, says behind each
node which names are still live, and at the end which are outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ekiden.frontend.common.rank_cases import CaseDependentValue, RankCase, RankCaseTree
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.sum_value import SumMember
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.runtime.errors import CompileError, UnsupportedError


class CaseValues:
    """Symbol table of one graph, in which a value of several possible ranks has one entry per case.

    problems: a line for each unsupported node of the whole import. ranked: names of values that
    have one of several ranks.
    """

    def __init__(self, scope: Scope, problems: list[str]) -> None:
        self.scope, self.problems = scope, problems
        self.ranked: set[str] = set()
        self._values: dict[str, Value] = {}
        self._cases: RankCaseTree | None = None

    def __contains__(self, name: str) -> bool:
        """Return whether the graph has a value of that name."""
        return name in self._values

    def __getitem__(self, name: str) -> Value:
        """Return the value bound to a name in the current case. Raises KeyError for an unbound
        name.
        """
        value = self._values[name]
        return value if self._cases is None else self._cases.lookup_value(name, value)

    def get(self, name: str) -> Value | None:
        """Return the value bound to a name in the current case; None where there is none."""
        return self[name] if name in self._values else None

    def is_bound(self, name: str) -> bool:
        """Return whether a name is bound to a value in the current case."""
        return name in self._values and not isinstance(self[name], CaseDependentValue)

    def bind(self, values: Mapping[str, Value]) -> None:
        """Bind names to values in the current case."""
        cases = self._cases
        if cases is not None and cases.at is not cases.root:
            cases.at.values.update(values)
            self._values.update((name, CaseDependentValue()) for name in values)
            self.ranked.update(values)
        else:
            self._values.update(values)
            self.ranked.update(n for n, v in values.items() if isinstance(v, SumMember))

    def bind_in_all_cases(self, name: str, value: Value) -> None:
        """Bind a name to a value that is the same in all cases."""
        self._values[name] = value

    def rank_polymorphic_names(self, names: Iterable[str]) -> list[str]:
        """Return the names among these whose values have one of several ranks in the
        current case.
        """
        return [
            name for name in names
            if name in self.ranked and isinstance(self[name], (SumMember, CaseDependentValue))
        ]  # fmt: skip

    def import_in_cases(
        self,
        label: str,
        names: Sequence[str],
        live: Callable[[], Sequence[str]],
        convert: Callable[[], None],
    ) -> bool:
        """Import the node `label` once in each case that the values it reads depend on. Return
        whether it could be in one: the others end the run there. Where it could in none, the
        node is reported, or its error raised.

        live: the names of several ranks that this node and later ones read.
        """
        if self._cases is None:
            self._cases = RankCaseTree(self.scope)
        problems = self.problems
        try:
            waiting = self._split_cases_by_input_rank(names, live)
        except Unsupported as error:
            problems.append(f"{label}: {error}")
            return False
        cases = self._cases
        before, failures = len(problems), list[RankCase]()
        for case in waiting:
            noted = len(problems)
            with cases.enter_case(case):
                try:
                    convert()
                except UnsupportedError:
                    raise
                except (CompileError, ValueError) as error:
                    case.error = error
            if case.error is None and len(problems) > noted:
                case.error = UnsupportedError(problems[noted])
            failures += [case] if case.error is not None else []
        if failures and not cases.at.live_leaves():
            first = failures[0].error
            if isinstance(first, UnsupportedError):
                # The same problem is reported once, not once per case.
                problems[before:] = dict.fromkeys(problems[before:])
                return False
            assert first is not None
            raise first
        # At least one case could be imported: failures of the others end the run there instead of
        # the import.
        del problems[before:]
        for case in failures:
            origin = None if cases.root.whole is None else cases.root.whole.origin
            if case.around is cases.root and origin is not None:
                self.scope.mark_branch_failing(origin[0], origin[1][case.number], str(case.error))
        return True

    def _split_cases_by_input_rank(
        self, names: Sequence[str], live: Callable[[], Sequence[str]]
    ) -> list[RankCase]:
        """Split the cases until each input of a node has one rank; return the resulting cases.
        Where they are too many, cases whose values have the same ranks are made one before.
        Raises Unsupported where that does not do.
        """
        assert self._cases is not None
        try:
            return self._cases.split_until_ranked(names, self._values)
        except Unsupported:
            # Only outermost cases can be merged and split anew: inner ones still have nodes to
            # import.
            if self._cases.at is not self._cases.root or not self._cases.root.inner:
                raise
            needed = live()
            if not self._cases.fits_alternatives(needed, self._values):
                raise
        self._merge_cases(needed)
        self._cases = RankCaseTree(self.scope)
        return self._cases.split_until_ranked(names, self._values)

    def _merge_cases(self, live: Sequence[str]) -> None:
        """Merge all cases; live values of several ranks become members of one sum."""
        assert self._cases is not None
        cases, self._cases = self._cases, None
        self.ranked.clear()
        self.bind(cases.merge_results(live, self._values))

    def _all_cases_failed(self) -> bool:
        """Return whether a node could be imported in no case."""
        return self._cases is not None and not self._cases.root.live_leaves()

    def try_merge_cases(self, live: Callable[[], Sequence[str]]) -> None:
        """Merge the cases where all values that are read later have one rank."""
        if (
            self._cases is None
            or self._cases.at is not self._cases.root
            or self._all_cases_failed()
        ):
            return
        # Cases end as early as possible: each node within them is imported once per case.
        needed = live()
        if self._cases.have_uniform_types(needed, self._values):
            self._merge_cases(needed)

    def merge_outputs(self, names: Sequence[str]) -> None:
        """Merge the cases at the end of the graph; outputs of several ranks become members of one
        sum. Raises Unsupported for too many combinations, and, without words, where no case is
        left: that has been noted.
        """
        if self._all_cases_failed():
            raise Unsupported("")
        outputs = [n for n in dict.fromkeys(names) if n in self.ranked]
        values = [self._values[name] for name in outputs]
        wholes = {id(v.whole) for v in values if isinstance(v, SumMember)}
        cases, self._cases = self._cases, None
        if not outputs or (len(wholes) == 1 and all(isinstance(v, SumMember) for v in values)):
            return
        cases = cases or RankCaseTree(self.scope)
        cases.split_until_ranked(outputs, self._values)
        self.bind(cases.merge_results(outputs, self._values))
