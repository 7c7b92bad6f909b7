"""Configuration spaces, numbered as AutoTVM's: the knob defined first varies fastest."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ekiden.kernels.decision import Decision, Knob, KnobValue
from ekiden.runtime.errors import InputError
from ekiden.tune.candidate import Candidate
from ekiden.tune.records import Record
from ekiden.tune.schedule_templates import (
    AnnotateEntity,
    Config,
    Entity,
    OtherOptionEntity,
    ReorderEntity,
    SplitEntity,
)

__all__ = [
    "AnnotateEntity",
    "ConfigEntity",
    "ConfigSpace",
    "FallbackConfigEntity",
    "InstantiationError",
    "KnobSpace",
    "OtherOptionEntity",
    "ReorderEntity",
    "SplitEntity",
]

Filter: TypeAlias = Callable[["ConfigEntity"], bool]
ENTITY_CODES: Mapping[type, str] = {SplitEntity: "sp", ReorderEntity: "re", AnnotateEntity: "an"}
"""Kind of an entity -> what it is called in a log; any other is "ot"."""


class InstantiationError(InputError, ValueError):
    """Error of a configuration with which a template cannot be instantiated."""


class KnobSpace(Sequence[Entity]):
    """Candidate values of one knob."""

    def __init__(self, knob: Knob, make: Callable[[KnobValue], Entity]) -> None:
        self.knob = knob
        self._make = make

    @property
    def entities(self) -> list[Entity]:
        """Return the values, in order."""
        return list(self)

    def __len__(self) -> int:
        return len(self.knob.domain)

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401  an entity, or a list for a slice
        if isinstance(index, slice):
            return [self._make(value) for value in self.knob.domain[index]]
        return self._make(self.knob.domain[index])

    def __repr__(self) -> str:
        return f"{self.knob.name}: {len(self)} values, {', '.join(map(str, self.knob.domain[:4]))}"


class ConfigSpace(Config):
    """Configuration space spanned by the knobs of a template or of a kernel family.

    Raises InputError for an index or a range outside of it.
    """

    is_fallback = False

    def __init__(self, choices: Sequence[Knob] = ()) -> None:
        super().__init__()
        self.code_hash: str | None = None
        self._filters: list[Filter] = []
        self.errors: list[str] = []
        for choice in choices:
            self.choices[choice.name] = choice
            self._entity_factories[choice.name] = OtherOptionEntity

    def _define_knob(self, name: str, texts: object, make: Callable[[KnobValue], Entity]) -> None:
        """Define a knob, replacing an earlier definition."""
        self.choices.pop(name, None)
        super()._define_knob(name, texts, make)

    @property
    def space_map(self) -> dict[str, KnobSpace]:
        """Return the values of every knob by name."""
        return {n: KnobSpace(c, self._entity_factories[n]) for n, c in self.choices.items()}

    def raise_error(self, msg: str) -> None:
        """Record why this configuration is invalid."""
        self.errors.append(msg)

    def valid(self) -> bool:
        """Return whether `raise_error` was not called."""
        return not self.errors

    def multi_filter(self, filter: Filter) -> None:
        """Restrict the space to configurations that the filter accepts."""
        self._filters.append(filter)

    @property
    def dims(self) -> list[int]:
        """Return the number of values of each knob."""
        return [len(choice.domain) for choice in self.choices.values()]

    @property
    def range_length(self) -> int:
        """Return the number of indices, including those that filters reject."""
        return math.prod(self.dims)

    def __len__(self) -> int:
        return self.subrange_length(0, self.range_length)

    def subrange_length(self, start: int, end: int) -> int:
        """Return the number of configurations with `start <= index < end`."""
        if not 0 <= start <= end <= self.range_length:
            raise InputError(
                f"config: a range in 0 to {self.range_length} expected, got {start} to {end}"
            )
        if not self._filters:
            return end - start
        return sum(self.is_index_valid(n) for n in range(start, end))

    def point2knob(self, point: int) -> list[int]:
        """Return the value index of each knob for a configuration index."""
        knob = []
        for size in self.dims:
            point, position = divmod(point, size)
            knob.append(position)
        return knob

    def knob2point(self, knob: Sequence[int]) -> int:
        """Return the configuration index for the knobs' value indices."""
        point = 0
        for position, size in zip(reversed(knob), reversed(self.dims), strict=True):
            point = point * size + position
        return point

    def is_index_valid(self, index: int) -> bool:
        """Return whether an index is in range and no filter rejects its configuration."""
        if not 0 <= index < self.range_length:
            return False
        entity = self._entity(index) if self._filters else None
        return all(accepts(entity) for accepts in self._filters if entity is not None)

    def accepts(self, candidate: Candidate) -> bool:
        """Return whether no filter rejects a candidate."""
        entity = ConfigEntity(self, Decision.parse(candidate.choice))
        return all(accepts(entity) for accepts in self._filters)

    def _entity(self, index: int) -> ConfigEntity:
        positions = zip(self.choices.values(), self.point2knob(index), strict=True)
        return ConfigEntity(self, {c.name: c.domain[n] for c, n in positions})

    def get(self, index: int) -> ConfigEntity:
        """Return the configuration of an index. Raises IndexError where there is none."""
        if not self.is_index_valid(index):
            raise IndexError(f"config: no configuration has the index {index}")
        return self._entity(index)

    def index_of(self, values: Mapping[str, object]) -> int:
        """Return the index of a configuration by its knob values; missing knobs have their first
        value.
        """
        return self.knob2point(
            [
                c.domain.index(value) if (value := values.get(c.name)) in c.domain else 0
                for c in self.choices.values()
            ]
        )

    def get_rand_index(
        self, start: int | None = None, end: int | None = None, to_exclude: Collection[int] = ()
    ) -> int | None:
        """Return a random valid index of a range that is not excluded; None if there is none."""
        first, last = start or 0, self.range_length if end is None else end
        for _ in range(64):  # most ranges are large and most of their indices valid
            index = random.randrange(first, last) if first < last else first
            if index not in to_exclude and self.is_index_valid(index):
                return index
        valid = [n for n in range(first, last) if n not in to_exclude and self.is_index_valid(n)]
        return random.choice(valid) if valid else None

    def get_next_index(
        self, index: int, n: int = 1, start: int | None = None, end: int | None = None
    ) -> int | None:
        """Return the n-th valid index after an index, or before it for a negative n; None if the
        range ends before.
        """
        first, last = start or 0, self.range_length if end is None else end
        step, remaining = (1 if n > 0 else -1), abs(n)
        while remaining:
            index += step
            if not first <= index < last:
                return None
            remaining -= self.is_index_valid(index)
        return index

    def sample_ints(self, m: int) -> list[int]:
        """Return up to m different random valid indices."""
        indices: dict[int, None] = {}
        while len(indices) < m:
            index = self.get_rand_index(to_exclude=indices)
            if index is None:
                break
            indices[index] = None
        return list(indices)

    def random_walk(self, point: int) -> int:
        """Return a random valid index whose configuration differs in one knob."""
        for _ in range(1000):
            knob = self.point2knob(point)
            position = random.randrange(len(knob))
            knob[position] = random.randrange(self.dims[position])
            index = self.knob2point(knob)
            if index != point and self.is_index_valid(index):
                return index
        raise InputError(f"config: the configuration {point} has no neighbour")

    def __iter__(self) -> Iterator[Entity]:
        raise TypeError("config: configurations are read by name, or by get(index)")

    def __repr__(self) -> str:
        rows = [f"{n:>2} {space!r}" for n, space in enumerate(self.space_map.values())]
        return "\n".join([f"ConfigSpace (len={len(self)}, space_map=", *rows, ")"])


