"""A causal language model behind an OpenAI-compatible endpoint, to paraphrase with.

Usage: python benchmarks/openai_server.py MODEL [--port 9000] [--tokens 400]

MODEL is what `--judge` takes: `smollm2`, a folder, a GGUF file or a hub id. What is asked for at
the same time is written in one batch, so that a GPU has something to do. There is one kind of
request, `POST /v1/chat/completions`, without options; answers are sampled at temperature 0.7.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from dllmark.quality.perplexity import Judge, load_judge

AT_ONCE = 64
PATIENCE = 0.05
"""Seconds to wait for others who ask at the same time."""

Question = tuple[list[dict[str, str]], "Future[str]"]


class Answerer(threading.Thread):
    """Answers questions with one model, as many at once as are waiting."""

    def __init__(self, model: Judge, tokens: int) -> None:
        super().__init__(daemon=True)
        self._model, self._tokens = model, tokens
        self._waiting: queue.Queue[Question] = queue.Queue()

    def ask(self, messages: list[dict[str, str]]) -> str:
        """Return what the model answers; whoever asks waits for it."""
        answer: Future[str] = Future()
        self._waiting.put((messages, answer))
        return answer.result()

    def run(self) -> None:
        """Answer for ever."""
        while True:
            batch = self._next()
            try:
                answers = self._answers([messages for messages, _ in batch])
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result(answer)

    def _next(self) -> list[Question]:
        """Return those who wait, at least one."""
        batch = [self._waiting.get()]
        try:
            while len(batch) < AT_ONCE:
                batch.append(self._waiting.get(timeout=PATIENCE))
        except queue.Empty:
            pass
        return batch

    @torch.inference_mode()
    def _answers(self, chats: list[list[dict[str, str]]]) -> list[str]:
        """Return one answer a chat."""
        model, tokenizer = self._model.model, self._model.tokenizer
        shown = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
                 for chat in chats]  # fmt: skip
        given = tokenizer(shown, return_tensors="pt", padding=True, padding_side="left",
                          add_special_tokens=False).to(model.device)  # fmt: skip
        written = model.generate(**given, max_new_tokens=self._tokens, do_sample=True,
                                 temperature=0.7, pad_token_id=tokenizer.pad_token_id)  # fmt: skip
        new = written[:, given["input_ids"].shape[1] :]
        answers: list[str] = tokenizer.batch_decode(new, skip_special_tokens=True)
        return [answer.strip() for answer in answers]


def handler(answerer: Answerer) -> type[BaseHTTPRequestHandler]:
    """Return what handles the requests of one server."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = {"role": "assistant", "content": answerer.ask(asked["messages"])}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = json.dumps({"object": "chat.completion", "model": asked["model"],
                               "choices": [choice]}).encode()  # fmt: skip
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Print no line a request."""

    return Handler


def main() -> None:
    """Parse the command line, load the model and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--tokens", type=int, default=400, help="the most that an answer has")
    arguments = parser.parse_args()
    model = load_judge(arguments.model)
    if model.tokenizer.pad_token_id is None:
        model.tokenizer.pad_token = model.tokenizer.eos_token
    answerer = Answerer(model, arguments.tokens)
    answerer.start()
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), handler(answerer))
    print(f"serving {arguments.model} at http://127.0.0.1:{arguments.port}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
