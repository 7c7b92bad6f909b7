"""Parsing of OpenAI's chat and completion requests: from the body to what a model is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.openai_fields import read_fields
from ekiden.serve.openai_messages import parse_messages, parse_tool_choice, parse_tools
from ekiden.serve.text import Sampling, TextRequest

__all__ = [
    "CHAT", "COMPLETIONS", "RESPONSES", "OpenAIRequest", "build_request", "parse_chat_request",
    "parse_completion_request", "parse_sampling",
]  # fmt: skip

CHAT, COMPLETIONS, RESPONSES = "c", "p", "r"
MAX_PROMPTS = 128
"""Prompts of one request for completions."""
DEFAULT_COMPLETION_TOKENS = 16
"""Tokens of a completion where the request does not say, as at OpenAI."""


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """Parsed chat, completion or response request with its generation requests."""

    model: str
    endpoint: str
    """`CHAT`, `COMPLETIONS` or `RESPONSES`."""
    requests: tuple[TextRequest, ...]
    """One for each choice of the answer, in its order: `n` for the first prompt, and so on."""
    n: int = 1
    """Choices for each prompt."""
    stream: bool = False
    usage: bool = False
    """Whether the stream ends with the count of tokens."""
    is_echo: bool = False
    """Whether a completion begins with its prompt."""
    is_parallel: bool = True
    """Whether an answer may have several calls."""
    is_forced_call: bool = False
    """Whether the answer is a call of a named function, which ends with "stop"."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    """What a response repeats of its request."""


def parse_chat_request(body: Mapping[str, Any]) -> OpenAIRequest:
    """Parse a chat completion request. Raises RequestError for what is invalid or not honoured."""
    values = read_fields(CHAT, body)
    if "messages" not in values:
        raise RequestError("'messages': a list of messages expected")
    tools = parse_tools(values.get("tools", []))
    choice = parse_tool_choice(values.get("tool_choice"), tools)
    options = dict(values.get("chat_template_kwargs", {}))
    if "reasoning_effort" in values:
        options.setdefault("reasoning_effort", values["reasoning_effort"])
    pattern = values.get("response_format", "")
    request = TextRequest(
        messages=parse_messages(values["messages"]),
        sampling=parse_sampling(values, _chat_logprobs(values), pattern),
        tools=() if choice == "none" else tools,
        tool_choice="auto" if choice == "none" else choice,
        template_options=options,
    )
    return build_request(
        CHAT, values, (request,), is_parallel=values.get("parallel_tool_calls", True),
        is_forced_call=choice.startswith("function:"),
    )  # fmt: skip


def _chat_logprobs(values: Mapping[str, Any]) -> int | None:
    """Return the number of alternatives reported per token; None without log-probabilities. Raises
    RequestError.
    """
    wants = values.get("logprobs", False)
    if not isinstance(wants, bool):
        raise RequestError("'logprobs': true or false expected")
    if not wants and values.get("top_logprobs"):
        raise RequestError("'top_logprobs': 'logprobs' expected beside it")
    return int(values.get("top_logprobs", 0)) if wants else None


def parse_completion_request(body: Mapping[str, Any]) -> OpenAIRequest:
    """Parse a text completion request. Raises RequestError for what is invalid or not honoured."""
    values = read_fields(COMPLETIONS, body)
    if "prompt" not in values:
        raise RequestError("'prompt': a text, or a list of texts or tokens, expected")
    prompts = _parse_prompts(values["prompt"])
    logprobs = values.get("logprobs")
    if logprobs is not None and (type(logprobs) is not int or not 0 <= logprobs <= 5):
        raise RequestError("'logprobs': a whole number from 0 to 5 expected")
    if values.get("best_of", values.get("n", 1)) != values.get("n", 1):
        raise RequestError("'best_of': the value of 'n' expected")
    if values.get("echo") and logprobs is not None:
        raise RequestError("'echo': not supported with 'logprobs'")
    if values.get("echo") and not all(isinstance(prompt, str) for prompt in prompts):
        raise RequestError("'echo': prompts of text expected")
    sampling = parse_sampling({"max_tokens": DEFAULT_COMPLETION_TOKENS, **values}, logprobs)
    requests = tuple(TextRequest(prompt=prompt, sampling=sampling) for prompt in prompts)
    return build_request(COMPLETIONS, values, requests, is_echo=values.get("echo", False))


def _parse_prompts(value: object) -> list[str | tuple[int, ...]]:
    """Return the prompts of a request. Raises RequestError."""
    message = "'prompt': a text, or a list of texts or tokens, expected"
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise RequestError(message)
    if all(type(token) is int for token in value):
        return [tuple(value)]
    if len(value) > MAX_PROMPTS:
        raise RequestError(f"'prompt': at most {MAX_PROMPTS} expected")
    prompts: list[str | tuple[int, ...]] = []
    for entry in value:
        if isinstance(entry, str):
            prompts.append(entry)
        elif isinstance(entry, list) and entry and all(type(token) is int for token in entry):
            prompts.append(tuple(entry))
        else:
            raise RequestError(message)
    return prompts


def parse_sampling(values: Mapping[str, Any], logprobs: int | None, pattern: str = "") -> Sampling:
    """Return the sampling parameters of a request.

    Args:
        values: The fields of the request.
        logprobs: The number of likeliest tokens to report; None for none.
        pattern: What the whole answer matches; empty for any answer.
    """
    names = (
        "temperature", "top_p", "seed", "top_k", "min_p", "repetition_penalty",
        "frequency_penalty", "presence_penalty", "logit_bias",
    )  # fmt: skip
    settings = {name: values[name] for name in names if name in values}
    return Sampling(
        **settings,
        max_tokens=values.get("max_completion_tokens", values.get("max_tokens")),
        stop=values.get("stop", ()),
        ignore_end=values.get("ignore_eos", False),
        logprobs=logprobs,
        pattern=pattern,
    )


def build_request(
    endpoint: str,
    values: Mapping[str, Any],
    requests: tuple[TextRequest, ...],
    **options: Any,  # noqa: ANN401  # fields of OpenAIRequest
) -> OpenAIRequest:
    """Build a request with `n` generations per prompt.

    Args:
        endpoint: Its letter.
        values: The fields of the request.
        requests: One for each prompt.
        options: Further fields of `OpenAIRequest`.

    Raises RequestError for options of a stream where there is none.
    """
    adapter = values.get("lora", "")
    requests = tuple(replace(request, adapter=adapter) for request in requests)
    choices = tuple(
        _with_choice_seed(request, number)
        for request in requests
        for number in range(values.get("n", 1))
    )
    if "stream_options" in values and not values.get("stream"):
        raise RequestError("'stream_options': 'stream' expected beside it")
    usage = values.get("stream_options", {}).get("include_usage") is True
    return OpenAIRequest(
        values["model"], endpoint, choices, values.get("n", 1), values.get("stream", False), usage,
        **options,
    )  # fmt: skip


def _with_choice_seed(request: TextRequest, number: int) -> TextRequest:
    """Return the generation request of a further choice: one with a seed has that of the first and
    its number.
    """
    seed = request.sampling.seed
    if not number or seed is None:
        return request
    wrapped = (seed + number + 2**63) % 2**64 - 2**63
    return replace(request, sampling=replace(request.sampling, seed=wrapped))
