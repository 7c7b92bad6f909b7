"""Rendering of chat templates (Jinja): Jinja with the functions that transformers gives to
templates.

    tools and documents, None where there are none; tojson, which leaves letters as they are;
    raise_exception, strftime_now; {% break %} and {% continue %}; {% generation %}, which marks an
    answer

A model has one template, or several by names, of which "default" is that of conversations and
"tool_use", where there is one, that of conversations with tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from ekiden.runtime.errors import InputError, LoadError

__all__ = ["find_chat_template", "render_chat"]


NO_TEMPLATE_MESSAGE = (
    "messages: the model has no chat template: that takes a chat_template.jinja beside its"
    " tokenizer, or 'chat_template' in tokenizer_config.json"
)
MAX_MESSAGE_CHARACTERS = 1000
"""Of an error's text, which the template composes."""


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
    """Render messages by a chat template, up to the position at which the response begins. Special
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
    variables = {
        "documents": None, **tokens, **(options or {}),
        "messages": [dict(message) for message in messages],
        "add_generation_prompt": True,
        "tools": None if tools is None else list(tools),
    }  # fmt: skip
    try:
        return str(_template_sandbox().render_template(template, variables))
    except (InputError, LoadError):
        raise
    except Exception as error:  # a template computes: what it does raises what Python does
        text = str(error)[:MAX_MESSAGE_CHARACTERS]
        raise InputError(f"messages: the model's template refuses them: {text}") from error


@cache
def _template_sandbox() -> Any:  # noqa: ANN401  # of a package that is loaded late
    """Return the module that renders templates. Raises LoadError without the package jinja2."""
    try:
        return import_module("ekiden.llm.template_sandbox")
    except ModuleNotFoundError as error:
        text = "a chat template needs the package jinja2: pip install 'ekiden[llm]'"
        raise LoadError(text) from error


def _token_text(token: object) -> str | None:
    """Return the text of a special token, which may be wrapped in a mapping; None if it has
    none.
    """
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None
