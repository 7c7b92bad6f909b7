"""Routing table of the HTTP service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["DEFAULT_ROUTE_METHODS", "Route", "RoutingTable"]

Endpoint = Callable[[Request], Awaitable[Response]]
DEFAULT_ROUTE_METHODS = ("GET", "HEAD")
"""Who may read may ask for the head alone."""


MAX_KNOWN_PATHS, MAX_KNOWN_LENGTH = 1024, 256
"""Paths whose endpoints are cached at once, and letters of one."""


@dataclass(frozen=True, slots=True)
class Route:
    """Route: a path pattern, its methods and its endpoint. A segment in braces matches any text,
    stored under its name in `Request.path_params`.
    """

    path: str
    endpoint: Endpoint
    methods: tuple[str, ...] = DEFAULT_ROUTE_METHODS


class RoutingTable:
    """Routing table; a trailing slash makes no difference."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_length: dict[int, list[tuple[list[str], Route]]] = {}
        self._known: dict[tuple[str, str], tuple[Endpoint, Mapping[str, str]]] = {}
        for route in routes:
            segments = route.path.split("/")
            self._by_length.setdefault(len(segments), []).append((segments, route))

    def match(self, method: str, path: str) -> tuple[Endpoint, Mapping[str, str]]:
        """Return the endpoint of a request, and the named segments of its path. Raises RequestError
        if the path or method is unknown.
        """
        cached_match = self._known.get((method, path))
        if cached_match is not None:
            return cached_match
        new_match = self._search(method, path)
        if len(self._known) >= MAX_KNOWN_PATHS:
            self._known.clear()
        if len(path) <= MAX_KNOWN_LENGTH:
            self._known[method, path] = new_match
        return new_match

    def _search(self, method: str, path: str) -> tuple[Endpoint, Mapping[str, str]]:
        segments = path.removesuffix("/").split("/")
        for pattern, route in self._by_length.get(len(segments), ()):
            names = _match_segments(pattern, segments)
            if names is not None:
                if method not in route.methods:
                    raise RequestError("method not allowed", "method")
                return route.endpoint, MappingProxyType(names)
        raise RequestError("not found", "unknown")


def _match_segments(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    """Return the segments that a pattern names; None if the others differ."""
    names: dict[str, str] = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected == segment:
            continue
        if not segment or not expected.startswith("{"):
            return None
        names[expected[1:-1]] = segment
    return names
