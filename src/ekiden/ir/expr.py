"""RelayExpr, BaseFunc and GlobalVar: the expression base classes that Relay and TIR share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Self, cast

from ekiden.ir.node import NODE_TYPES, Node, ignored_field, node
from ekiden.ir.span import Span
from ekiden.ir.type import Type


class RelayExpr(Node):
    """Base class of functional expressions.

    `checked_type` is what type inference found; `span` says which model node it came from.
    """

    __slots__ = ("_checked_type",)
    span: Span | None
    printer: ClassVar[Callable[..., str] | None] = None
    """Printer of expressions as text.

    Set by `ekiden.relay.text_hooks`, which stands on a higher floor.
    """

    html_printer: ClassVar[Callable[[RelayExpr], str] | None] = None
    """Printer of expressions as HTML; set by `ekiden.relay.html`."""

    @property
    def checked_type(self) -> Type:
        """Return the inferred type; raise ValueError before type inference."""
        checked = self.checked_type_or_none()
        if checked is None:
            raise ValueError(
                f"{type(self).__name__}: no type yet; run relay.transform.InferType() first"
            )
        return checked

    def checked_type_or_none(self) -> Type | None:
        """Return the inferred type, or None before inference."""
        return getattr(self, "_checked_type", None)

    def __call__(self, *args: RelayExpr) -> RelayExpr:
        """Return a relay.Call of this expression."""
        call = cast(Callable[..., RelayExpr], NODE_TYPES["relay.Call"])
        return call(self, args)

    def show(self, show_meta_data: bool = False) -> None:
        """Print the text, without the values of constants unless `show_meta_data`."""
        print(self.astext(show_meta_data))

    def astext(
        self,
        show_meta_data: bool = True,
        annotate: Callable[[RelayExpr], str] | None = None,
        show_spans: bool = False,
    ) -> str:
        """Return the expression in Relay's text format; `ekiden.relay.parse_expr` reads it back.

        `annotate` gives the comment after each expression in place of its type. `show_spans` adds
        the source position of each.
        """
        printer = RelayExpr.printer
        if printer is None:
            return f"{type(self).__name__}(...)"
        return printer(self, show_meta_data, annotate, show_spans)

    def __str__(self) -> str:
        return self.astext(show_meta_data=False)

    def __repr__(self) -> str:
        return self.astext(
            show_meta_data=False
        )  # the dataclass's own would print a shared node once per path

    def _repr_html_(self) -> str | None:
        """Return the HTML representation for notebooks."""
        return None if RelayExpr.html_printer is None else RelayExpr.html_printer(self)

    def set_checked_type(self, found: Type) -> None:
        """Set the inferred type; called by type inference only."""
        # Nodes are frozen; the type is no field and takes no part in equality.
        object.__setattr__(self, "_checked_type", found)


class BaseFunc(RelayExpr):
    """Base class of functions in a module: relay.Function and tir.PrimFunc."""

    __slots__ = ()
    canonical_form: ClassVar[Callable[[BaseFunc], BaseFunc] | None] = None
    """Function that brings functions of this class to the form that is compared and hashed; None
    for the function itself.
    """

    def attr(self, key: str) -> object:
        """Return a function attribute, or None if it is not set."""
        return (getattr(self, "attrs", None) or {}).get(key)

    def with_attr(
        self, attr_key_or_dict: str | Mapping[str, object], attr_value: object = None
    ) -> Self:
        """Return a copy with one attribute set, or all of a mapping."""
        key = attr_key_or_dict
        new = {key: attr_value} if isinstance(key, str) else dict(key)
        return self.with_fields(attrs={**(getattr(self, "attrs", None) or {}), **new})

    def without_attr(self, attr_key: str) -> Self:
        """Return a copy without an attribute."""
        attrs = getattr(self, "attrs", None) or {}
        return self.with_fields(attrs={k: v for k, v in attrs.items() if k != attr_key} or None)


@node("ir.GlobalVar")
class GlobalVar(RelayExpr):
    """Name of a function in a module."""

    name_hint: str
    span: Span | None = ignored_field(default=None)
