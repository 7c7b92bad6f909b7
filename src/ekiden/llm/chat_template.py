"""Rendering of chat templates (Jinja): Jinja with the functions that transformers gives to
templates.

    tools and documents, None where there are none; tojson, which leaves letters as they are;
    raise_exception, strftime_now; {% break %} and {% continue %}; {% generation %}, which marks an
    answer

A model has one template, or several by names, of which "default" is that of conversations and
"tool_use", where there is one, that of conversations with tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any

from ekiden.runtime.errors import InputError, LoadError

__all__ = ["find_chat_template", "render_chat"]


NO_TEMPLATE_MESSAGE = (
    "messages: the model has no chat template: that takes a chat_template.jinja beside its"
    " tokenizer, or 'chat_template' in tokenizer_config.json"
)


def find_chat_template(settings: Mapping[str, Any], has_tools: bool = False) -> str:
    """Return the chat template of a tokenizer's settings. Raises InputError if there is none, or
    several without one named "default".
    """
    value = settings.get("chat_template")
    if isinstance(value, list):
        value = {t.get("name"): t.get("template") for t in value if isinstance(t, Mapping)}
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        # Invented role markers would be answered, but not by what the model was trained for.
        raise InputError(NO_TEMPLATE_MESSAGE)
    if has_tools and isinstance(value.get("tool_use"), str):
        return str(value["tool_use"])
    if not isinstance(value.get("default"), str):
        names = ", ".join(map(repr, value)) or "none"
        raise InputError(f"messages: expected a template named 'default', the model has {names}")
    return str(value["default"])


def render_chat(
    template: str,
    settings: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Render messages by a chat template, up to the position at which the answer begins. Special
    tokens of the settings ("eos_token") are variables.

    Args:
        template: The Jinja source.
        settings: Those of the tokenizer.
        messages: "role" and "content", and what else a template reads ("tool_calls").
        tools: JSON schemas of functions that the model may call.
        options: Further variables of the template ("enable_thinking").

    Raises InputError for messages that the template rejects or cannot render, LoadError without the
    package jinja2.
    """
    texts = {k: _token_text(v) for k, v in settings.items() if k.endswith("_token")}
    # What has no text stays undefined, as templates may ask ("bos_token is defined"); settings such
    # as "add_bos_token" are no tokens.
    tokens = {name: text for name, text in texts.items() if text is not None}
    try:
        compiled_template = _jinja_environment().from_string(template)
        return str(
            compiled_template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                **{"documents": None, **tokens, **(options or {})},
                tools=None if tools is None else list(tools),
            )
        )
    except LoadError:
        raise
    except Exception as error:  # a template computes: what it does raises what Python does
        raise InputError(f"messages: the model's template refuses them: {error}") from error


@cache
def _jinja_environment() -> Any:  # noqa: ANN401  # of a package that is loaded late
    """Return a sandboxed jinja2 environment. Raises LoadError without the package."""
    try:
        jinja2, sandbox, ext = map(import_module, ("jinja2", "jinja2.sandbox", "jinja2.ext"))
    except ModuleNotFoundError as error:
        text = "a chat template needs the package jinja2: pip install 'ekiden[llm]'"
        raise LoadError(text) from error

    class GenerationTag(ext.Extension):  # type: ignore[misc, name-defined]
        """Jinja extension for `{% generation %}answer{% endgeneration %}`, which marks answers for
        training.
        """

        tags = frozenset(("generation",))

        def parse(self, parser: Any) -> Any:  # noqa: ANN401
            """Return the statements inside the tag, with a scope of their own."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    # Templates come with downloaded models and are not trusted.
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise JSON as transformers does; Jinja's own filter escapes HTML characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _token_text(token: object) -> str | None:
    """Return the text of a special token, which may be wrapped in a mapping; None if it has
    none.
    """
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None