class ConfigEntity(Config):
    """Configuration with a value for each knob. `record`: Ekiden's record of its trial, if any."""

    is_fallback = False

    def __init__(self, space: ConfigSpace, values: Mapping[str, KnobValue]) -> None:
        super().__init__(
            dict(values), dict(space.choices), space.flop, dict(space._entity_factories)
        )
        self.index = space.index_of(values)
        self.code_hash = space.code_hash
        self.cost: float | None = None
        self.record: Record | None = None
        self.errors: list[str] = []

    @property
    def entity_map(self) -> dict[str, Entity]:
        """Return the value of every knob by name."""
        return {name: self[name] for name in self.fixed}

    def _define_knob(self, name: str, texts: object, make: Callable[[KnobValue], Entity]) -> None:
        """Define a knob with the values of its space, unless the configuration comes from a log."""
        if name not in self.choices:
            super()._define_knob(name, texts, make)

    def raise_error(self, msg: str) -> None:
        """Record why this configuration is invalid."""
        self.errors.append(msg)

    def valid(self) -> bool:
        """Return whether `raise_error` was not called."""
        return not self.errors

    def candidate(self, rule: str) -> Candidate:
        """Return the tuning candidate of this configuration."""
        return Candidate(rule, str(Decision.from_mapping(self.fixed)))

    def get_flatten_feature(self) -> list[float]:
        """Return all knob values as the feature vector of a cost model."""
        texts = (str(self.fixed[name]) for name in self.fixed)
        return [float(n) for text in texts for n in text.split(",") if n.lstrip("-").isdigit()]

    def get_other_option(self) -> dict[str, object]:
        """Return the values of `define_knob` by name."""
        return {n: e.val for n, e in self.entity_map.items() if isinstance(e, OtherOptionEntity)}

    def to_json_dict(self) -> dict[str, object]:
        """Return the log representation: index, hash and entities [name, kind, value]."""
        entities = []
        for name, entity in self.entity_map.items():
            code = ENTITY_CODES.get(type(entity), "ot")
            value = getattr(entity, {"sp": "size", "re": "perm", "an": "anns", "ot": "val"}[code])
            entities.append([name, code, value])
        return {"index": self.index, "code_hash": self.code_hash, "entity": entities}

    @staticmethod
    def from_json_dict(json_dict: Mapping[str, Any]) -> ConfigEntity:
        """Return the configuration of a log entry. Raises InputError for an unknown kind."""
        kinds: Mapping[str, Callable[[Any], Entity]] = {
            "sp": SplitEntity, "re": ReorderEntity, "an": AnnotateEntity, "ot": OtherOptionEntity,
        }  # fmt: skip
        space, values = ConfigSpace(), dict[str, KnobValue]()
        for name, code, value in json_dict["entity"]:
            if code not in kinds:
                raise InputError(f"config: '{name}': no entity is of the kind '{code}'")
            entity = kinds[code](value)
            text = ",".join(map(str, value)) if code != "ot" else str(value).replace(" ", "")
            values[name] = int(text) if text.isdigit() else text
            space.choices[name] = Knob(name, (values[name],), "a knob of a log")
            space._entity_factories[name] = lambda _, entity=entity: entity  # type: ignore[misc]
        config = ConfigEntity(space, values)
        config.index, config.code_hash = int(json_dict["index"]), json_dict["code_hash"]
        return config

    def __str__(self) -> str:
        pairs = ", ".join(f"'{n}': {value}" for n, value in self.fixed.items())
        return f"{{{pairs}}},{self.code_hash},{self.index}"

    __repr__ = __str__


