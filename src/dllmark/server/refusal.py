"""What the server answers instead of a result: one JSON shape, which the `openai` client reads."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException


class ErrorDetail(BaseModel):
    """What was wrong and what to do about it."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """The body of every answer from 400 on."""

    error: ErrorDetail


class Refusal(HTTPException):
    """An answer from 400 on. It is Starlette's error, so it may be raised anywhere in a request.

    >>> Refusal(413, "text_too_long", "a text has at most 9 characters").status_code
    413
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the JSON that says it."""
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        detail = ErrorDetail(message=self.detail, type=kind, param=self.param, code=self.code)
        return ErrorBody(error=detail).model_dump()

    def response(self) -> JSONResponse:
        """Return it as an answer."""
        return JSONResponse(self.body(), self.status_code, self.headers)


def too_many(code: str, message: str, retry_after: int) -> Refusal:
    """Return the refusal of a request that may be sent again after some seconds."""
    return Refusal(429, code, message, headers={"Retry-After": str(retry_after)})
