"""The Target class: an immutable description of the machine that code is compiled for.

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
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, overload

from ekiden.ir import dtype as dt
from ekiden.runtime import Object
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import facts as target_facts
from ekiden.target.device_attributes import DEVICE_ATTRIBUTES, query_device_attributes
from ekiden.target.features import ABILITIES, FEATURE_TABLE, has_any, unused_features
from ekiden.target.kinds import MAX_KERNEL_ARGUMENTS, TARGET_KINDS, TargetKind, supported_kinds
from ekiden.target.processors import PROCESSORS, Cache
from ekiden.target.target_parser import Config, format_option, parse_target_config
from ekiden.target.triple import SUPPORTED_TRIPLES, architecture_of, is_supported, system_of

MAX_VECTOR_BITS = 512
TargetLike: TypeAlias = "str | Mapping[str, object] | Target"
"""Anything that names a target: text, JSON, a tag, a dictionary or a Target."""


class _HostDescriptor:
    """Descriptor of `host`: `Target.host()` is this machine; `target.host` is TVM's property, the
    target of the host's code.
    """

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
    """Description of the machine that code runs on. Equal targets produce equal code; `str` and
    `Target` are inverses. Kinds without processor facts here, such as GPUs, take those of the
    oldest processor.
    """

    is_compared_by_text: ClassVar[bool] = True
    """Whether structural equality compares an attribute of this class by its text."""
    is_said_by_text: ClassVar[bool] = is_compared_by_text  # its former name, which is public

    kind: TargetKind
    """Target kind, which selects the code generator."""
    triple: str
    """LLVM triple with four components."""
    cpu: str
    """LLVM's name of the processor."""
    features: tuple[str, ...]
    """Features beyond the processor's, by LLVM's names; a leading "-" removes one."""
    vector_bits: int
    """Width of a vector register in bits."""
    registers: int
    """Number of architectural vector registers."""
    cores: int
    """Number of threads that schedules assume."""
    caches: tuple[Cache, ...]
    """Data caches, nearest first: L1, L2, L3."""
    fma_units: int
    """Full-vector multiply-adds per cycle."""
    fma_latency: int
    """Latency of a multiply-add in cycles."""
    loads: int
    """Full-vector loads per cycle."""
    options: tuple[tuple[str, object], ...]
    """Other options, sorted by name: labels (keys, device, model, tag) and facts of devices."""
    host_target: Target | None
    """Target of the host code that launches device kernels; None if unspecified."""

    if TYPE_CHECKING:
        host = _HostDescriptor()

    def __init__(
        self, target: TargetLike | None = None, host: TargetLike | None = None, **given: object
    ) -> None:
        """Build a target from text, JSON, a tag or a dictionary, with fields overridden; or from
        fields alone, defaulting the others from the processor table (x86-64-v3, one core).
        Raises CompileError for an unknown kind, option, processor or feature, listing the known
        ones.
        """
        if isinstance(target, Target):
            values: dict[str, object] = {f.name: getattr(target, f.name) for f in fields(target)}
        elif target is None:
            values = _complete_fields(given)
        else:
            values = _fields_from_config(parse_target_config(target))
        values |= given
        kind = values["kind"]
        values["kind"] = TARGET_KINDS[kind] if isinstance(kind, str) else kind
        if host is not None:
            values["host_target"] = Target.parse(host)
        for target_field in fields(Target):
            object.__setattr__(self, target_field.name, values.pop(target_field.name))
        if values:
            raise TypeError(f"Target: unexpected fields {', '.join(values)}")

    @staticmethod
    def parse(target: TargetLike) -> Target:
        """Return the target that a text, dictionary or target names. Raises CompileError."""
        return target if isinstance(target, Target) else Target(target)

    def lanes(self, dtype: str) -> int:
        """Return the elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // (8 * dt.itemsize(dt.element_dtype(dtype))))

    @property
    def l1(self) -> int:
        """Return the L1 data cache size in bytes."""
        return self._cache_bytes(0)

    @property
    def l2(self) -> int:
        """Return the L2 cache size in bytes; 0 if there is none."""
        return self._cache_bytes(1)

    @property
    def l3(self) -> int:
        """Return the size in bytes of the L3 cache, shared by several cores; 0 if there is none."""
        return self._cache_bytes(2)

    def _cache_bytes(self, level: int) -> int:
        return self.caches[level].size if level < len(self.caches) else 0

    @property
    def architecture(self) -> str:
        """Return "x86-64", "aarch64", "riscv64", or the first word of another triple."""
        return architecture_of(self.triple)

    def has(self, ability: str) -> bool:
        """Return whether its code generator can use instructions for an ability
        (features.ABILITIES): "fma", "rounding", "float16", "dot4_u8s8", ... Raises KeyError for
        an unknown ability.
        """
        alternatives = ABILITIES[ability].get(self.architecture, ())
        if self.kind.has_threads:  # properties of device languages, not of processors
            return self.kind.can_use(
                ability
            ) and self._compute_capability >= self.kind.least_arch.get(ability, 0)
        # A processor's feature counts only if the code generator can use it.
        return self.kind.can_use(ability) and has_any(self._all_features(), alternatives)

    @property
    def _compute_capability(self) -> int:
        """Return the compute capability that device code is for; the kind's oldest if it is not
        specified.
        """
        match = re.fullmatch(r"sm_(\d+)[af]?", self.arch)
        return int(match[1]) if match is not None else self.kind.oldest

    def _all_features(self) -> frozenset[str]:
        return _all_features(self.architecture, self.cpu, self.features)

    @property
    def flags(self) -> tuple[str, ...]:
        """Return its features as /proc/cpuinfo flags."""
        return self._cpuinfo_flags(self._all_features())

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the CPU flags that its code requires, as recorded in artifacts."""
        return self._cpuinfo_flags(self._all_features() - self.idle)

    @property
    def idle(self) -> frozenset[str]:
        """Return the LLVM features that the target has but no code generator uses; they are
        disabled when its code is compiled.
        """
        return unused_features(self.architecture) & self._all_features()

    def _cpuinfo_flags(self, features: frozenset[str]) -> tuple[str, ...]:
        """Return the sorted /proc/cpuinfo flags of features."""
        arch = self.architecture
        known_features = (FEATURE_TABLE[arch, f] for f in features if (arch, f) in FEATURE_TABLE)
        return tuple(sorted(f.flag for f in known_features if f.flag))

    def serves(self, other: Target) -> bool:
        """Return whether every machine that can run code for `other` can run this target's code
        too.
        """
        return (
            self.architecture == other.architecture
            and system_of(self.triple) == system_of(other.triple)
            and set(self.needs) <= set(other.needs)
        )

    def check_usable(self, what: str) -> None:
        """Raise CompileError, naming `what` and the alternatives, if no code can be generated for
        the target or an option requests something unsupported.
        """
        if not self.kind.has_generator:
            raise CompileError(
                f"{what}: there is no code generator for target kind {self.kind.name!r}; "
                f"there are {supported_kinds()}"
            )
        if self.kind.is_cpu and not is_supported(self.triple):
            supported = ", ".join(SUPPORTED_TRIPLES)
            raise CompileError(
                f"{what}: there is no runtime for the triple {self.triple!r}; there are {supported}"
            )
        table = self.kind.option_table
        for name, value in self.options:
            harmless = table[name].ignored_values
            if harmless is not None and value not in harmless and value != ():
                can = " or ".join(map(repr, harmless))
                expected = f"only {can} can be had" if can else "there is no such thing"
                raise CompileError(
                    f"{what}: target option -{name}={format_option(value)}: {expected}"
                )
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
        """Return the target of the code that runs on the host: itself, or for a device that of the
        code launching its kernels, by default this machine.
        """
        if self.kind.is_cpu:
            return self
        return self.host_target or Target("llvm")

    def __str__(self) -> str:
        """Return the text form, with every fact."""
        words = [f"-{name}={format_option(value)}" for name, value in self._text_options().items()]
        if self.host_target is not None:
            words.append(f"-host={format_option(str(self.host_target))}")
        return " ".join((self.kind.name, *words))

    def __eq__(self, other: object) -> bool:
        """Compare with a target, or with text that names one: `Target("llvm")` equals "llvm". Text
        that names no target is not equal.
        """
        if isinstance(other, Target):
            return self is other or _identity_fields(self) == _identity_fields(other)
        if not isinstance(other, str):
            return NotImplemented
        try:
            return self == Target(other)
        except CompileError:
            return False

    def __hash__(self) -> int:
        """Return the hash of its text form, so that the text finds it in a dictionary."""
        facts = _identity_fields(self)
        cached = _HASH_CACHE.get(facts)
        if cached is None:
            cached = _HASH_CACHE[facts] = hash(str(self))
        return cached

    def __repr__(self) -> str:
        """Return a Python expression that constructs it."""
        return f"Target({str(self)!r})"

    def _text_options(self) -> dict[str, object]:
        """Return facts and options by their names in text."""
        options: dict[str, object] = {}
        if self.kind.is_cpu:
            options = {"mtriple": self.triple, "mcpu": self.cpu}
            if self.features:
                options["mattr"] = tuple(f if f[0] == "-" else f"+{f}" for f in self.features)
            options |= {"vector-bits": self.vector_bits, "registers": self.registers}
            options |= {"cores": self.cores}
            options |= {f"l{i + 1}": str(cache) for i, cache in enumerate(self.caches)}
            if len(self.caches) < 3:
                options[f"l{len(self.caches) + 1}"] = "0"
            options |= {"fma-units": self.fma_units, "fma-latency": self.fma_latency}
            options |= {"loads": self.loads}
        return options | dict(self.options)

    # The face of TVM's Target.

    @property
    def attrs(self) -> dict[str, Any]:
        """Return facts and options by their names in text; lists as such."""
        hidden = ("keys", "tag")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._text_options().items()
            if name not in hidden
        }

    @property
    def keys(self) -> list[str]:
        """Return the keys that strategies are selected by: explicit ones, the device, those of the
        kind.
        """
        return list(_all_keys(self.kind, dict(self.options)))

    @property
    def tag(self) -> str:
        """Return the tag it was built from, or ""."""
        return str(dict(self.options).get("tag", ""))

    @property
    def bounds(self) -> str:
        """Return "check" for code that checks every buffer access against its extent, or ""."""
        return str(dict(self.options).get("bounds", ""))

    def with_bounds(self, bounds: str) -> Target:
        """Return the same target with bounds checks, or without."""
        other_options = {name: value for name, value in self.options if name != "bounds"}
        bounds_option: dict[str, object] = {"bounds": bounds} if bounds else {}
        return Target(self, options=tuple(sorted({**other_options, **bounds_option}.items())))

    @property
    def libs(self) -> list[str]:
        """Return the option `libs`: external libraries."""
        return list(self.attrs.get("libs", ()))

    @property
    def device_name(self) -> str:
        """Return the option `device`, or ""."""
        return str(self.attrs.get("device", ""))

    @property
    def model(self) -> str:
        """Return the option `model`, or "unknown"."""
        return str(self.attrs.get("model", "unknown"))

    @property
    def mcpu(self) -> str:
        """Return the processor's name."""
        return str(self.attrs.get("mcpu", ""))

    @property
    def mattr(self) -> list[str]:
        """Return the features beyond the processor's, each with its sign."""
        return list(self.attrs.get("mattr", ()))

    @property
    def arch(self) -> str:
        """Return the GPU option `arch`, or ""."""
        return str(self.attrs.get("arch", ""))

    @property
    def max_num_threads(self) -> int:
        """Return the maximum number of threads in a block."""
        return int(self.attrs["max_num_threads"])

    @property
    def thread_warp_size(self) -> int:
        """Return the number of threads in a warp."""
        return int(self.attrs["thread_warp_size"])

    @property
    def max_shared_memory_per_block(self) -> int:
        """Return the shared memory of a block in bytes."""
        return int(self.attrs["max_shared_memory_per_block"])

    @property
    def block_memory(self) -> int:
        """Return the shared memory of a block in bytes; if unspecified, what every device of the
        kind has.
        """
        option = self.attrs.get("max_shared_memory_per_block")
        return int(option) if option else self.kind.block_memory

    @property
    def l2_cache_size_bytes(self) -> int:
        """Return a GPU's L2 size if specified, or a processor's L2 size; else 0."""
        return int(self.attrs.get("l2_cache_size_bytes", self.l2 if self.kind.is_cpu else 0))

    @property
    def max_function_args(self) -> int:
        """Return the maximum number of kernel arguments; -1 if unlimited."""
        return int(self.attrs.get("max_function_args", -1))

    @property
    def most_inputs(self) -> int:
        """Return the maximum number of input tensors of a device kernel, such that its results,
        workspaces and sizes fit into its arguments too; 0 for no limit.
        """
        if not self.kind.has_threads:
            return 0
        limit = self.max_function_args
        return max(
            2, (min(limit, MAX_KERNEL_ARGUMENTS) if limit > 0 else MAX_KERNEL_ARGUMENTS) // 2
        )

    def get_target_device_type(self) -> int:
        """Return DLPack's device type number."""
        return self.kind.device_type

    def with_host(self, host: TargetLike | None = None) -> Target:
        """Return the same target with another host."""
        return Target(self, host_target=None if host is None else Target.parse(host))

    def export(self) -> dict[str, Any]:
        """Return a dictionary that `Target` rebuilds it from."""
        config = {"kind": self.kind.name, "tag": self.tag, "keys": self.keys, **self.attrs}
        if self.host_target is not None:
            config["host"] = self.host_target.export()
        return config

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """Return the target of the innermost `with`. Raises ValueError if there is none and
        `allow_none` is false.
        """
        entered = TARGET_STACK.get()
        if not entered and not allow_none:
            raise ValueError("target: there is no current target; `with Target(...):` sets one")
        return entered[-1] if entered else None

    @staticmethod
    def list_kinds() -> list[str]:
        """Return the names of the kinds."""
        return sorted(TARGET_KINDS)

    @staticmethod
    def canon_target(target: TargetLike | None) -> Target | None:
        """Return a target from anything that describes one; None stays None."""
        return None if target is None else Target.parse(target)

    @staticmethod
    def canon_target_and_host(
        target: TargetLike | None, target_host: TargetLike | None = None
    ) -> tuple[Target | None, Target | None]:
        """Return a target with its host, the given one or else its own, and that host.

        Raises:
            CompileError: A host without a target.
        """
        if target is None:
            if target_host is not None:
                raise CompileError("target: a host is given, and no target")
            return None, None
        chosen = Target.parse(target)
        if target_host is not None:
            chosen = Target(chosen, host=Target.parse(target_host))
        return chosen, chosen.host_target

    @staticmethod
    def canon_multi_target_and_host(
        target: TargetLike | Mapping[Any, TargetLike] | Sequence[TargetLike],
        target_host: TargetLike | None = None,
    ) -> list[Target]:
        """Return the targets of one, of a sequence or of a mapping's values, with their hosts. A
        mapping with "kind" describes one target.

        Raises:
            CompileError: None.
        """
        if target is None:
            raise CompileError("target: a target or several expected, got None")
        targets: Sequence[Any] = [target]
        if isinstance(target, Mapping) and "kind" not in target:
            targets = list(target.values())
        elif isinstance(target, (list, tuple)):
            targets = target
        with_hosts = (Target.canon_target_and_host(one, target_host)[0] for one in targets)
        return [one for one in with_hosts if one is not None]

    @staticmethod
    def canon_target_map_and_host(
        target_map: Mapping[Any, Any], target_host: TargetLike | None = None
    ) -> tuple[dict[Target, Any], Target | None]:
        """Return the mapping with its keys as targets with hosts, and the host of the last one."""
        result, host = {}, None
        for key, value in target_map.items():
            chosen, host = Target.canon_target_and_host(key, target_host)
            if chosen is not None:
                result[chosen] = value
        return result, host

    def __enter__(self) -> Target:
        """Make it the current target, the default of `compile` and `build`."""
        TARGET_STACK.set((*TARGET_STACK.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the enclosing target."""
        TARGET_STACK.set(TARGET_STACK.get()[:-1])


if not TYPE_CHECKING:
    Target.host = _HostDescriptor()

TARGET_STACK: ContextVar[tuple[Target, ...]] = ContextVar("entered targets", default=())
"""Targets of the enclosing `with` statements in this context."""


def target_or_current(target: TargetLike | None = None) -> Target:
    """Parse a target; the default is the current one, or else this machine."""
    return Target.parse(target if target is not None else Target.current() or "llvm")


_identity_fields = attrgetter(*(f.name for f in fields(Target)))
"""Return all fields of a target, which its equality compares."""
_HASH_CACHE: dict[tuple[object, ...], int] = {}
"""Hash of a target by its facts, cached because formatting its text is slow."""


@functools.cache
def _host_machine() -> Target:
    """Return the target of this machine."""
    return Target("llvm")


@functools.cache
def _all_features(arch: str, cpu: str, extra: tuple[str, ...]) -> frozenset[str]:
    return target_facts.all_features(arch, cpu, extra)


def _fields_from_config(config: Config) -> dict[str, Any]:
    """Return a target's fields by name, from its configuration."""
    kind = config["kind"]
    assert isinstance(kind, TargetKind)
    facts = (
        {n: v for n, v in config.items() if n in target_facts.FACT_OPTIONS} if kind.is_cpu else None
    )
    values = target_facts.resolve_facts(facts) if facts is not None else _generic_facts()
    host = config.get("host")
    defaults = {n: o.default for n, o in kind.option_table.items() if o.default is not None}
    specified = {n: config[n] for n in kind.option_table if n in config}
    options = defaults | _device_options(kind, specified) | specified
    if kind.asks_device:
        options.pop("from_device", None)
        values["cores"] = int(str(options["cores"]))
    if "vector-bits" in options and not kind.is_cpu:
        values |= _device_vector_facts(int(str(options["vector-bits"])))
    keys = _all_keys(kind, options)
    # Default keys are left out, so that equal targets have equal texts.
    if keys == _all_keys(kind, {**options, "keys": ()}):
        options.pop("keys", None)
    else:
        options["keys"] = keys
    return {
        **values,
        "kind": kind,
        "options": tuple(sorted(options.items())),
        "host_target": None if host is None else Target.parse(host),  # type: ignore[arg-type]
    }


def _all_keys(kind: TargetKind, options: Mapping[str, Any]) -> tuple[str, ...]:
    device = options.get("device")
    device_tag = (device,) if device else ()
    return tuple(dict.fromkeys((*options.get("keys", ()), *device_tag, *kind.default_keys)))


def _device_options(kind: TargetKind, specified: Mapping[str, object]) -> dict[str, object]:
    """Return options queried from a device of this machine: the first one, or number `from_device`;
    none if the target is labelled as another device, or specifies everything. Raises
    CompileError if there is no such device.
    """
    queried_options = [name for name in DEVICE_ATTRIBUTES if name in kind.option_table]
    is_known = (
        all(name in specified for name in queried_options)
        or "device" in specified
        or "model" in specified
    )
    if not kind.asks_device or (is_known and "from_device" not in specified):
        return {}
    number = int(str(specified.get("from_device", 0)))
    facts = query_device_attributes(kind.device_type, number)
    device_options = {name: value for name, value in facts.items() if name in kind.option_table}
    if not device_options and "from_device" in specified:
        raise CompileError(
            f"target: -from_device={number}: there is no such device of kind {kind.name!r} here"
        )
    return device_options


def _device_vector_facts(bits: int) -> dict[str, object]:
    """Return a device's vector facts: the widest vectors have more registers."""
    return {"vector_bits": bits, "registers": 32 if bits >= MAX_VECTOR_BITS else 16}


def _generic_facts() -> dict[str, object]:
    return target_facts.resolve_facts({"mcpu": "x86-64", "cores": 1})


def _complete_fields(overrides: Mapping[str, object]) -> dict[str, Any]:
    """Return the missing fields from the table entry of the given processor."""
    kind = overrides.get("kind", "llvm")
    kind = TARGET_KINDS[kind] if isinstance(kind, str) else kind
    assert isinstance(kind, TargetKind)
    if not kind.is_cpu:
        return _fields_from_config({"kind": kind})
    options: dict[str, object] = {"mcpu": overrides.get("cpu", "x86-64-v3"), "cores": 1}
    named = {"triple": "mtriple", "features": "mattr", "vector_bits": "vector-bits"}
    options |= {text: overrides[name] for name, text in named.items() if name in overrides}
    return _fields_from_config({"kind": kind, **options})


__all__ = [
    "ABILITIES",
    "PROCESSORS",
    "Cache",
    "Target",
    "TargetKind",
    "TargetLike",
    "target_or_current",
]
