"""Target: an immutable value that says what code is for, with the facts that kernels are chosen by.

    Target("llvm")                                   this machine
    Target("llvm -mcpu=x86-64-v3 -cores=4")          a processor of the table
    Target({"kind": "llvm", "mcpu": "znver4"})       the same as a dictionary, or as JSON
    Target("raspberry-pi/4b-aarch64")                a tag

A text, a dictionary and the fields of the value say the same, and turn into one another: `str`,
`Target.export` and `Target` itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, overload

from ekiden.ir import dtype as dt
from ekiden.runtime import Object
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import facts as target_facts
from ekiden.target.config import Config, read_config, written
from ekiden.target.device_facts import ASKED, device_facts
from ekiden.target.features import ABILITIES, FEATURES, has_any, idle
from ekiden.target.kinds import KINDS, MOST_ARGUMENTS, TargetKind, generators
from ekiden.target.processors import PROCESSORS, Cache
from ekiden.target.triple import TRIPLES, architecture_of, is_supported

WIDEST_BITS = 512
TargetLike: TypeAlias = "str | Mapping[str, object] | Target"
"""What names a target: text, JSON, a tag, a dictionary, or itself."""


class _Host:
    """`Target.host()` is this machine; `target.host` is TVM's: the target of the host's code."""

    @overload
    def __get__(self, instance: None, owner: type[Target]) -> Callable[[], Target]: ...
    @overload
    def __get__(self, instance: Target, owner: type[Target]) -> Target | None: ...
    def __get__(
        self, instance: Target | None, owner: type[Target]
    ) -> Callable[[], Target] | Target | None:
        return _host_machine if instance is None else instance.host_target


@Object.register
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Target:
    """What code will run on. Equal targets give equal code; `str` and `Target` are inverse.

    A target of devices that have no facts here, as GPUs, has those of the oldest processor.
    """

    is_said_by_text: ClassVar[bool] = True
    """For structural equality, in which attributes may be targets."""

    kind: TargetKind
    """The code generator."""
    triple: str
    """LLVM's, of four parts."""
    cpu: str
    """LLVM's name of the processor."""
    features: tuple[str, ...]
    """Beyond those of the processor, by LLVM's names; "-x" takes one away."""
    vector_bits: int
    """Width of a vector register."""
    registers: int
    """Vector registers that code may name."""
    cores: int
    """Threads that schedules may count on."""
    caches: tuple[Cache, ...]
    """Of data, the nearest first: L1, L2, L3."""
    fma_units: int
    """Multiply-adds of full vectors that start in one cycle."""
    fma_latency: int
    """Cycles until the next that needs the result can start."""
    loads: int
    """Loads of full vectors that start in one cycle."""
    options: tuple[tuple[str, object], ...]
    """What else the target says, by name, sorted: labels (keys, device, model, tag), and what kinds
    of devices have instead of these facts."""
    host_target: Target | None
    """The target of the code around kernels of a device; None where it is not said."""

    if TYPE_CHECKING:
        host = _Host()

    def __init__(
        self, target: TargetLike | None = None, host: TargetLike | None = None, **given: object
    ) -> None:
        """A target from text, JSON, a tag or a dictionary, with fields replaced; without one, from
        fields alone, the others from the table of processors (x86-64-v3 by default, one core).

        Raises CompileError for a kind, option, processor or feature that there is not, listing
        those there are.
        """
        if isinstance(target, Target):
            found: dict[str, object] = {f.name: getattr(target, f.name) for f in fields(target)}
        elif target is None:
            found = _from_fields(given)
        else:
            found = _from_config(read_config(target))
        found |= given
        kind = found["kind"]
        found["kind"] = KINDS[kind] if isinstance(kind, str) else kind
        if host is not None:
            found["host_target"] = Target.parse(host)
        for each in fields(Target):
            object.__setattr__(self, each.name, found.pop(each.name))
        if found:
            raise TypeError(f"Target: unexpected fields {', '.join(found)}")

    @staticmethod
    def parse(target: TargetLike) -> Target:
        """The target that a text, dictionary or target names. Raises CompileError."""
        return target if isinstance(target, Target) else Target(target)

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // (8 * dt.itemsize(dt.element(dtype))))

    @property
    def l1(self) -> int:
        """Bytes of the first cache."""
        return self._size(0)

    @property
    def l2(self) -> int:
        """Bytes of the second cache; 0 if there is none."""
        return self._size(1)

    @property
    def l3(self) -> int:
        """Bytes of the third cache, of all cores that share it; 0 if there is none."""
        return self._size(2)

    def _size(self, level: int) -> int:
        return self.caches[level].size if level < len(self.caches) else 0

    @property
    def architecture(self) -> str:
        """ "x86-64", "aarch64", "riscv64", or the first word of another triple."""
        return architecture_of(self.triple)

    def has(self, ability: str) -> bool:
        """Whether its code generator can use instructions for an ability (features.ABILITIES):
        "fma", "rounding", "float16", "dot4_u8s8", ... Raises KeyError for one that there is not.
        """
        ways = ABILITIES[ability].get(self.architecture, ())
        if self.kind.has_threads:  # what the languages of devices have, not their processors
            return self.kind.can_use(ability) and self._arch >= self.kind.least_arch.get(ability, 0)
        return self.kind.can_use(ability) and has_any(self._all_features(), ways)

    @property
    def _arch(self) -> int:
        """The number of the architecture that code of a device is for; 0 where it is not known."""
        found = re.fullmatch(r"sm_(\d+)[af]?", self.arch)
        return int(found[1]) if found is not None else self.kind.oldest

    def _all_features(self) -> frozenset[str]:
        return _all_features(self.architecture, self.cpu, self.features)

    @property
    def flags(self) -> tuple[str, ...]:
        """What its processor has, by the flags of /proc/cpuinfo."""
        return self._flags(self._all_features())

    @property
    def needs(self) -> tuple[str, ...]:
        """Those of the flags that its code relies on, as artifacts say them."""
        return self._flags(self._all_features() - self.idle)

    @property
    def idle(self) -> frozenset[str]:
        """The features, by LLVM's names, that it has and no code generator uses: they are switched
        off where its code is made."""
        return idle(self.architecture) & self._all_features()

    def _flags(self, features: frozenset[str]) -> tuple[str, ...]:
        arch = self.architecture
        known = (FEATURES[arch, f] for f in features if (arch, f) in FEATURES)
        return tuple(sorted(f.flag for f in known if f.flag))

    def serves(self, other: Target) -> bool:
        """Whether every machine that runs code for `other` runs that for this one."""
        return self.architecture == other.architecture and set(self.needs) <= set(other.needs)

    def check_usable(self, what: str) -> None:
        """Raises CompileError, for which thing and with what there is instead, where no code can
        be made for it or an option asks for what is not done."""
        if not self.kind.has_generator:
            raise CompileError(
                f"{what}: there is no code generator for target kind {self.kind.name!r}; "
                f"there are {generators()}"
            )
        if self.kind.is_cpu and not is_supported(self.triple):
            known = ", ".join(TRIPLES.values())
            raise CompileError(
                f"{what}: there is no runtime for the triple {self.triple!r}; there are {known}"
            )
        table = self.kind.option_table
        for name, value in self.options:
            harmless = table[name].harmless
            if harmless is not None and value not in harmless and value != ():
                can = " or ".join(map(repr, harmless))
                expected = f"only {can} can be had" if can else "there is no such thing"
                raise CompileError(f"{what}: target option -{name}={written(value)}: {expected}")
        if self.host_target is not None and not self.kind.is_cpu:
            if not self.host_target.kind.is_cpu:
                raise CompileError(
                    f"{what}: the host of target kind {self.kind.name!r} must be a processor, got "
                    f"{self.host_target.kind.name!r}"
                )
            self.host_target.check_usable(what)
        elif self.host_target is not None and self.host_target.triple != self.triple:
            raise CompileError(
                f"{what}: the host {self.host_target.triple!r} of a target must be its own "
                f"{self.triple!r}"
            )

    @property
    def code_host(self) -> Target:
        """The target of code that runs on the host: itself, or of a device that of what launches
        its kernels, this machine where none is said."""
        if self.kind.is_cpu:
            return self
        return self.host_target or Target("llvm")

    def __str__(self) -> str:
        """The text form, with every fact."""
        words = [f"-{name}={written(value)}" for name, value in self._said().items()]
        if self.host_target is not None:
            words.append(f"-host={written(str(self.host_target))}")
        return " ".join((self.kind.name, *words))

    def __eq__(self, other: object) -> bool:
        """Whether it is the same target, or the one that a text names: `Target("llvm")` is equal to
        "llvm". A text that names none is not equal to any."""
        if isinstance(other, Target):
            return self is other or _facts(self) == _facts(other)
        if not isinstance(other, str):
            return NotImplemented
        try:
            return self == Target(other)
        except CompileError:
            return False

    def __hash__(self) -> int:
        """That of its text form, the one text equal to it that can be looked up in its place."""
        facts = _facts(self)
        found = _HASHES.get(facts)
        if found is None:
            found = _HASHES[facts] = hash(str(self))
        return found

    def __repr__(self) -> str:
        """As Python text that makes it."""
        return f"Target({str(self)!r})"

    def _said(self) -> dict[str, object]:
        """Facts and options by their names in text."""
        found: dict[str, object] = {}
        if self.kind.is_cpu:
            found = {"mtriple": self.triple, "mcpu": self.cpu}
            if self.features:
                found["mattr"] = tuple(f if f[0] == "-" else f"+{f}" for f in self.features)
            found |= {"vector-bits": self.vector_bits, "registers": self.registers}
            found |= {"cores": self.cores}
            found |= {f"l{i + 1}": str(cache) for i, cache in enumerate(self.caches)}
            if len(self.caches) < 3:
                found[f"l{len(self.caches) + 1}"] = "0"
            found |= {"fma-units": self.fma_units, "fma-latency": self.fma_latency}
            found |= {"loads": self.loads}
        return found | dict(self.options)

    # The face of TVM's Target.

    @property
    def attrs(self) -> dict[str, Any]:
        """Facts and options by their names in text; lists as such."""
        hidden = ("keys", "tag")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._said().items()
            if name not in hidden
        }

    @property
    def keys(self) -> list[str]:
        """What strategies may be chosen by: those given, the device, those of the kind."""
        return list(_all_keys(self.kind, dict(self.options)))

    @property
    def tag(self) -> str:
        """The tag it was made from, or ""."""
        return str(dict(self.options).get("tag", ""))

    @property
    def bounds(self) -> str:
        """ "check" for code that compares every access of a buffer with its extent, or ""."""
        return str(dict(self.options).get("bounds", ""))

    def with_bounds(self, bounds: str) -> Target:
        """The same with such code, or without."""
        left = {name: value for name, value in self.options if name != "bounds"}
        asked: dict[str, object] = {"bounds": bounds} if bounds else {}
        return Target(self, options=tuple(sorted({**left, **asked}.items())))

    @property
    def libs(self) -> list[str]:
        """The libraries it names."""
        return list(self.attrs.get("libs", ()))

    @property
    def device_name(self) -> str:
        """The option `device`, or ""."""
        return str(self.attrs.get("device", ""))

    @property
    def model(self) -> str:
        """The option `model`, or "unknown"."""
        return str(self.attrs.get("model", "unknown"))

    @property
    def mcpu(self) -> str:
        """The processor."""
        return str(self.attrs.get("mcpu", ""))

    @property
    def mattr(self) -> list[str]:
        """Features beyond the processor's, each behind its sign."""
        return list(self.attrs.get("mattr", ()))

    @property
    def arch(self) -> str:
        """The option `arch` of GPUs, or ""."""
        return str(self.attrs.get("arch", ""))

    @property
    def max_num_threads(self) -> int:
        """Threads of a block. Raises KeyError where the kind has none."""
        return int(self.attrs["max_num_threads"])

    @property
    def thread_warp_size(self) -> int:
        """Threads that run together. Raises KeyError where the kind has none."""
        return int(self.attrs["thread_warp_size"])

    @property
    def max_shared_memory_per_block(self) -> int:
        """Bytes. Raises KeyError where it is not said."""
        return int(self.attrs["max_shared_memory_per_block"])

    @property
    def block_memory(self) -> int:
        """The same; where it is not said, what every device of the kind has."""
        said = self.attrs.get("max_shared_memory_per_block")
        return int(said) if said else self.kind.block_memory

    @property
    def l2_cache_size_bytes(self) -> int:
        """Of a GPU where it is said, of a processor its second cache; else 0."""
        return int(self.attrs.get("l2_cache_size_bytes", self.l2 if self.kind.is_cpu else 0))

    @property
    def max_function_args(self) -> int:
        """Most arguments of a kernel; -1 for no limit."""
        return int(self.attrs.get("max_function_args", -1))

    @property
    def most_inputs(self) -> int:
        """How many tensors a kernel of a device may read, so that its results, what it keeps and
        its sizes are within its arguments too; 0 for no limit."""
        if not self.kind.has_threads:
            return 0
        said = self.max_function_args
        return max(2, (min(said, MOST_ARGUMENTS) if said > 0 else MOST_ARGUMENTS) // 2)

    def get_target_device_type(self) -> int:
        """DLPack's number of its devices."""
        return self.kind.device_type

    def with_host(self, host: TargetLike | None = None) -> Target:
        """The same with another host."""
        return Target(self, host_target=None if host is None else Target.parse(host))

    def export(self) -> dict[str, Any]:
        """A dictionary from which `Target` makes it again."""
        found = {"kind": self.kind.name, "tag": self.tag, "keys": self.keys, **self.attrs}
        if self.host_target is not None:
            found["host"] = self.host_target.export()
        return found

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """The target of the innermost `with`. Raises ValueError for none unless allowed."""
        entered = ENTERED.get()
        if not entered and not allow_none:
            raise ValueError("target: there is no current target; `with Target(...):` sets one")
        return entered[-1] if entered else None

    @staticmethod
    def list_kinds() -> list[str]:
        """The names of the kinds."""
        return sorted(KINDS)

    def __enter__(self) -> Target:
        """Make it the current target, which `compile` and `build` take when none is given."""
        ENTERED.set((*ENTERED.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        """Go back to the target around."""
        ENTERED.set(ENTERED.get()[:-1])


if not TYPE_CHECKING:
    Target.host = _Host()

ENTERED: ContextVar[tuple[Target, ...]] = ContextVar("entered targets", default=())
"""Those that this thread of control is inside of."""


def target_or_current(target: TargetLike | None = None) -> Target:
    """A target; where none is given the current one, and this machine where there is none."""
    return Target.parse(target if target is not None else Target.current() or "llvm")


_facts = attrgetter(*(f.name for f in fields(Target)))
"""What makes one target another: all its fields."""
_HASHES: dict[tuple[object, ...], int] = {}
"""Facts -> the hash of a target's text, which takes longer to write than to find here."""


@functools.cache
def _host_machine() -> Target:
    """This machine."""
    return Target("llvm")


@functools.cache
def _all_features(arch: str, cpu: str, extra: tuple[str, ...]) -> frozenset[str]:
    return target_facts.all_features(arch, cpu, extra)


def _from_config(config: Config) -> dict[str, Any]:
    """The fields of a target by name."""
    kind = config["kind"]
    assert isinstance(kind, TargetKind)
    facts = {n: v for n, v in config.items() if n in target_facts.OPTIONS} if kind.is_cpu else None
    found = target_facts.resolve(facts) if facts is not None else _without_facts()
    host = config.get("host")
    defaults = {n: o.default for n, o in kind.option_table.items() if o.default is not None}
    said = {n: config[n] for n in kind.option_table if n in config}
    options = defaults | _of_device(kind, said) | said
    if kind.asks_device:
        options.pop("from_device", None)
        found["cores"] = int(str(options["cores"]))
    if "vector-bits" in options and not kind.is_cpu:
        found |= _vectors(int(str(options["vector-bits"])))
    keys = _all_keys(kind, options)
    if keys == _all_keys(kind, {**options, "keys": ()}):
        options.pop("keys", None)
    else:
        options["keys"] = keys
    return {
        **found,
        "kind": kind,
        "options": tuple(sorted(options.items())),
        "host_target": None if host is None else Target.parse(host),  # type: ignore[arg-type]
    }


def _all_keys(kind: TargetKind, options: Mapping[str, Any]) -> tuple[str, ...]:
    device = options.get("device")
    own = (device,) if device else ()
    return tuple(dict.fromkeys((*options.get("keys", ()), *own, *kind.default_keys)))


def _of_device(kind: TargetKind, said: Mapping[str, object]) -> dict[str, object]:
    """The facts of a device of this machine: of the first, or of the one that `from_device` says;
    none where the target is labelled as another's, or says everything. Raises CompileError."""
    asked = [name for name in ASKED if name in kind.option_table]
    is_known = all(name in said for name in asked) or "device" in said or "model" in said
    if not kind.asks_device or (is_known and "from_device" not in said):
        return {}
    number = int(str(said.get("from_device", 0)))
    facts = device_facts(kind.device_type, number)
    found = {name: value for name, value in facts.items() if name in kind.option_table}
    if not found and "from_device" in said:
        raise CompileError(
            f"target: -from_device={number}: there is no such device of kind {kind.name!r} here"
        )
    return found


def _vectors(bits: int) -> dict[str, object]:
    """Those of a device: there are more of the widest."""
    return {"vector_bits": bits, "registers": 32 if bits >= WIDEST_BITS else 16}


def _without_facts() -> dict[str, object]:
    return target_facts.resolve({"mcpu": "x86-64", "cores": 1})


def _from_fields(given: Mapping[str, object]) -> dict[str, Any]:
    """The fields that are not given, from the row of the processor that is."""
    kind = given.get("kind", "llvm")
    kind = KINDS[kind] if isinstance(kind, str) else kind
    assert isinstance(kind, TargetKind)
    if not kind.is_cpu:
        return _from_config({"kind": kind})
    options: dict[str, object] = {"mcpu": given.get("cpu", "x86-64-v3"), "cores": 1}
    named = {"triple": "mtriple", "features": "mattr", "vector_bits": "vector-bits"}
    options |= {text: given[name] for name, text in named.items() if name in given}
    return _from_config({"kind": kind, **options})


__all__ = [
    "ABILITIES",
    "PROCESSORS",
    "Cache",
    "Target",
    "TargetKind",
    "TargetLike",
    "target_or_current",
]
