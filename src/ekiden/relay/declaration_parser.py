"""Parser of module-level declarations: version, attributes, definitions' names, data types."""

from __future__ import annotations

import typing

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.node import Node
from ekiden.ir.type import GlobalTypeVar
from ekiden.relay.expr import Constructor, TypeData
from ekiden.relay.lexer import LexerToken, SourceText
from ekiden.relay.printer import TEXT_FORMAT_VERSION
from ekiden.relay.type_parser import TypeParser


class DeclarationParser(TypeParser):
    """Token stream of a text, with the global names it declares."""

    def __init__(self, source: SourceText, tokens: list[LexerToken], init: IRModule) -> None:
        """Initialise with the definitions of a module that the text may use."""
        super().__init__(source, tokens)
        self.init_module = init
        self.globals = {g.name_hint: g for g in init.functions}
        self.global_types = {t.name_hint: t for t in init.type_definitions}
        self.constructors: dict[str, Constructor] = {
            c.name_hint: c
            for data in init.type_definitions.values()
            if isinstance(data, TypeData)
            for c in data.constructors
        }

    def _parse_version(self) -> None:
        if self.next_token.kind == "version":
            if self.next_token.text != TEXT_FORMAT_VERSION:
                self.raise_error(
                    f"expected version {TEXT_FORMAT_VERSION}, got {self.next_token.text}"
                )
            self.advance()

    def _parse_module_attrs(self) -> dict[str, object]:
        if not self.accept("attributes"):
            return {}
        self.expect("{")
        attrs: dict[str, object] = {}
        while not self.accept("}"):
            key = self.expect_kind("string", "a key in quotes")
            self.expect("=")
            attrs[key.text] = self.parse_attr_value()
            if not self.next_is("}"):
                self.expect(",")
        return attrs

    def _scan_definitions(self) -> list[int]:
        """Scan for definitions and declare their names, so that their order does not matter; return
        their positions.
        """
        begins: list[int] = []
        while self.next_token.kind != "end":
            word = self.next_token
            if word.kind != "name" or word.text not in ("def", "prim_func", "type", "extern"):
                items = "'def', 'prim_func', 'type' or 'extern type'"
                self.raise_error(f"expected {items}, got {self.token_description()}")
            # Two passes: a function may call another that is defined below it.
            begins.append(self.position)
            self.advance()
            if word.text in ("def", "prim_func"):
                name = self.expect_kind("global", "a global name")
                self._declare_global(self.globals, name, GlobalVar(name.text), "function @")
                self._skip_body(word)
                continue
            if word.text == "extern":
                self.expect("type")
            name = self.expect_kind("name", "the name of a type")
            self._declare_global(self.global_types, name, GlobalTypeVar(name.text), "type ")
            if word.text == "type":
                self._skip_body(word)
            elif self.next_is("["):
                self._skip_type_params()
        return begins

    def _skip_type_params(self) -> None:
        """Skip the type parameters at the end of an extern type."""
        with self.parse_type_params():
            pass

    def _declare_global(
        self, names: dict[str, typing.Any], token: LexerToken, node: Node, what: str
    ) -> None:
        if token.text in names:
            self.source.raise_parse_error(token.at, f"{what}{token.text} is defined twice")
        names[token.text] = node

    def _skip_body(self, start: LexerToken) -> None:
        depth = 0
        while self.next_token.kind != "end":
            text = self.next_token.text if self.next_token.kind == "mark" else ""
            # Only marks count: a bracket inside a string is part of its token.
            depth += (text == "{") - (text == "}")
            self.advance()
            if text == "}" and depth == 0 and not self._is_device_annotation():
                return
        self.source.raise_parse_error(start.at, f"{start.text!r} has no body that ends with '}}'")

    def _is_device_annotation(self) -> bool:
        """Return whether the bracket just read closes TVM's device annotation of a parameter."""
        return self.next_is(":") or self.next_is(",") or self.next_is(")")

    def _parse_type_data(self) -> TypeData:
        is_extern = self.accept("extern")
        self.expect("type")
        header = self.global_types[self.expect_kind("name", "a name").text]
        with self.parse_type_params() as params:
            constructors: list[Constructor] = []
            if is_extern:
                return TypeData(header, params, ())
            self.expect("{")
            while not self.accept("}"):
                name = self.expect_kind("name", "a constructor")
                inputs = self.parse_types_in_parentheses() if self.next_is("(") else ()
                constructor = Constructor(name.text, inputs, header, len(constructors))
                self._declare_global(self.constructors, name, constructor, "constructor ")
                constructors.append(constructor)
                if not self.next_is("}"):
                    self.expect(",")
        return TypeData(header, params, tuple(constructors))
