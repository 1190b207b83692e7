"""A checkpoint's own chat template: a text of jinja2's, filled in a sandbox.

It comes from a hub, so it gets nothing but the messages and the names of special tokens. jinja2 is
needed with a model only, and comes with torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dllmark.errors import InputError, ModelError
from dllmark.models.checkpoint import read_json, read_text

FILE = "chat_template.jinja"
SETTINGS = "tokenizer_config.json"


@dataclass(frozen=True)
class ChatTemplate:
    """How a checkpoint writes messages.

    >>> start = "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}"
    >>> ChatTemplate(start + "{% endfor %}").conversation([("user", " Hi ")])
    '<user>Hi'
    """

    source: str
    special_tokens: dict[str, str] = field(default_factory=dict)

    def conversation(self, messages: Sequence[tuple[str, str]]) -> str:
        """Write messages, each a role and a text, up to where the reply begins."""
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def raise_exception(message: str) -> None:
            raise InputError(f"the model's chat template refuses this conversation: {message}")

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = raise_exception
        records = [{"role": role, "content": content} for role, content in messages]
        try:
            return environment.from_string(self.source).render(
                messages=records, add_generation_prompt=True, **self.special_tokens
            )
        except (TemplateError, TypeError, ValueError, OverflowError) as error:
            raise ModelError(
                f"the model's chat template cannot be filled ({error}): repair or remove it"
            ) from None


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template of a folder, from its own file or the tokenizer's settings."""
    path = folder / SETTINGS
    settings = read_json(path) if path.exists() else {}
    source = read_text(folder / FILE) if (folder / FILE).exists() else settings.get("chat_template")
    if isinstance(source, list):  # several templates with names
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelError(f"{path} has a chat_template that is not a text: repair or remove it")
    return ChatTemplate(source, _special_tokens(settings))


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Return the special tokens that the settings of a tokenizer name, like `bos_token`."""
    given = {name: value for name, value in settings.items() if name.endswith("_token")}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in given.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}
