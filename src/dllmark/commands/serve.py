"""`dllmark serve`."""

from __future__ import annotations

import logging
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dllmark.commands.key_options import all_keys, chosen_ring, current_key
from dllmark.commands.options import (
    KeyringOption,
    LabelOption,
    PayloadBitsOption,
    PayloadListOption,
)
from dllmark.commands.payload_options import payload_space
from dllmark.errors import InputError, require
from dllmark.terminal import err, working

if TYPE_CHECKING:
    import uvicorn

    from dllmark.relation.key import WatermarkKey
    from dllmark.relation.keyring import KeyRing
    from dllmark.relation.payload import Payloads
    from dllmark.server.access import Tokens
    from dllmark.server.limits import Limits
    from dllmark.server.service import Service
    from dllmark.server.upstream import Upstream


def serve(
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key",
            help="A key file. Repeat the option to recognise several keys; the first one marks. "
            "Without it, DLLMARK_KEY names the file.",
            show_default=False,
        ),
    ] = None,
    keyring: KeyringOption = None,
    label: LabelOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="`embedded`, a folder, or a model on the hub; else the first key's own. "
            "`none` only detects, and needs no torch."
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI-compatible server that writes with the mark, for example "
            "http://127.0.0.1:30000/v1: requests go there, no model is loaded. Its API key is in "
            "DLLMARK_UPSTREAM_KEY.",
            metavar="URL",
        ),
    ] = None,
    upstream_timeout: Annotated[
        float, typer.Option(help="How many seconds the upstream may be silent.")
    ] = 300.0,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. One that other machines reach needs --token-file."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A private file of bearer tokens, one on each line: a client must send one."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="With --model none or --upstream: where the key's tokenizer is now, if not where "
            "the key says."
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Answer with verdicts only: strangers could use more to remove the mark.",
        ),
    ] = False,
    fpr: Annotated[float, typer.Option(help="The false-positive rate of the verdicts.")] = 0.01,
    payload_bits: PayloadBitsOption = None,
    payloads: PayloadListOption = None,
    max_body: Annotated[int, typer.Option(help="The most bytes in a request.")] = 2_000_000,
    max_characters: Annotated[int, typer.Option(help="The most characters in a text.")] = 200_000,
    max_batch: Annotated[int, typer.Option(help="The most texts in a request.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="The most tokens to write for a prompt.")] = 512,
    max_total_tokens: Annotated[
        int, typer.Option(help="The most tokens to write for a request.")
    ] = 8192,
    max_concurrent: Annotated[int, typer.Option(help="The most requests at a time.")] = 128,
    max_per_minute: Annotated[
        int, typer.Option(help="The most requests of a client in a minute.")
    ] = 600,
    max_waiting: Annotated[
        int, typer.Option(help="The most generations that wait for their turn.")
    ] = 8,
) -> None:
    """Serve detection and generation over HTTP, with a page that shows both."""
    require("serving", "serve", "fastapi", "prometheus_client", "sse_starlette", "uvicorn")
    from dllmark.server.access import is_loopback, read_tokens
    from dllmark.server.limits import Limits

    if token_file is None and not is_loopback(host):
        raise InputError(
            f"{host} can be reached from other machines: give --token-file, or listen on 127.0.0.1"
        )
    if upstream and model not in (None, "none"):
        raise InputError("with --upstream no model is loaded here: leave out --model")
    if tokenizer and model != "none" and not upstream:
        raise InputError("--tokenizer is for --model none: a model brings its own")
    tokens = read_tokens(token_file) if token_file else None
    limits = Limits(
        max_body, max_characters, max_batch, max_tokens, max_total_tokens, max_concurrent,
        max_per_minute, max_waiting,
    )  # fmt: skip
    space = payload_space(payload_bits, payloads)
    ring = chosen_ring(key, keyring, label)
    if label and (upstream or model == "none"):
        raise InputError("--label says which keys mark, and nothing is marked here: leave it out")
    behind = None
    if upstream:
        from dllmark.server.upstream import KEY_VARIABLE, Upstream

        model = "none"
        behind = Upstream(upstream, os.environ.get(KEY_VARIABLE) or None, upstream_timeout)
    source = ring or all_keys(key)
    with _listen(host, port) as listening:  # what cannot be shows before a model is loaded
        service = _service(source, model, tokenizer, limits, fpr, public, label, behind, space)
        _run(service, tokens, listening)


def _service(
    source: list[WatermarkKey] | KeyRing,
    model: str | None,
    at: str | None,
    limits: Limits,
    fpr: float,
    public: bool,
    label: str | None,
    upstream: Upstream | None,
    payloads: Payloads,
) -> Service:
    """Load the model, or if it is `none` the tokenizer alone, from `at` if given."""
    from dllmark.relation.tokenizer import load_tokenizer, source_of_model
    from dllmark.server.service import Service, check_tokenizers

    keys = source if isinstance(source, list) else source.all_keys()
    if not keys:
        raise InputError("the ring is empty: make a key with `dllmark keys new`")
    if model == "none":
        tokenizer = load_tokenizer(at or keys[0].tokenizer.name)
        return Service(source, tokenizer, None, limits, fpr, public, None, upstream, payloads)
    with working("loading torch"):
        import torch

        from dllmark.models.loading import load_model, read_family

    # One core is left to detection: it must answer while a text is written.
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))
    marking = keys[0] if isinstance(source, list) else current_key(source, label, model)
    name = model or marking.tokenizer.name
    family = read_family(source_of_model(name))
    if family.fixed.get("block_causal"):
        raise InputError(
            f"this server writes with LLaDA's sampler, and {name} is a {family.name} model: "
            "write with `dllmark generate --sampler llada2`; --model none detects"
        )
    check_tokenizers(keys if isinstance(source, list) else [marking], load_tokenizer(name))
    with working(f"loading {name}"):
        loaded = load_model(source_of_model(name))
    return Service(source, loaded.tokenizer, loaded, limits, fpr, public, label, payloads=payloads)


def _run(service: Service, tokens: Tokens | None, listening: socket.socket) -> None:
    """Serve until a signal; what runs then is finished first, and a second Ctrl-C ends that."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # uvicorn ends by raising the signal it got once more: to have finished is no failure.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)
    name, bound = listening.getsockname()[:2]
    shown = f"[{name}]" if ":" in name else name
    err.print(f"serving on http://{shown}:{bound} (Ctrl-C ends it)")
    make_server(service, tokens).run(sockets=[listening])


def make_server(service: Service, tokens: Tokens | None) -> uvicorn.Server:
    """Return the server of a service, which is to be given a socket."""
    import uvicorn
    from sse_starlette.sse import AppStatus

    from dllmark.server.app import make_app

    AppStatus.enable_automatic_graceful_drain = False  # it would cut texts short at a signal
    config = uvicorn.Config(
        make_app(service, tokens),
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,  # it would log query strings
        proxy_headers=False,  # anyone can send them
        server_header=False,
    )
    return uvicorn.Server(config)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, or say why there is none."""
    try:
        [*_, (family, _, _, _, address)] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listening = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}, port {port} ({error.strerror}): choose another with --host "
            "or --port"
        ) from None
    # An answer goes out in two pieces; without this, the second may wait 40 ms for the client.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
