"""`generate`: a key is enough to write text that is detected; errors are one line and no text."""

import json
import os
import re
import secrets
import string
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import checkpoints
import pytest
from screens import terminal

import dllmark.terminal
from dllmark.marking.strategies import STRATEGIES
from dllmark.marking.watermark import Watermark
from dllmark.models.loading import load_model
from dllmark.relation.key import Secret, WatermarkKey
from dllmark.relation.tokenizer import load_tokenizer
from dllmark.sampling.settings import Dream, Llada, Parallel
from dllmark.sampling.texts import generate

pytestmark = pytest.mark.usefixtures("one_core")

SCRIPT = Path(sys.executable).with_name("dllmark")
STORY = "Write a short story about a lighthouse keeper."
SHORT = ["--tokens", "16", "--steps", "4", "--block", "8"]
LETTERS = set(string.ascii_uppercase) - {"T"}  # T has merges
PAPERS = ["--strategy", "predictive-bidirectional"]
LOUD = [*PAPERS, "--delta", "8", "--temperature", "1"]


def write_legible(folder, config):
    """Write a random checkpoint that uses only letters which are always tokens by themselves.

    So its texts have the same tokens again when they are detected. One dimension of all embeddings
    is large and the head has a large weight there against all other tokens.
    """
    weights = checkpoints.write_checkpoint(folder, config)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    names = iter(weights)
    embedding, norm, head = (next(names) for _ in range(3))
    weights[embedding][:, 0] = 3.0
    weights[norm][0] = 1.0
    weights[head][:, 0] = -50.0
    weights[head][[vocabulary[letter] for letter in LETTERS], 0] = 0.0
    checkpoints.write_weights(folder, weights)


@pytest.fixture(scope="module")
def llada(tmp_path_factory):
    """The folder of a model in LLaDA's layout."""
    folder = tmp_path_factory.mktemp("llada")
    write_legible(folder, checkpoints.llada_config(max_sequence_length=192))
    return folder


@pytest.fixture(scope="module")
def dream(tmp_path_factory):
    """The folder of a model in Dream's layout, whose tokenizer is Qwen2's three files."""
    folder = tmp_path_factory.mktemp("dream")
    write_legible(folder, checkpoints.dream_config(max_position_embeddings=192))
    (folder / "tokenizer.json").unlink()
    checkpoints.write_qwen_files(folder, checkpoints.tokenizer_json(checkpoints.DREAM_SPECIALS))
    return folder


@pytest.fixture(scope="module", params=["llada2", "sdar"])
def block_causal(request, tmp_path_factory):
    """The folder of a model in which no block sees a later one."""
    folder = tmp_path_factory.mktemp(request.param)
    write_legible(folder, getattr(checkpoints, f"{request.param}_config")())
    return folder


@pytest.fixture
def own_key(llada, tmp_path):
    """The file of a fixed key for the small model."""
    key = WatermarkKey(Secret(bytes(range(16))), 0.5, load_tokenizer(str(llada)).id)
    key.save(tmp_path / "own.key")
    return tmp_path / "own.key"


@pytest.mark.parametrize(
    ("whose", "written", "read"),
    [("key_file", [], []), ("own_key", ["--json", *PAPERS], ["--jsonl"])],
    ids=["text of the embedded model", "JSONL of a small one"],
)
def test_what_is_written_is_detected_at_the_other_end_of_a_pipe(whose, written, read, request):
    key = ["--key", request.getfixturevalue(whose)]
    strong = ["--tokens", "48", "--steps", "12", "--delta", "10", "--temperature", "1"]
    strong += ["--suppress-end", "--cache", "block"]
    write = [SCRIPT, "generate", STORY, *key, *strong, *written]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a pipe shares the cores
    with (
        subprocess.Popen(write, stdout=PIPE, stderr=PIPE, env=environment) as writer,
        subprocess.Popen([SCRIPT, "detect", "-", *key, *read], stdin=writer.stdout, stdout=PIPE)
        as reader,
    ):  # fmt: skip
        verdict, errors = reader.stdout.read(), writer.stderr.read()
    assert (writer.returncode, reader.returncode) == (0, 0)
    assert all(line.startswith(b"writing text 1 of 1: ") for line in errors.splitlines())
    assert b"watermarked" in verdict


