"""What OpenAI's clients send and read, as far as a text generator has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dllmark.relation.key import Identity
from dllmark.sampling.settings import TEMPERATURE, TOKENS
from dllmark.server.detect_api import Text
from dllmark.server.generate_api import LARGEST_SEED, TokenCount
from dllmark.server.limits import shown_limit
from dllmark.server.refusal import Refusal

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False,),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "stop": ("", []),
    "logit_bias": ({},),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}
"""Options of OpenAI's that we do not have, with the values that ask for nothing."""

NO_EFFECT = {"user", "metadata", "store", "safety_identifier", "service_tier"}
"""Options that do not change what is written."""

MOST_MESSAGES = 1024
"""Messages of a conversation, and parts of a message: more than a model's length has room for."""


class StreamOptions(BaseModel):
    """What else a stream contains."""

    include_usage: bool = False


class TextRequest(BaseModel):
    """What completions and chats share."""

    model_config = ConfigDict(extra="allow")

    model: str
    n: Annotated[
        int,
        Field(
            ge=1,
            description="Texts for each prompt.",
            json_schema_extra=shown_limit("maximum", "batch"),
        ),
    ] = 1
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = TEMPERATURE
    top_p: Annotated[float | None, Field(gt=0, le=1, allow_inf_nan=False)] = None
    seed: Annotated[int | None, Field(ge=0, le=LARGEST_SEED)] = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    def refuse_unknown(self) -> None:
        """Refuse options that we would have to ignore."""
        for name, value in (self.model_extra or {}).items():
            if name not in NO_EFFECT and value is not None and value not in NEUTRAL.get(name, ()):
                raise Refusal(400, "unsupported_option", f"{name} is not supported here: leave it "
                              "out", param=name)  # fmt: skip


class CompletionRequest(TextRequest):
    """Text to continue."""

    prompt: Annotated[
        Text | Annotated[list[Text], Field(json_schema_extra=shown_limit("maxItems", "batch"))],
        Field(min_length=1),
    ]
    max_tokens: TokenCount = TOKENS


class TextPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """What somebody said."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(max_length=MOST_MESSAGES)]

    @property
    def turn(self) -> tuple[str, str]:
        """Who said it, and what, in one piece."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return role, self.content
        return role, "".join(part.text for part in self.content)


class ChatRequest(TextRequest):
    """A conversation to go on with."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(BaseModel):
    """The texts; a choice has `text`, or in a chat `message`."""

    id: str
    object: Literal["text_completion", "chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage
    watermark: Annotated[
        Identity | None, Field(description="Whose mark it is; not on a public server.")
    ] = None


class ModelCard(BaseModel):
    """A model that can be used."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "dllmark"


class ModelList(BaseModel):
    """The models of this server."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