class FallbackConfigEntity(ConfigSpace):
    """Fallback configuration: every knob has its first value, until `fallback_split` or an
    assignment replaces it.
    """

    is_fallback = True

    def __init__(self) -> None:
        super().__init__()
        self._entities: dict[str, Entity] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  of the kind of the knob
        return self._entities[name] if name in self._entities else super().__getitem__(name)

    def __setitem__(self, name: str, entity: Entity) -> None:
        self._entities[name] = entity

    def __contains__(self, name: str) -> bool:
        return name in self._entities or super().__contains__(name)

    def fallback_split(self, name: str, constraints: Sequence[int]) -> None:
        """Split an axis by the largest divisors that the constraints allow, innermost factor first;
        -1 means no constraint. Raises InputError, a RuntimeError, where no split exists.
        """
        remaining = math.prod(super().__getitem__(name).size)
        sizes: list[int] = []
        for limit in reversed(constraints):
            bound = remaining if limit == -1 else min(limit, remaining)
            size = next((n for n in range(bound, 0, -1) if remaining % n == 0), 0)
            if not size:
                raise FallbackError(f"config: '{name}': no split fits {list(constraints)}")
            sizes.insert(0, size)
            remaining //= size
        self._entities[name] = SplitEntity(sizes)


class FallbackError(InputError, RuntimeError):
    """Error of constraints that no split satisfies."""
