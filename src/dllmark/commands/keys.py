"""`dllmark keys`: a folder of keys, of which the current one marks and all recognise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dllmark.commands.key_options import Unlocker, new_passphrase, open_ring
from dllmark.commands.options import (
    GammaOption,
    JsonOption,
    KeyModelOption,
    NoteOption,
    PassphraseOption,
)
from dllmark.errors import KeyRingError
from dllmark.files import atomic_write, writing
from dllmark.terminal import err, out, print_json, print_line, printable

if TYPE_CHECKING:
    from dllmark.relation.keyring import KeyRing
    from dllmark.relation.ring_record import RingKey

app = typer.Typer(
    no_args_is_help=True,
    help="Keep many keys in a folder: for customers, months, models. `generate`, `detect`, `scan` "
    "and `serve` take it with --keyring.",
)

RingArgument = Annotated[Path, typer.Argument(help="The ring's folder.", show_default=False)]
KeyArgument = Annotated[str, typer.Argument(help="The key's label or id.", show_default=False)]
LabelArgument = Annotated[
    str,
    typer.Argument(help="A name for the key, such as customer-17/2026-11.", show_default=False),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="When the key starts to mark, such as 2026-12-01 (UTC). Without it, now.",
        show_default=False,
    ),
]
MOST_NAMED = 5
COLUMNS = ("label", "key", "state", "since", "texts", "gamma", "tokenizer")


@app.command()
def new(
    ring: RingArgument,
    label: LabelArgument,
    model: KeyModelOption = "embedded",
    gamma: GammaOption = 0.5,
    note: NoteOption = "",
    begins: FromOption = None,
    passphrase: PassphraseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a key in a ring. A folder that does not exist becomes a ring."""
    from dllmark.relation.key import WatermarkKey, check_gamma, check_label
    from dllmark.relation.keyring import KeyRing
    from dllmark.relation.ring_record import parse_date
    from dllmark.relation.tokenizer import load_tokenizer

    start = parse_date(begins) if begins else None
    check_gamma(gamma)
    label = check_label(label)
    key = WatermarkKey.generate(load_tokenizer(model).id, gamma=gamma, note=note)
    secured = new_passphrase() if passphrase else None
    made = KeyRing.create(ring)
    _report(made, [made.add(key, label, start, secured)], "made", as_json)
    if not as_json:
        out.print(
            "Keep a copy of the folder: without it no text its keys marked can be recognised."
        )


@app.command("list")
def list_(ring: RingArgument, as_json: JsonOption = False) -> None:
    """Show the keys of a ring: which one marks now, and which ones only recognise.

    Keys that have marked more texts than is advised, and that still mark, are named below.
    """
    from rich.cells import cell_len, set_cell_size

    from dllmark.relation.rotation import TEXTS_PER_KEY

    opened = open_ring(ring)
    current = _current(opened)
    counts = opened.texts()
    facts = [
        {**_facts(opened, key, current), "texts": counts.get(key.id, 0)}
        for key in opened.record.keys
    ]
    if as_json:
        rules = {"rotate_after": opened.record.rotate_after, "texts_per_key": TEXTS_PER_KEY}
        print_json({"ring": str(ring), **rules, "keys": facts})
        return
    rows = [COLUMNS]
    for each in facts:
        since = each["retired"] if each["state"] == "retired" else each["from"]
        tokenizer = printable(each["tokenizer"]["name"])
        numbers = f"{each['texts']:,}", f"{each['gamma']:g}"
        rows.append((each["label"], each["id"], each["state"], _day(since), *numbers, tokenizer))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (set_cell_size(*cell) for cell in zip(row, widths, strict=True))
        print_line("  ".join(cells).rstrip())
    overused = [f"{printable(key.label)} ({counts[key.id]:,})" for key in opened.overused()]
    if overused:
        more = f" and {len(overused) - MOST_NAMED:,} more" if len(overused) > MOST_NAMED else ""
        err.print(
            f"these keys still mark, and have marked more than the {TEXTS_PER_KEY} texts from "
            f"which strangers can begin to forge: {', '.join(overused[:MOST_NAMED])}{more}. Give "
            "every customer a key of their own, and change keys often"
        )


