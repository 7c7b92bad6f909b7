#!/usr/bin/env python3
"""Lint the words of Python sources: filler names, and docstrings that do not begin with their verb.

    scripts/lint_words.py            the shares, beside their limits; exit status 1 above a limit
    scripts/lint_words.py --list     each place, too

The limits may only be lowered. CONTRIBUTING.md, "Words", says what they hold.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHECKED_FOLDERS = ("src", "benchmarks", "scripts")

FILLER_WORDS = frozenset(
    """found made each given there kept wanted known seen asked told said taken left rest got now
    then here other others another thing things place places turn turns way ways part parts whole
    much many most least""".split()
)
"""Words that, as the whole of a name, do not say what the value holds."""

NON_VERB_OPENINGS = frozenset(
    """a an the what which who whose where when how whether that those these this it its of in on
    at by for from with without to as if one two all both each every no none not more most many
    some such same other another things names values sizes""".split()
)
"""First words of a docstring that name a result instead of the action."""


@dataclass
class RuleShare:
    """Share of places that break a rule, in percent of all places to which it applies."""

    rule: str
    limit: float
    total: int = 0
    places: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Return the share of places that break the rule, in percent."""
        return 100 * len(self.places) / max(1, self.total)

    def count_place(self, place: str, is_broken: bool) -> None:
        """Count a place that the rule is about."""
        self.total += 1
        if is_broken:
            self.places.append(place)


def lacks_verb(docstring: str) -> bool:
    """Return whether a docstring begins with something other than a verb."""
    word = re.match(r"['\"(]*([A-Za-z]+)", docstring.strip())
    return word is None or word[1].lower() in NON_VERB_OPENINGS


def measures(files: Iterator[Path], limits: dict[str, float]) -> list[RuleShare]:
    """Return the shares of rule violations in Python files: filler names, then docstrings of
    functions.
    """
    names = RuleShare("names that are filler words", limits["names"])
    docstrings = RuleShare("docstrings of functions that lack their verb", limits["docstrings"])
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.count_place(f"{place} {node.id}", node.id in FILLER_WORDS)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    docstrings.count_place(f"{place} {node.name}", lacks_verb(docstring))
    return [names, docstrings]


def checked_files() -> Iterator[Path]:
    """Yield the Python files that the rules hold for."""
    for folder in CHECKED_FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


MAX_SHARES_PERCENT = {"names": 1.0, "docstrings": 1.0}
"""Percent. Lower one as soon as the share is below it."""


def main() -> int:
    """Print the share of each rule; return 1 if one exceeds its limit. Return 1 where one is above
    its limit.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print each place")
    options = parser.parse_args()
    results = measures(checked_files(), MAX_SHARES_PERCENT)
    for result in results:
        if options.list:
            print("\n".join(result.places))
        print(f"{result.rule}: {result.share:.2f} % of {result.total}, at most {result.limit} %")
    return int(any(result.share > result.limit for result in results))


if __name__ == "__main__":
    sys.exit(main())
