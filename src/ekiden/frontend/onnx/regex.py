r"""Compiler of regular expressions to DFA tables over UTF-8 bytes, which match in time linear in
the text.

The syntax is RE2's, without scripts (\\p{Greek}), \\Q and flags other than i and s. Zero-width
assertions (^, $, \\b, \\B) are conditions on the byte before and the byte after: a state remembers
the class of the byte before, and a transition knows that of the byte after.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import chain
from typing import NoReturn, TypeAlias, TypeVar

import numpy as np

from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

CodePointRanges: TypeAlias = "tuple[tuple[int, int], ...]"
SyntaxTree: TypeAlias = "tuple[object, ...]"
"""("set", ranges), ("cat", trees), ("alt", trees), ("rep", tree, least, most or None) or ("if",
condition).
"""

_StateKey = TypeVar("_StateKey")

MAX_CODE_POINT = 0x10FFFF
MAX_DFA_STATES = 10_000
"""More than this is no pattern but a program."""
MAX_SUBSET_VISITS = 2_000_000
"""States that are looked at while the automaton is made deterministic: a second. A pattern of few
states may hold thousands of others in each."""
MAX_GROUP_DEPTH = 100
_DIGIT_RANGES: CodePointRanges = ((48, 57),)
_WORD_RANGES: CodePointRanges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE_RANGES: CodePointRanges = ((9, 10), (12, 13), (32, 32))
_CONTROL_ESCAPES = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}
_PERL_CLASSES = {"d": _DIGIT_RANGES, "w": _WORD_RANGES, "s": _SPACE_RANGES}
_POSIX_CLASSES: dict[str, CodePointRanges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "blank": ((9, 9), (32, 32)),
    "digit": _DIGIT_RANGES,
    "lower": ((97, 122),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": _WORD_RANGES,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}


@lru_cache(64)
def unicode_class(name: str) -> CodePointRanges | None:
    """Return the code point ranges of a Unicode general category such as `Lu`, or of its first
    letter; None if unknown.
    """
    # Cached, because it visits all 1,114,112 code points.
    every = map(unicodedata.category, map(chr, range(MAX_CODE_POINT + 1)))
    ranges: list[tuple[int, int]] = []
    start = -1
    for point, category in enumerate(chain(every, ("",))):
        is_in = category.startswith(name) and category != "Cs"  # surrogates are in no text
        if is_in and start < 0:
            start = point
        elif not is_in and start >= 0:
            ranges.append((start, point - 1))
            start = -1
    return tuple(ranges) or None


_ASSERTION_ESCAPES = {"^": "^", "\\A": "^", "$": "$", "\\z": "$", "\\b": "b", "\\B": "B"}
"""What looks at neighbours: at the beginning, at the end, between two kinds of bytes, or not."""
_START, _END, _LETTER, _OTHER = range(4)
"""What stands beside a place: nothing before it or behind it, a byte of a word, or another."""


def _assertion_holds(condition: str, before: int, behind: int) -> bool:
    """Return whether an assertion holds between two neighbouring byte kinds."""
    if condition in "^$":
        return before == _START if condition == "^" else behind == _END
    return ((before == _LETTER) != (behind == _LETTER)) == (condition == "b")


class RegexError(ValueError):
    """Error of a pattern that cannot be parsed or uses an unsupported construct."""


def _complement_ranges(ranges: Iterable[tuple[int, int]]) -> CodePointRanges:
    """Return the complement of code point ranges."""
    gaps, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return (*gaps, (start, MAX_CODE_POINT)) if start <= MAX_CODE_POINT else tuple(gaps)


def _fold_ascii_case(ranges: CodePointRanges) -> CodePointRanges:
    """Return ranges extended by the other case of ASCII letters."""
    more = []
    for low, high in ranges:
        for first, last, shift in ((65, 90, 32), (97, 122, -32)):
            if max(low, first) <= min(high, last):
                more.append((max(low, first) + shift, min(high, last) + shift))
    return (*ranges, *more)


class PatternParser:
    """Recursive-descent parser of regular expressions in RE2's syntax."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.depth = pattern, 0, 0
        self.ignores_case = self.dot_takes_all = False

    def raise_error(self, what: str) -> NoReturn:
        """Raise RegexError at the current position."""
        raise RegexError(f"pattern {self.pattern!r}: {what} at position {self.at}")

    def consume_if_next(self, text: str) -> bool:
        """Consume a text if it comes next; return whether it did."""
        is_next = self.pattern.startswith(text, self.at)
        self.at += len(text) if is_next else 0
        return is_next

    def next_char(self) -> str:
        """Consume and return the next character; raise RegexError at the end."""
        if self.at >= len(self.pattern):
            self.raise_error("more expected")
        self.at += 1
        return self.pattern[self.at - 1]

    def parse_pattern(self) -> SyntaxTree:
        """Parse the whole pattern and return its syntax tree."""
        tree = self.parse_alternation()
        if self.at < len(self.pattern):
            self.raise_error("unexpected ')'")
        return tree

    def parse_alternation(self) -> SyntaxTree:
        """Parse an alternation."""
        self.depth += 1
        if self.depth > MAX_GROUP_DEPTH:
            self.raise_error(f"more than {MAX_GROUP_DEPTH} nested groups")
        alternatives = [self.parse_concatenation()]
        while self.consume_if_next("|"):
            alternatives.append(self.parse_concatenation())
        self.depth -= 1
        return alternatives[0] if len(alternatives) == 1 else ("alt", alternatives)

    def parse_concatenation(self) -> SyntaxTree:
        """Parse a concatenation of atoms and assertions."""
        items: list[SyntaxTree] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            condition = next((c for c in _ASSERTION_ESCAPES if self.consume_if_next(c)), None)
            items.append(
                self.parse_quantifiers(self.parse_atom())
                if condition is None
                else ("if", _ASSERTION_ESCAPES[condition])
            )
        return ("cat", items)

    def parse_quantifiers(self, tree: SyntaxTree) -> SyntaxTree:
        """Parse the quantifiers after an atom and return the quantified tree."""
        while self.at < len(self.pattern):
            if self.consume_if_next("*"):
                tree = ("rep", tree, 0, None)
            elif self.consume_if_next("+"):
                tree = ("rep", tree, 1, None)
            elif self.consume_if_next("?"):
                tree = ("rep", tree, 0, 1)
            elif (bounds := self.parse_bounds()) is not None:
                tree = ("rep", tree, *bounds)
            else:
                break
            self.consume_if_next(
                "?"
            )  # which match is preferred makes no difference to whether there is one
        return tree

    def parse_bounds(self) -> tuple[int, int | None] | None:
        """Parse {2}, {2,} or {2,5} and return (min, max); None if this is no counted quantifier."""
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at + 1 : end].partition(",")
        is_one = self.pattern.startswith("{", self.at) and end > 0 and low.isdecimal()
        if not is_one or (high and not high.isdecimal()):
            return None
        self.at = end + 1
        upper = int(low) if not comma else int(high) if high else None
        # RE2's bound: every repetition is a copy of the automaton.
        if int(low) > 1000 or (upper is not None and not int(low) <= upper <= 1000):
            self.raise_error("a count of at most 1000 expected")
        return int(low), upper

    def parse_atom(self) -> SyntaxTree:
        """Parse an atom: a character, a class or a group."""
        char = self.next_char()
        if char == "(":
            return self.parse_group()
        if char == "[":
            return self.make_char_set(self.parse_bracket())
        if char == ".":
            return ("set", _complement_ranges(() if self.dot_takes_all else ((10, 10),)))
        if char == "\\":
            return self.make_char_set(self.parse_escape())
        if char in "*+?":
            self.raise_error(f"nothing before {char!r}")
        return self.make_char_set(((ord(char), ord(char)),))

    def make_char_set(self, ranges: CodePointRanges) -> SyntaxTree:
        """Return the tree of a character set, case-folded under the flag i."""
        return ("set", _fold_ascii_case(ranges) if self.ignores_case else ranges)

    def parse_group(self) -> SyntaxTree:
        """Parse the inside of parentheses; flags set there end with it."""
        before = self.ignores_case, self.dot_takes_all
        if self.consume_if_next("?"):
            if self.consume_if_next("P<") or self.consume_if_next("<"):
                end = self.pattern.find(">", self.at)
                if end < 0 or self.pattern[self.at : end + 1].startswith(("=", "!")):
                    self.raise_error("a group name expected")
                self.at = end + 1
            elif not self.consume_if_next(":") and self.parse_flags():
                return ("cat", [])
        tree = self.parse_alternation()
        if not self.consume_if_next(")"):
            self.raise_error("')' expected")
        self.ignores_case, self.dot_takes_all = before
        return tree

    def parse_flags(self) -> bool:
        """Parse flags; return whether they form a group of their own and hold for what follows."""
        value = True
        while (char := self.next_char()) not in ":)":
            if char == "i":
                self.ignores_case = value
            elif char == "s":
                self.dot_takes_all = value
            elif char == "-":
                value = False
            else:
                self.raise_error(f"the unsupported flag {char!r}")
        return char == ")"

    def parse_escape(self) -> CodePointRanges:
        """Parse an escape sequence after its backslash."""
        char = self.next_char()
        if char.lower() in _PERL_CLASSES:
            char_class = _PERL_CLASSES[char.lower()]
            return char_class if char.islower() else _complement_ranges(char_class)
        if char in "pP":
            return self.parse_unicode_class(char == "P")
        if char == "x":
            end = self.pattern.find("}", self.at) if self.consume_if_next("{") else self.at + 2
            digits = self.pattern[self.at : end]
            self.at = end + self.pattern.startswith("}", end)
            try:
                point = int(digits, 16)
            except ValueError:
                self.raise_error("hexadecimal digits expected")
            return ((min(point, MAX_CODE_POINT), min(point, MAX_CODE_POINT)),)
        if char in _CONTROL_ESCAPES:
            return ((_CONTROL_ESCAPES[char],) * 2,)
        if char.isalnum():
            self.raise_error(f"the unsupported escape '\\{char}'")
        return ((ord(char), ord(char)),)

    def parse_unicode_class(self, negated: bool) -> CodePointRanges:
        r"""Parse \\pL, \\p{Lu} or \\p{^Lu} and return its code point ranges."""
        name = self.next_char()
        if name == "{":
            end = self.pattern.find("}", self.at)
            name = self.pattern[self.at : end] if end > 0 else ""
            self.at = end + 1 if end > 0 else self.at
        plain = name.removeprefix("^")
        negated ^= name != plain
        if plain == "Any":
            ranges: CodePointRanges | None = ((0, MAX_CODE_POINT),)
        else:
            ranges = unicode_class(plain) if 1 <= len(plain) <= 2 else None
        if ranges is None:
            self.raise_error(f"the unsupported class '\\p{{{name}}}'")
        return _complement_ranges(ranges) if negated else ranges

    def parse_bracket(self) -> CodePointRanges:
        """Parse a bracketed character class and return its code point ranges."""
        negated = self.consume_if_next("^")
        char_ranges: list[tuple[int, int]] = []
        first = True
        while first or not self.consume_if_next("]"):
            first = False
            if self.consume_if_next("[:"):
                end = self.pattern.find(":]", self.at)
                name = self.pattern[self.at : end]
                if name.removeprefix("^") not in _POSIX_CLASSES:
                    self.raise_error("the name of a class of characters expected")
                named = _POSIX_CLASSES[name.removeprefix("^")]
                char_ranges += _complement_ranges(named) if name.startswith("^") else named
                self.at = end + 2
                continue
            low = self.parse_class_member()
            after = self.pattern[self.at + 1 : self.at + 2]
            if len(low) == 1 and after not in ("", "]") and self.consume_if_next("-"):
                high = self.parse_class_member()
                if len(high) != 1 or high[0][1] < low[0][0]:
                    self.raise_error("a range of characters expected")
                low = ((low[0][0], high[0][1]),)
            char_ranges += low
        # Case folding precedes negation: [^a] with the flag i excludes A, too.
        ranges = tuple(char_ranges)
        if negated:
            return _complement_ranges(_fold_ascii_case(ranges) if self.ignores_case else ranges)
        return ranges

    def parse_class_member(self) -> CodePointRanges:
        """Parse one member of a bracketed class."""
        char = self.next_char()
        return self.parse_escape() if char == "\\" else ((ord(char), ord(char)),)


