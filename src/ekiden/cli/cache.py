"""`ekiden cache stats|export|import|prune`: manage the cache of compiled models and kernels."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from ekiden.compiler.cache.cache_files import (
    cache_stats,
    export_cache,
    import_cache,
    prune_cache,
    stats_to_json,
)
from ekiden.runtime.environment import parse_bytes
from ekiden.runtime.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    stats = actions.add_parser(
        "stats", help="print the number of files and bytes by folder and kind"
    )
    stats.add_argument("--json", action="store_true", help="as JSON")
    export = actions.add_parser(
        "export", help="pack all entries that this version can use into a file"
    )
    export.add_argument("file", help="the file to write")
    export.add_argument("--all", action="store_true", help="kernels of other versions too")
    take = actions.add_parser("import", help="import a packed cache, which you trust")
    take.add_argument("file", help="a file that `ekiden cache export` wrote")
    prune = actions.add_parser("prune", help="remove entries that are not needed")
    prune.add_argument("--limit", metavar="BYTES", help="keep at most so many, such as 500M")
    prune.add_argument("--stale", action="store_true", help="remove kernels of other versions")


def run(options: argparse.Namespace) -> int:
    """Run the requested action, and report what was done."""
    return CACHE_ACTIONS[options.action](options)


def _print_cache_stats(options: argparse.Namespace) -> int:
    """Print the number of files and bytes by folder and kind."""
    rows = cache_stats()
    if options.json:
        print(json.dumps(stats_to_json(rows), indent=1))
        return 0
    layer = ""
    for row in rows:
        if row.layer != layer:
            print(f"{row.layer}{' (only read)' if layer else ''}")
            layer = row.layer
        old = row.files - row.current
        other_versions = f", {old} of other versions" if old else ""
        print(f"  {row.kind:10} {row.files:6} files {row.bytes / 1e6:10.1f} MB{other_versions}")
    return 0


def _export_cache(options: argparse.Namespace) -> int:
    count = export_cache(options.file, everything=options.all)
    print(f"{options.file}: {count} files")
    return 0


def _import_cache(options: argparse.Namespace) -> int:
    done = import_cache(options.file)
    print(f"{done.imported} files are new, {done.present} were there, {done.refused} were refused")
    return 0


def _prune_cache(options: argparse.Namespace) -> int:
    limit = parse_bytes(options.limit) if options.limit is not None else None
    if options.limit is not None and limit is None:
        raise InputError(f"--limit: expected bytes, such as 500M, got '{options.limit}'")
    # Without a criterion it would either remove nothing or everything.
    if limit is None and not options.stale:
        raise InputError("expected --limit BYTES, --stale or both")
    count, freed = prune_cache(limit, options.stale)
    print(f"{count} files removed, {freed / 1e6:.1f} MB")
    return 0


CACHE_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "stats": _print_cache_stats,
    "export": _export_cache,
    "import": _import_cache,
    "prune": _prune_cache,
}