@pytest.mark.parametrize("layout", ["llada", "dream"])
def test_a_key_is_enough_to_write_and_to_detect(run, layout, tmp_path, request, monkeypatch):
    monkeypatch.setattr(secrets, "token_bytes", lambda count: bytes(range(count)))
    folder, path = request.getfixturevalue(layout), tmp_path / "k"
    run("keygen", "-o", path, "--model", folder)
    name = WatermarkKey.load(path).tokenizer.name
    assert name == str(folder if layout == "dream" else folder / "tokenizer.json")

    options = ["--key", path, "--tokens", "64", "--steps", "16", *LOUD]
    written = run("generate", "Hello", *options)
    assert (written.status, written.err, len(written.out)) == (0, "", 65)
    assert run("detect", "-", "--key", path, "--fpr", "1e-4", stdin=written.out).status == 0

    compared = run("generate", "Hello", *options, "--no-watermark")
    assert set(compared.out) <= {*LETTERS, "\n"}
    assert run("detect", "-", "--key", path, "--fpr", "1e-4", stdin=compared.out).status != 0


def test_llada2_and_sdar_write_with_their_own_sampler(run, block_causal, tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "token_bytes", lambda count: bytes(range(count)))
    run("keygen", "-o", tmp_path / "k", "--model", block_causal)
    options = ["--key", tmp_path / "k", "--tokens", "60", *LOUD]
    refused = run("generate", "A", *options)
    assert (refused.status, refused.out) == (2, "")
    assert "write with the sampler llada2" in refused.err.replace("\n", " ")
    options += ["--sampler", "llada2", "--block", "16", "--threshold", "0.5", "--suppress-end"]
    written = run("generate", "A", *options, "--edit-threshold", "0.5", "--json")
    [record] = written.records
    assert (len(record["ids"]), record["settings"]["edit_threshold"]) == (60, 0.5)
    assert run("detect", "--jsonl", "--key", tmp_path / "k", stdin=written.out).status == 0


def without_settings(record):
    return {name: value for name, value in record.items() if name != "settings"}


SAMPLERS = {  # what each has beside what all have
    "llada": (["--steps", "16", "--block", "16"], Llada(16, 16, 1.0, 0.9, apart=True)),
    "guided": (
        ["--steps", "16", "--cfg-scale", "0.5", "--no-apart"],
        Llada(16, 32, 1.0, 0.9, cfg_scale=0.5),
    ),
    "dream": (["--steps", "16", "--top-k", "20"], Dream(16, "entropy", 1.0, 0.9, top_k=20)),
    "parallel": (
        ["--block", "16", "--no-repeat-ngram", "2"],
        Parallel(block_length=16, temperature=1.0, top_p=0.9, no_repeat_ngram=2),
    ),
}