@app.command()
def derive(
    ring: RingArgument,
    labels: Annotated[
        list[str],
        typer.Argument(
            help="A name for the key, such as customer-17/2026-11. Several give several keys.",
            show_default=False,
        ),
    ],
    master: Annotated[
        str | None,
        typer.Option(
            help="The label or id of the key to derive from, if the ring has several.",
            show_default=False,
        ),
    ] = None,
    begins: FromOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Also write the key to a file of its own.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Derive a key from a master key and a label. It needs no file and no backup of its own.

    Whoever has a derived key learns nothing of its master or of other derived keys.
    """
    from dllmark.relation.ring_record import parse_date

    start = parse_date(begins) if begins else None
    if output and len(labels) > 1:
        raise KeyRingError(f"{output} holds one key: derive the others apart")
    if output and output.exists():
        raise KeyRingError(f"{output} exists and a key is never overwritten: choose another name")
    opened = open_ring(ring)
    entries = opened.derive_all(labels, master, start)
    if output:
        opened.key(entries[0]).save(output)
    _report(opened, entries, "derived", as_json)


@app.command()
def retire(ring: RingArgument, key: KeyArgument, as_json: JsonOption = False) -> None:
    """Stop marking with a key. It still recognises what it has marked."""
    opened = open_ring(ring)
    _report(opened, [opened.retire(key)], "retired", as_json)


@app.command()
def restore(ring: RingArgument, key: KeyArgument, as_json: JsonOption = False) -> None:
    """Let a retired key mark again."""
    opened = open_ring(ring)
    _report(opened, [opened.restore(key)], "restored", as_json)


@app.command("import")
def import_(
    ring: RingArgument,
    file: Annotated[Path, typer.Argument(help="A key file.", show_default=False)],
    label: Annotated[
        str, typer.Option(help="A name for the key. A derived key has one already.")
    ] = "",
    begins: FromOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a key file into a ring. A folder that does not exist becomes a ring.

    A locked key stays locked, with the same passphrase.
    """
    from dllmark.relation.key import WatermarkKey
    from dllmark.relation.keyring import KeyRing
    from dllmark.relation.ring_record import parse_date

    start = parse_date(begins) if begins else None
    unlock = Unlocker()
    key = WatermarkKey.load(file, unlock)
    if not label and not key.label:
        raise KeyRingError(f"{file} has no label of its own: give one with --label")
    opened = KeyRing.create(ring, unlock=unlock)
    _report(opened, [opened.add(key, label, start, unlock.passphrase)], "imported", as_json)


@app.command()
def policy(
    ring: RingArgument,
    rotate_after: Annotated[
        int,
        typer.Option(
            help="Texts after which a key is followed by the next one, derived from the same "
            "master as label#2, label#3 and so on; 0: never.",
            show_default=False,
            min=0,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Set after how many texts the next key takes over; dates of keys hold as well."""
    open_ring(ring).rotate_after(rotate_after or None)
    if as_json:
        print_json({"ring": str(ring), "rotate_after": rotate_after or None})
        return
    when = f"after {rotate_after:,} texts" if rotate_after else "never"
    out.print(f"keys of {ring} are rotated {when}")


@app.command()
def export(
    ring: RingArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file; else to standard output."),
    ] = None,
) -> None:
    """Write the public facts of all keys as JSON, for records and auditors: never a secret."""
    facts = {"keys": [key.to_dict() for key in open_ring(ring).record.keys]}
    content = json.dumps(facts, indent=2)
    if output is None:
        print_line(content)
        return
    with writing(output), atomic_write(output) as file:
        file.write(content.encode() + b"\n")


def _report(ring: KeyRing, entries: Sequence[RingKey], done: str, as_json: bool) -> None:
    """Say what became of some keys, a line each."""
    current = _current(ring)
    for entry in entries:
        facts = _facts(ring, entry, current)
        if as_json:
            print_json(facts)
            continue
        since = f" from {_day(facts['from'])}" if facts["state"] == "later" else ""
        of = f"key {entry.id}, gamma {entry.gamma}, tokenizer {entry.tokenizer.name}"
        line = f"{done} {entry.label} in {ring.folder}: {of}; {facts['state']}{since}"
        out.print(printable(line))


def _facts(ring: KeyRing, entry: RingKey, current: str | None) -> dict[str, Any]:
    """Return a key's public facts and its state now."""
    state = "current" if entry.id == current else entry.state(ring.now)
    return {**entry.to_dict(), "state": state}


def _current(ring: KeyRing) -> str | None:
    """Return the id of the key that marks now, if one does."""
    try:
        return ring.record.current(ring.now).id
    except KeyRingError:
        return None


def _day(date: str) -> str:
    from dllmark.relation.ring_record import parse_date, shown

    return shown(parse_date(date))
