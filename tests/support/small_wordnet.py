"""A WordNet of a few words, in the format of the real one's files."""

from __future__ import annotations

from pathlib import Path

LICENCE = "  1 This stands for the licence, whose lines begin with two spaces.  \n"
FILES = {
    "data.noun": (
        "00000001 06 n 03 car 0 auto 0 motor_car 0 001 @ 00000002 n 0000 | four wheels  \n"
        "00000002 06 n 02 car 1 wagon 0 000 | of a train  \n"
        "00000003 06 n 02 can 0 tin 0 000 | to keep food in  \n"
        "00000004 15 n 02 Paris 0 capital 2 000 | a town  \n"
    ),
    "data.verb": "00000005 30 v 03 begin 0 start 0a commence 0 000 01 + 08 00 | set out  \n",
    "data.adj": (
        "00000006 00 a 02 big 0 large(p) 0 000 | of size  \n"
        "00000007 00 s 02 quick 0 fast 0 001 & 00000006 a 0000 | soon done  \n"
    ),
    "data.adv": "00000008 02 r 02 soon 0 shortly 0 000 | in a while  \n",
    "cntlist.rev": (
        "car%1:06:00:: 1 70\n"
        "car%1:06:01:: 2 2\n"
        "wagon%1:06:00:: 1 3\n"
        "can%1:06:00:: 1 9\n"
        "start%2:30:10:: 1 30\n"
        "big%3:00:00:: 1 50\n"
        "large%3:00:00:: 1 40\n"
        "quick%5:00:00:big:00 1 8\n"
        "soon%4:02:00:: 1 5\n"
    ),
}
SYNONYMS = {
    "car": ("auto",),  # in the meaning used 70 times, and a motor car is two words
    "wagon": ("car",),
    "start": ("begin", "commence"),  # nobody is known to use "begin"
    "big": ("large",),
    "large": ("big",),
    "quick": ("fast",),
    "soon": ("shortly",),
}
"""What a person reads in them."""


def write_wordnet(folder: Path, end: str = "\n") -> Path:
    """Write the files into a new folder, with these line ends."""
    folder.mkdir()
    for name, content in FILES.items():
        text = (LICENCE if name.startswith("data") else "") + content
        (folder / name).write_text(text, newline=end)
    return folder
