"""Memory pools on the command line: `--workspace-pools sram --workspace-pools-targets sram:c`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ekiden.ir.memory_pools import PoolInfoProperties, WorkspaceMemoryPools, WorkspacePoolInfo
from ekiden.runtime.errors import InputError
from ekiden.target import Target

__all__ = ["generate_workspace_pools_args", "workspace_pools_recombobulate"]

POOL_NUMBERS = (
    "size_hint_bytes",
    "clock_frequency_hz",
    "read_bandwidth_bytes_per_cycle",
    "write_bandwidth_bytes_per_cycle",
    "read_latency_cycles",
    "write_latency_cycles",
)
"""Properties of a pool, each an argument of the form POOL:NUMBER."""


def generate_workspace_pools_args(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of memory pools."""
    parser.add_argument("--workspace-pools", help="the names of pools, with commas between them")
    for name in ("targets", *POOL_NUMBERS, "target_burst_bytes"):
        form = {"targets": "POOL:TARGET,...", "target_burst_bytes": "POOL:TARGET:NUMBER"}
        parser.add_argument(
            f"--workspace-pools-{name.replace('_', '-')}",
            action="append",
            metavar=form.get(name, "POOL:NUMBER"),
        )


def workspace_pools_recombobulate(
    parsed: argparse.Namespace, targets: Sequence[Target], extra_target: object
) -> WorkspaceMemoryPools | None:
    """Return the pools that parsed arguments describe, or None without any.

    Args:
        parsed: The arguments.
        targets: The targets that may use pools.
        extra_target: Code generators before the target, which use none.

    Raises:
        InputError: A pool without targets, or an unknown pool, target or form.
    """
    if not parsed.workspace_pools:
        return None
    names = parsed.workspace_pools.split(",")
    by_kind = {target.kind.name: target for target in targets}
    texts = {
        name: _split_by_pool(getattr(parsed, f"workspace_pools_{name}"), names)
        for name in ("targets", *POOL_NUMBERS)
    }
    bursts: dict[str, dict[Target, int]] = {name: {} for name in names}
    for text in parsed.workspace_pools_target_burst_bytes or ():
        pool, _, value = text.partition(":")
        kind, _, size = value.partition(":")
        if pool not in bursts:
            raise InputError(f"tvmc: no workspace pool is called '{pool}'")
        bursts[pool][_find_target(kind, by_kind)] = _parse_number(size, text)
    pools = []
    for name in names:
        if name not in texts["targets"]:
            raise InputError(f"tvmc: --workspace-pools-targets {name}:TARGET expected")
        kinds = texts["targets"][name].split(",")
        numbers = {
            key: _parse_number(texts[key][name], texts[key][name])
            for key in POOL_NUMBERS
            if name in texts[key]
        }
        properties = PoolInfoProperties(**numbers, target_burst_bytes=bursts[name])  # type: ignore[arg-type]
        found = [_find_target(kind, by_kind) for kind in kinds]
        pools.append(WorkspacePoolInfo(name, found, properties))
    return WorkspaceMemoryPools(pools)


def _split_by_pool(texts: Sequence[str] | None, names: Sequence[str]) -> dict[str, str]:
    """Split texts of the form POOL:VALUE; the last one of a pool counts."""
    values = {}
    for text in texts or ():
        name, _, value = text.partition(":")
        if name not in names:
            raise InputError(f"tvmc: no workspace pool is called '{name}'")
        values[name] = value
    return values


def _find_target(kind: str, by_kind: Mapping[str, Target]) -> Target:
    if kind not in by_kind:
        raise InputError(f"tvmc: --workspace-pools: '{kind}' is not a target of --target")
    return by_kind[kind]


def _parse_number(text: str, whole: Any) -> int:  # noqa: ANN401
    if not text.isdigit():
        raise InputError(f"tvmc: --workspace-pools: a number expected, got '{whole}'")
    return int(text)
