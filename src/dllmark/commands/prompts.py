"""What to write about: prompts from arguments, from a file, or from standard input."""

from __future__ import annotations

from dllmark.errors import InputError
from dllmark.files import check_unicode, input_name, parse_record, read_input


def gather_prompts(arguments: list[str], path: str | None) -> list[str]:
    """Return the prompts of the arguments, then those of the file; - or neither is the input."""
    sources = [path] if path else []
    if "-" in arguments or not (arguments or path):
        sources.append("-")
    prompts = [argument for argument in arguments if argument != "-"]
    for source in dict.fromkeys(sources):
        prompts += read_prompts(source)
    for number, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise InputError(f"prompt {number} is empty: give at least one word to start from")
        check_unicode(prompt, f"prompt {number}")
    return prompts


def read_prompts(path: str) -> list[str]:
    """Return the prompts of a JSONL file: objects with "prompt", or just strings.

    A file of another name, or standard input, is one prompt unless it starts with { or ".
    """
    text = read_input(path)
    if not path.endswith(".jsonl") and not text.lstrip().startswith(("{", '"')):
        return [text.strip()]
    return [
        parse_record(line.encode(), f"{input_name(path)}:{number}", "prompt")["prompt"]
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
