"""Chat in Python and in the terminal."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from test_json_schema import BytePieces
from tiny_models import tiny

from ekiden import cli, llm
from ekiden.cli import chat as chat_command
from ekiden.cli import generate as generate_command
from ekiden.llm.tokenizer import Tokenizer
from ekiden.runtime.errors import InputError

pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{# <tool_call> #}{% endif %}"
    "{% if shout %}!{% endif %}assistant:"
)
SAYS = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["x"],
        },
    },
}


@pytest.fixture(scope="module")
def model() -> llm.Model:
    checkpoint = tiny("llama", vocab_size=256, max_position_embeddings=1024)
    tokenizer = Tokenizer(BytePieces(), {"chat_template": TEMPLATE})
    return llm.load(checkpoint, page=16, sequences=2, tokenizer=tokenizer, context=512)


def test_answer_is_iterated_read_and_closed(model: llm.Model) -> None:
    parts = [delta.text for delta in model.chat(SAYS, max_tokens=12, grammar="[a-z]{12}")]
    assert re.fullmatch("[a-z]{12}", "".join(parts)) and len(parts) > 1
    answer = model.chat(SAYS, max_tokens=12, grammar="[a-z]{12}")
    assert answer.read() == "".join(parts) == answer.text
    assert answer.finish == "stop" and answer.tokens == 12 and answer.prompt_tokens == 19
    closed = model.chat(SAYS, grammar="[a-z]*")
    next(closed)
    closed.close()
    assert list(closed) == [] and closed.finish == "closed"
    assert model.chat(SAYS, max_tokens=3, grammar="[a-z]*").read() == "".join(parts)[:3]


def test_answers_are_iterated_without_holding_the_event_loop(model: llm.Model) -> None:
    async def both() -> list[str]:
        async def text() -> str:
            answer = model.chat(SAYS, grammar="[0-9]{8}")
            return "".join([delta.text async for delta in answer])

        async def pieces() -> str:
            result = model.generate_async("ab", max_tokens=8, grammar="[0-9]{8}")
            return "".join([piece.text async for piece in result])

        return list(await asyncio.gather(text(), pieces()))

    assert all(re.fullmatch("[0-9]{8}", text) for text in asyncio.run(both()))


def test_answer_may_call_functions(model: llm.Model) -> None:
    answer = model.chat(SAYS, tools=[TOOL], tool_choice="required")
    assert answer.read() == "" and answer.calls[0].name == "add"
    assert 0 <= json.loads(answer.calls[0].arguments)["x"] <= 99


def test_prompts_of_several_kinds_are_answered_together(model: llm.Model) -> None:
    prompts: list[Any] = ["ab", [97, 98], SAYS]
    form = {"max_tokens": 5, "grammar": "[a-z]{5}"}
    first, second, third = model.generate_texts(prompts, **form)
    assert first == second == "".join(p.text for p in model.generate("ab", **form))
    assert third == model.chat(SAYS, **form).read()


def test_conversations_that_cannot_be_answered_are_refused(model: llm.Model) -> None:
    with pytest.raises(InputError, match="'nothing': the model's chat template has no such"):
        model.chat(SAYS, options={"nothing": 1})
    with pytest.raises(InputError, match="'heat' is none of"):
        model.chat(SAYS, heat=1)
    with pytest.raises(InputError, match="the model has no tokenizer"):
        llm.load(tiny("llama"), page=16, sequences=1).chat(SAYS)


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_chat_command_keeps_the_conversation(
    model: llm.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat_command, "load_text_model", lambda options: model)
    asked: list[Any] = []
    chat = model.chat
    monkeypatch.setattr(
        model, "chat", lambda messages, **k: asked.append((messages, k)) or chat(messages, **k)
    )
    type_lines(
        monkeypatch, "one", "", "two", "/undo", "/what", "three", "/clear", "four", "/exit", "x"
    )
    inputs = ["chat", "m", "--system", "be", "--grammar", "[a-z]{3}", "--option", "shout=true"]
    assert cli.main(inputs) == 0
    result = capsys.readouterr()
    answers = result.out.split()
    assert len(answers) == 4 and all(re.fullmatch("[a-z]{3}", answer) for answer in answers)
    system, one = {"role": "system", "content": "be"}, {"role": "user", "content": "one"}
    message = {"role": "assistant", "content": answers[0]}
    assert asked[0][0] == [system, one] and asked[0][1]["options"] == {"shout": True}
    assert asked[1][0] == [system, one, message, {"role": "user", "content": "two"}]
    assert asked[2][0] == [system, one, message, {"role": "user", "content": "three"}]
    assert asked[3][0] == [system, {"role": "user", "content": "four"}]
    assert "there is no command '/what'" in result.err


def test_interrupt_ends_an_answer_and_not_the_chat(
    model: llm.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat_command, "load_text_model", lambda options: model)
    before = signal.getsignal(signal.SIGINT)
    session = chat_command.Chat(model, None, {"grammar": "[a-z]{200}"}, {})
    monkeypatch.setattr(session, "painted", lambda kind, text: text)
    printed: list[str] = []

    def show(*texts: str, **options: object) -> None:
        printed.extend(texts)
        if texts and len(printed) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("builtins.print", show)
    assert session.take("go")
    monkeypatch.undo()
    assert "".join(printed) == session.messages[-1]["content"] and len(printed) < 10
    assert signal.getsignal(signal.SIGINT) is before
    assert len(session.messages) == 2


def test_generate_command_answers_a_file_in_its_form(
    model: llm.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(generate_command, "load_text_model", lambda options, sequences=1: model)
    (tmp_path / "prompts").write_text(f'"ab"\n\n{json.dumps(SAYS)}\n')
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    inputs = ["generate", "m", "--prompts", str(tmp_path / "prompts")]
    for form in (str(tmp_path / "schema.json"), json.dumps(schema)):
        assert cli.main([*inputs, "--schema", form]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(lines) == 2 and all(json.loads(line["text"])["x"] in (1, 2) for line in lines)
    for wrong, message in (
        (["--schema", "{"], "--schema: no JSON"),
        (["--schema", "{}", "--grammar", "a"], "give a grammar or a schema, not both"),
        (["text"], "give prompts in a file or one as an argument, not both"),
    ):
        assert cli.main([*inputs[:2], *wrong, *inputs[2:]]) == 1
        assert message in capsys.readouterr().err
    (tmp_path / "prompts").write_text("3\n")
    assert cli.main(inputs) == 1
    assert "line 1: a text or a list of messages expected" in capsys.readouterr().err