def utf8_byte_ranges(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """Yield sequences of byte ranges that together match the UTF-8 encodings of a code
    point range.
    """
    # Split at the encoded lengths and then at aligned blocks, so that each byte position is one
    # range (the construction of RE2's and Rust's utf8-ranges).
    for bound in (0x7F, 0x7FF, 0xFFFF):
        if low <= bound < high:
            yield from utf8_byte_ranges(low, bound)
            yield from utf8_byte_ranges(bound + 1, high)
            return
    for shift in (6, 12, 18) if high > 0x7F else ():
        mask = (1 << shift) - 1
        if low & ~mask == high & ~mask:
            continue
        cut = low | mask if low & mask else (high & ~mask) - 1
        if low & mask or high & mask != mask:
            yield from utf8_byte_ranges(low, cut)
            yield from utf8_byte_ranges(cut + 1, high)
            return
    ends = (chr(c).encode("utf-8", "surrogatepass") for c in (low, high))
    yield list(zip(*ends, strict=True))


@dataclass
class Nfa:
    """Nondeterministic finite automaton over bytes with conditional epsilon transitions (Thompson's
    construction).
    """

    epsilon_moves: list[list[tuple[str, int]]] = field(default_factory=list)
    byte_moves: list[list[tuple[int, int, int]]] = field(default_factory=list)

    def add_state(self) -> int:
        """Add a state and return its number."""
        # Nested counts multiply: (a{1000}){1000} would need a million states.
        if len(self.epsilon_moves) >= 10 * MAX_DFA_STATES:
            raise RegexError(f"the pattern needs more than {10 * MAX_DFA_STATES} states")
        self.epsilon_moves.append([])
        self.byte_moves.append([])
        return len(self.epsilon_moves) - 1

    def add_tree(self, tree: SyntaxTree, start: int) -> int:
        """Append the automaton of a tree to a state; return its final state. Recursion depth is
        bounded by MAX_GROUP_DEPTH.
        """
        match tree:
            case ("set", ranges):
                return self._add_set(ranges, start)  # type: ignore[arg-type]
            case ("cat", list(subtrees)):
                for subtree in subtrees:
                    start = self.add_tree(subtree, start)
                return start
            case ("alt", list(subtrees)):
                end = self.add_state()
                for subtree in subtrees:
                    self._add_epsilon(self.add_tree(subtree, start), end)
                return end
            case ("rep", tuple(inner), int(min_count), max_count):
                return self._add_repeat(inner, start, min_count, max_count)  # type: ignore[arg-type]
            case ("if", str(condition)):
                return self._add_epsilon(start, self.add_state(), condition)
        raise AssertionError(f"not a tree: {tree!r}")

    def _add_set(self, ranges: CodePointRanges, start: int) -> int:
        """Append transitions on the UTF-8 encodings of a character set."""
        end = self.add_state()
        # Equal suffixes share a state, as in RE2, which bounds the automata of large Unicode
        # classes.
        behind: dict[tuple[tuple[int, int], ...], int] = {(): end}  # what is left: one state each
        for low, high in ranges:
            for sequence in utf8_byte_ranges(low, high):
                for cut in range(len(sequence) - 1, 0, -1):
                    suffix = tuple(sequence[cut:])
                    if suffix not in behind:
                        behind[suffix] = self.add_state()
                        self.byte_moves[behind[suffix]].append((*suffix[0], behind[suffix[1:]]))
                self.byte_moves[start].append((*sequence[0], behind[tuple(sequence[1:])]))
        return end

    def _add_repeat(
        self, tree: SyntaxTree, start: int, min_count: int, max_count: int | None
    ) -> int:
        """Append `min_count` copies of a tree, then a loop or optional copies up to `max_count`."""
        for _ in range(min_count):
            start = self.add_tree(tree, start)
        if max_count is None:
            inside = self._add_epsilon(start, self.add_state())
            self._add_epsilon(self.add_tree(tree, inside), inside)
            return self._add_epsilon(inside, self.add_state())
        end = self.add_state()
        for _ in range(max_count - min_count):
            self._add_epsilon(start, end)
            start = self.add_tree(tree, self._add_epsilon(start, self.add_state()))
        return self._add_epsilon(start, end)

    def _add_epsilon(self, start: int, end: int, condition: str = "") -> int:
        """Add an epsilon transition, which may depend on an assertion; return its target."""
        self.epsilon_moves[start].append((condition, end))
        return end

    def epsilon_closure(self, states: Iterable[int], before: int, behind: int) -> frozenset[int]:
        """Return the epsilon closure of states between two neighbouring byte kinds."""
        closure, waiting = set(states), list(states)
        while waiting:
            for condition, target in self.epsilon_moves[waiting.pop()]:
                if target not in closure and (
                    not condition or _assertion_holds(condition, before, behind)
                ):
                    closure.add(target)
                    waiting.append(target)
        return frozenset(closure)

    def byte_transitions(self, states: Iterable[int], kind_of: Sequence[int]) -> list[set[int]]:
        """Return the target states of each byte class."""
        targets: list[set[int]] = [set() for _ in range(kind_of[-1] + 1)]
        for state in states:
            for low, high, target in self.byte_moves[state]:
                for kind in range(kind_of[low], kind_of[high] + 1):
                    targets[kind].add(target)
        return targets


def compile_dfa(pattern: str) -> tuple[Array, Array, Array]:
    """Compile a pattern to DFA tables: transitions int32 [states, classes], the class of each byte,
    accepting states.

    Returns:
        moves int32 [states, kinds], kinds int32 [256] (the byte classes), accepts bool [states].

    Raises:
        RegexError: the pattern is wrong, unsupported or too large.
    """
    graph = Nfa()
    start = graph.add_state()
    end = graph.add_tree(PatternParser(pattern).parse_pattern(), start)
    looks = any(condition for free in graph.epsilon_moves for condition, _ in free)
    kinds = byte_classes([*graph.byte_moves, [(*w, 0) for w in _WORD_RANGES] if looks else []])
    samples = [int(b) for b in np.unique(kinds, return_index=True)[1]]
    sides = [_byte_kind(b) for b in samples]
    kind_of = kinds.tolist()
    # Subset construction (Rabin and Scott 1959), with the class of the byte before as part of the
    # state.
    states: dict[tuple[frozenset[int], int], int] = {(frozenset([start]), _START): 0}
    table, accepts, visits = [], [], 0
    for held, before in _iter_growing_keys(states):
        # what comes next matters to conditions alone: without any, one look does for all of it
        reached = {
            side: graph.epsilon_closure(held, before, side)
            for side in {*sides, _END}
            if looks or side == _END
        }
        steps = {
            side: graph.byte_transitions(closure, kind_of) for side, closure in reached.items()
        }
        visits += sum(map(len, reached.values()))
        visits += sum(len(targets) for by_kind in steps.values() for targets in by_kind)
        if visits > MAX_SUBSET_VISITS:
            raise RegexError("the pattern takes too long to be made an automaton")
        row = []
        for kind, side in enumerate(sides):
            to = frozenset(steps[side if looks else _END][kind])
            # Without assertions all byte kinds are one, which keeps such automata free of duplicate
            # states.
            row.append(states.setdefault((to, side if looks else _OTHER), len(states)))
        table.append(row)
        accepts.append(end in reached[_END])
    return np.array(table, np.int32), kinds, np.array(accepts)


def _byte_kind(byte: int) -> int:
    """Return the kind of a byte for assertions: word or other."""
    return _LETTER if any(low <= byte <= high for low, high in _WORD_RANGES) else _OTHER


def _iter_growing_keys(states: dict[_StateKey, int]) -> Iterator[_StateKey]:
    """Yield the keys of a dictionary that grows during the iteration; raise RegexError above
    MAX_DFA_STATES.
    """
    done = 0
    while done < len(states):
        fresh = list(states)[done:]
        for key in fresh:
            if len(states) > MAX_DFA_STATES:
                raise RegexError(f"the pattern needs more than {MAX_DFA_STATES} states")
            yield key
        done += len(fresh)


def byte_classes(moves: Sequence[Sequence[tuple[int, int, int]]]) -> Array:
    """Return the equivalence class of each byte, int32 [256]."""
    starts = np.zeros(257, np.int32)
    for low, high, _ in (m for row in moves for m in row):
        # A class begins where any range begins, and behind each range's end.
        starts[low] = starts[high + 1] = 1
    starts[0] = 0
    return np.cumsum(starts)[:256].astype(np.int32)
