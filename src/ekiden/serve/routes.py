"""Paths of HTTP, and what answers each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.responses import Response

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["READ", "Route", "Routes"]

Endpoint = Callable[[Request], Awaitable[Response]]
READ = ("GET", "HEAD")
"""Who may read may ask for the head alone."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its methods and what answers them. A part in braces is any text, and its name is in
    `Request.path_params`.
    """

    path: str
    endpoint: Endpoint
    methods: tuple[str, ...] = READ


class Routes:
    """All paths; a slash behind one makes no difference."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_length: dict[int, list[tuple[list[str], Route]]] = {}
        for route in routes:
            parts = route.path.split("/")
            self._by_length.setdefault(len(parts), []).append((parts, route))

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        """What answers a request, and the named parts of its path. Raises RequestError where there
        is no such path, or none that has the method.
        """
        parts = path.removesuffix("/").split("/")
        for pattern, route in self._by_length.get(len(parts), ()):
            names = _named(pattern, parts)
            if names is not None:
                if method not in route.methods:
                    raise RequestError("method not allowed", "method")
                return route.endpoint, names
        raise RequestError("not found", "unknown")


def _named(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    """The parts that a pattern names; None where the others differ."""
    names: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted == part:
            continue
        if not part or not wanted.startswith("{"):
            return None
        names[wanted[1:-1]] = part
    return names
