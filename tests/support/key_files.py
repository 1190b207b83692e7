"""Key files made by hand, and whether something shows the secret of one."""

import hashlib
import io
import json
import traceback

from rich.console import Console
from rich.traceback import Traceback

SECRET = bytes.fromhex("c5a1f0e2d3b4958677685948a9bacbdc")


def sealed(record):
    """Return the bytes of a key file with these fields and the checksum that belongs to them."""
    record = {name: value for name, value in record.items() if name != "checksum"}
    canonical = b"dllmark key file\0" + json.dumps(record, sort_keys=True).encode()
    return json.dumps(record | {"checksum": hashlib.sha256(canonical).hexdigest()[:16]}).encode()


def reveals_secret(shown, secret=SECRET):
    """Say whether a part of the secret shows: as hex, bytes, list of bytes or the hash's words."""
    shown = shown if isinstance(shown, bytes) else shown.encode()
    words = [int.from_bytes(part, "little") for part in (secret[:8], secret[8:])]
    forms = [secret.hex()[:8], repr(secret[:4])[2:-1], str(list(secret[:4]))[:-1], *map(str, words)]
    return secret[:4] in shown or any(form.encode() in shown for form in forms)


def traceback_of(error):
    """Return the most talkative tracebacks of an error, from the frame below the caller's down."""
    below = error.__traceback__.tb_next
    console = Console(file=io.StringIO(), width=400)
    limits = {"locals_max_length": None, "locals_max_string": None}
    console.print(Traceback.from_exception(type(error), error, below, show_locals=True, **limits))
    plain = traceback.TracebackException(type(error), error, below, capture_locals=True)
    return console.file.getvalue() + "".join(plain.format())