@pytest.mark.parametrize("plain", [False, True], ids=["answered", "continued"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_it_writes_what_the_library_writes_and_that_is_detected(run, own_key, llada, name, plain):
    own, sampler = SAMPLERS[name]
    options = ["--sampler", "llada" if name == "guided" else name, "--tokens", "32", *own]
    options += ["--seed", "7", "--top-p", "0.9", *(["--plain"] if plain else [])]
    written = run("generate", "A", "B C", "--key", own_key, *LOUD, *options, "--json")
    model = load_model(str(llada))
    mark = Watermark(WatermarkKey.load(own_key), "predictive-bidirectional", 8.0)
    texts = generate(model, ["A", "B C"], mark, sampler, tokens=32, chat=not plain, seed=7)
    assert [without_settings(record) for record in written.records] == [
        text.to_dict() for text in texts
    ]
    assert run("detect", "--jsonl", "--key", own_key, stdin=written.out).status == 0


def test_answering_and_continuing_are_not_the_same(run, own_key):
    one, other = (run("generate", "A", "--key", own_key, *SHORT, *way) for way in ([], ["--plain"]))
    assert one.out != other.out


def test_the_same_seed_gives_the_same_text_and_another_seed_another(run, own_key):
    options = ["--key", own_key, "--temperature", "1", *SHORT]
    texts = [run("generate", "A", *options, "--seed", seed).out for seed in (0, 0, 1)]
    assert texts[0] == texts[1] == run("generate", "A", *options).out != texts[2]


def test_the_help_names_every_strategy(run):
    shown = "".join(run("generate", "--help").out.replace("│", "").split())
    assert ",".join(STRATEGIES) in shown


def test_the_key_may_come_from_the_environment(run, own_key, monkeypatch):
    monkeypatch.setenv("DLLMARK_KEY", str(own_key))
    [record] = run("generate", "A", *SHORT, "--json").records
    assert record["watermark"] == WatermarkKey.load(own_key).identity.to_dict()


def test_without_a_key_the_model_asked_for_writes_unmarked(run, llada):
    options = ["--no-watermark", "--model", llada, *SHORT]
    record = run("generate", "A", *options, "--json").json
    assert (record["prompt"], record["watermark"]) == ("A", None)
    assert run("generate", "A", *options).out == record["text"] + "\n"


@pytest.mark.parametrize("arguments", [[], ["-"], ["--prompts", "-"], ["--prompts", "p.jsonl"]])
def test_prompts_come_from_input_or_a_file(run, own_key, monkeypatch, arguments):
    monkeypatch.chdir(own_key.parent)
    content = '{"prompt": "A", "id": 1}\n"B"\n'
    Path("p.jsonl").write_text(content)
    result = run("generate", *arguments, "--key", own_key, *SHORT, "--json", stdin=content)
    assert [record["prompt"] for record in result.records] == ["A", "B"]


def test_a_file_is_continued(run, own_key, tmp_path):
    path = tmp_path / "texts.jsonl"
    options = ["--key", own_key, *SHORT, "-o", path]
    assert run("generate", "A", *options).err == f"{path}: 1 written, 0 already there\n"
    first = path.read_bytes()
    result = run("generate", "A", "B", *options)
    assert (result.out, result.err) == ("", f"{path}: 1 written, 1 already there\n")
    report = run("generate", "A", "B", *options, "--json").json
    assert report == {"path": str(path), "texts": 0, "already there": 2}
    assert path.read_bytes().startswith(first)
    assert [json.loads(line)["prompt"] for line in path.read_text().splitlines()] == ["A", "B"]
    assert run("detect", path, "--key", own_key).status != 2


@pytest.mark.parametrize("watch", [[], ["--watch"]], ids=["bar", "watch"])
def test_what_is_shown_meanwhile_never_mixes_with_the_text(run, own_key, monkeypatch, watch):
    quiet = run("generate", "A", "B", "--key", own_key, *SHORT, *watch)
    assert (quiet.status, quiet.out.count("\n")) == (0, 2)
    assert len(quiet.err.splitlines()) == (2 if watch else 0)
    console = terminal(80, 24)
    monkeypatch.setattr(dllmark.terminal, "err", console)
    assert run("generate", "A", "B", "--key", own_key, *SHORT, *watch).out == quiet.out
    screen = console.file.getvalue()
    assert ("text 1 of 2: step 4 of 4" if watch else "texts 1 to 2 of 2") in screen
    assert ("░" in screen) == bool(watch)


def test_watching_ends_with_colours_and_the_verdict_of_each_text(run, own_key, monkeypatch):
    consoles = {name: terminal(80, 24) for name in ("out", "err")}
    for name, console in consoles.items():
        monkeypatch.setattr(dllmark.terminal, name, console)
    options = ["--tokens", "64", *LOUD, "--watch"]
    assert run("generate", "A", "B", "--key", own_key, *options).status == 0
    on_black = re.findall(r"\x1b\[30;4([12])m", consoles["out"].file.getvalue())
    assert on_black.count("2") > on_black.count("1") > 0  # more green than red
    after = consoles["err"].file.getvalue().rpartition("\x1b[2K")[2]
    assert after.count("watermarked") == 2


def test_an_unmarked_text_is_watched_with_the_key_that_is_given(run, own_key, llada):
    options = ["--no-watermark", "--watch", *SHORT]
    assert "pairs green" in run("generate", "A", "--key", own_key, *options).err
    assert run("generate", "A", "--model", llada, *options).err == ""


UNLOADED = {  # arguments that are refused before a model is loaded
    "two keys": (["A", "--key", "k", "--key", "other"], "generate works with one key, and 2 are"),
    "no key": (["A"], "give a key to mark with (--key or --keyring), or --no-watermark"),
    "no key file": (["A", "--key", "no.key"], "make one with `dllmark keygen`"),
    "unknown model": (["A", "--key", "k", "--model", "none"], "cannot load none: there is no"),
    "wrong key": (["A", "--key", "other"], "is for the tokenizer embedded, but"),
    "strategy": (["A", "--key", "k", "--strategy", "magic"], "no strategy 'magic': choose one of"),
    "delta": (["A", "--key", "k", "--delta", "-1"], "from 0 to 1000; got -1.0"),
    "large delta": (["A", "--key", "k", "--delta", "1e39"], "from 0 to 1000; got 1e+39"),
    "steps": (["A", "--key", "k", "--steps", "3"], "take at least 4 steps, not 3"),
    "no tokens": (["A", "--key", "k", "--tokens", "0"], "at least 1; got 0"),
    "temperature": (["A", "--key", "k", "--temperature", "1e-38"], "from 0.0001 to 100; got 1e-38"),
    "top-p": (["A", "--key", "k", "--top-p", "0"], "top_p is a probability, in (0, 1]; got 0.0"),
    "order": (["A", "--key", "k", "--order", "up"], "no order 'up': choose one of low_confidence"),
    "no order": (
        ["A", "--key", "k", "--sampler", "parallel", "--order", "random"],
        "does not take --order",
    ),
    "cache": (["A", "--key", "k", "--cache", "all"], "no cache 'all': choose one of none, prefix"),
    "no cache": (
        ["A", "--key", "k", "--sampler", "dream", "--cache", "prefix"],
        "does not take --cache: leave it out, or choose --sampler llada or parallel",
    ),
    "no steps": (
        ["A", "--key", "k", "--sampler", "parallel", "--steps", "9"],
        "the parallel sampler does not take --steps: leave it out, or choose --sampler llada or",
    ),
    "no top-k": (["A", "--key", "k", "--top-k", "9"], "the llada sampler does not take --top-k"),
    "top-k": (
        ["A", "--key", "k", "--sampler", "dream", "--top-k", "-1"],
        "top_k is at least 1; got -1",
    ),
    "no guidance": (
        ["A", "--key", "k", "--sampler", "dream", "--cfg-scale", "2"],
        "the dream sampler does not take --cfg-scale",
    ),
    "guidance": (["A", "--key", "k", "--cfg-scale", "-1"], "cfg_scale is from 0 to 100; got -1.0"),
    "guidance and cache": (
        ["A", "--key", "k", "--cfg-scale", "1", "--cache", "prefix"],
        "cfg_scale does not work with a cache",
    ),
    "seed": (["A", "--key", "k", "--seed", "-1"], "seed is at least 0; got -1"),
    "empty prompt": (["A", " ", "--key", "k"], "prompt 2 is empty: give at least one word"),
    "empty input": (["--key", "k"], "standard input is empty: it needs at least"),
    "no prompts": (["--prompts", "none.jsonl", "--key", "k"], "cannot read none.jsonl: No such"),
    "bad prompts": (["--prompts", "bad.jsonl", "--key", "k"], 'bad.jsonl:2: no string under "p'),
    "output": (["A", "--key", "k", "-o", "full.jsonl"], "full.jsonl:1 does not answer prompt 1"),
    "no folder": (["A", "--key", "k", "-o", "none/a"], "cannot write to none/a: make the folder"),
    "a folder": (["A", "--key", "k", "-o", "."], "cannot write to .: Is a directory"),
}
LOADED = {
    "long prompt": (["A" * 100, "--key", "k"], "takes 192 in all: shorten the prompt or write"),
    "no model": (["A", "--no-watermark", "--model", "none"], "there is no model none: give `embed"),
    "long name": (["A", "--no-watermark", "--model", "x" * 300], "cannot load xxx"),
    "half a model": (["A", "--no-watermark", "--model", "."], "there is no config.json in ."),
}


@pytest.mark.parametrize(
    ("arguments", "reason"), [*UNLOADED.values(), *LOADED.values()], ids=[*UNLOADED, *LOADED]
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    run, own_key, key, llada, monkeypatch, arguments, reason
):
    monkeypatch.chdir(own_key.parent)
    own_key.rename("k")
    key.save("other")
    Path("bad.jsonl").write_text('"good"\n{"text": "no prompt"}\n')
    Path("full.jsonl").write_text('{"prompt": "B", "text": "x"}\n{"prom')
    before = {path: path.read_bytes() for path in Path.cwd().iterdir()}
    if (arguments, reason) in UNLOADED.values():
        monkeypatch.setattr(
            "dllmark.models.loading.load_model", lambda source: pytest.fail("loaded")
        )
    if "other" in arguments:
        arguments = [*arguments, "--model", llada]
    result = run("generate", *arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("error: ") and reason in result.err
    assert {path: path.read_bytes() for path in Path.cwd().iterdir()} == before


def test_a_sampler_that_does_not_exist_is_refused(run, own_key):
    result = run("generate", "A", "--key", own_key, "--sampler", "ar")
    assert (result.status, result.out, "Traceback" in result.err) == (2, "", False)


@pytest.mark.parametrize("command", [["generate", "A", "--no-watermark"], ["demo"]])
def test_without_torch_it_is_told_how_to_install_it(command):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv = {['dllmark', *command]!r}\n"
        "from dllmark.commands.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: generating needs torch: pip install 'dllmark[torch]'\n"


def test_a_model_that_moved_can_be_pointed_to(run, own_key, llada, tmp_path):
    (tmp_path / "model").symlink_to(llada)
    key = WatermarkKey.load(own_key)
    name = str(tmp_path / "old" / "tokenizer.json")
    moved = WatermarkKey(
        key.secret, key.gamma, type(key.tokenizer)(name, key.tokenizer.fingerprint)
    )
    moved.save(tmp_path / "moved.key")
    result = run("generate", "A", "--key", tmp_path / "moved.key", *SHORT)
    assert (result.status, result.out) == (2, "")
    assert result.err.endswith("If it is elsewhere, name its folder with --model\n")
    for place in (tmp_path / "model", tmp_path / "model" / "tokenizer.json"):
        options = ["--key", tmp_path / "moved.key", "--model", place, *SHORT]
        assert run("generate", "A", *options).status == 0


def test_the_secret_is_never_printed_or_written(run, own_key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_key.rename("k")
    options = ["--key", "k", *SHORT]
    runs = [
        run("generate", "A", *options),
        run("generate", "A", *options, "--json"),
        run("generate", "A", *options, "--watch", "-o", "texts.jsonl"),
        run("generate", "A", *options, "--seed", "1", "-o", "texts.jsonl"),
    ]
    monkeypatch.setattr("dllmark.models.loading.load_model", lambda source: 1 / 0)
    refused = [arguments for arguments, _ in UNLOADED.values() if "k" in arguments]
    runs += [run("generate", *arguments) for arguments in refused]
    assert {result.status for result in runs} == {0, 2}
    secret = WatermarkKey.load("k").secret.reveal()
    shown = Path("texts.jsonl").read_text() + "".join(r.out + r.err for r in runs)
    assert secret.hex() not in shown.lower() and repr(secret) not in shown
