"""The audit file: a line for each marked request, in every adapter, and none for another."""

import gc
import json
import os
import stat
import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest
import torch
from cached_toys import CachedToy, fast_dllm_generate
from toys import END, MASK, PROMPT, DreamStandIn, llada_generate, small_toy

from dllmark.errors import DllmarkError, InputError
from dllmark.integrations import audit as audit_module
from dllmark.integrations.dream import DllmarkLogitsHook
from dllmark.integrations.torch import watermarked
from dllmark.integrations.transformers import DllmarkLogitsProcessor


@pytest.fixture
def audit(tmp_path):
    return tmp_path / "marks.jsonl"


@pytest.fixture
def options(small_key, small_tokenizer, audit):
    return {"key": small_key, "delta": 4.0, "tokenizer": small_tokenizer, "audit": audit}


@pytest.fixture
def dream(options):
    """A Dream to write with, and its hook."""
    model, hook = DreamStandIn(35, 37), DllmarkLogitsHook(**options, mask_id=MASK)

    def write(tokens=24, given=hook):
        sizes = {"max_new_tokens": tokens, "steps": 4}
        return model.diffusion_generate(PROMPT, **sizes, generation_logits_hook_func=given)

    return write, hook


def lines(audit):
    return [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]


def counts(audit):
    return [(line["biased"], line["tokens"]) for line in lines(audit)]


def test_a_line_says_when_with_which_key_and_how_much_and_nothing_else(dream, audit, small_key):
    write, hook = dream
    with hook:
        write()
    [line] = lines(audit)
    age = datetime.now(timezone.utc) - datetime.fromisoformat(line.pop("time"))
    assert timedelta(0) <= age < timedelta(minutes=10)
    assert line == {
        "key_id": small_key.id, "strategy": "fresh-bidirectional", "delta": 4.0,
        "biased": hook.biased, "tokens": 24,
    }  # fmt: skip
    assert small_key.secret.reveal().hex() not in audit.read_text(encoding="utf-8")


def test_each_request_has_its_own_line_whether_it_was_checked_or_not(dream, audit):
    write, hook = dream
    write(24)
    write(8)  # its first step says that the one before has ended
    assert [tokens for _, tokens in counts(audit)] == [24]
    hook.check()
    with hook:
        write(16)
    assert [tokens for _, tokens in counts(audit)] == [24, 8, 16]
    assert sum(biased for biased, _ in counts(audit)) == hook.biased


def test_the_last_request_is_written_down_when_the_hook_is_thrown_away(options, audit):
    model = DreamStandIn(35, 37)
    model.diffusion_generate(
        PROMPT, max_new_tokens=8, steps=4,
        generation_logits_hook_func=DllmarkLogitsHook(**options, mask_id=MASK),
    )  # fmt: skip
    gc.collect()
    assert [tokens for _, tokens in counts(audit)] == [8]


def test_a_request_without_a_mark_is_refused_and_leaves_no_line(dream, audit):
    write, hook = dream
    with hook:
        write()
    with pytest.raises(DllmarkError, match="nothing is marked"), hook:
        write(given=lambda step, x, logits: logits)
    assert len(lines(audit)) == 1


def test_a_request_that_failed_leaves_no_line(dream, audit):
    write, hook = dream
    with pytest.raises(ZeroDivisionError), hook:
        write()
        _ = 1 / 0
    assert lines(audit) == []


def test_a_check_inside_the_block_is_not_made_twice(dream, audit):
    write, hook = dream
    with hook:
        write()
        hook.check()
    assert len(lines(audit)) == 1


@pytest.mark.parametrize("dual", [None, False, True])
def test_any_loop_counts_each_token_once_with_a_cache_or_without(options, audit, dual):
    model = CachedToy(35, 37)
    prompts = torch.cat([PROMPT, PROMPT])
    with watermarked(model, **options) as mark:
        if dual is None:
            llada_generate(model, prompts)
        else:
            fast_dllm_generate(model, prompts, dual)
    assert counts(audit) == [(mark.biased, 2 * 64)]


def test_diffusers_counts_block_by_block(options, audit):
    diffusers = pytest.importorskip("diffusers", "0.42", reason="diffusers 0.42 needs Python 3.11")
    from dllmark.integrations.diffusers import DllmarkScheduler

    model = small_toy(options["tokenizer"])
    scheduler = DllmarkScheduler(model, **options)
    pipe = diffusers.LLaDA2Pipeline(model, scheduler)
    pipe.set_progress_bar_config(disable=True)
    settings = {
        "block_length": 8, "num_inference_steps": 8, "editing_threshold": None, "threshold": 0.9,
        "mask_token_id": MASK, "eos_token_id": END, "output_type": "seq",
    }  # fmt: skip
    # 27 and 11 tokens after a prompt of 5 fill blocks of 8.
    for tokens in (27, 11):
        pipe(input_ids=PROMPT, gen_length=tokens, **settings)
    scheduler.check()
    assert [tokens for _, tokens in counts(audit)] == [27, 11]
    assert sum(biased for biased, _ in counts(audit)) == scheduler.biased
    assert "audit" not in scheduler.config


def test_transformers_counts_each_text_of_a_batch(options, audit):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=37, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, pad_token_id=0, eos_token_id=None, bos_token_id=1,
    ))  # fmt: skip
    mark = DllmarkLogitsProcessor(**options)
    for tokens in (6, 4):
        model.generate(torch.cat([PROMPT, PROMPT]), max_new_tokens=tokens, logits_processor=[mark])
    mark.check()
    assert counts(audit) == [(12, 12), (8, 8)]
    assert {line["strategy"] for line in lines(audit)} == {"kgw"}


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_only_the_owner_reads_it_and_what_is_there_stays(dream, audit):
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600
    audit.write_text('{"kept": true}\n', encoding="utf-8")
    write, hook = dream
    with hook:
        write()
    assert lines(audit)[0] == {"kept": True}
    assert len(lines(audit)) == 2


def test_a_file_that_cannot_be_written_stops_it_before_anything_is(options, tmp_path):
    options["audit"] = tmp_path / "no folder" / "marks.jsonl"
    with pytest.raises(InputError, match=r"cannot write to .*marks\.jsonl"):
        DllmarkLogitsHook(**options, mask_id=MASK)


def test_processes_that_write_at_once_lose_nothing(audit):
    program = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
spec = spec_from_file_location("audit", sys.argv[1])  # alone: torch takes seconds to import
audit = module_from_spec(spec)
spec.loader.exec_module(audit)
named = SimpleNamespace(name="x" * 200, key_id="k")
mark = SimpleNamespace(identity=named, strategy=named, delta=1.0)
for number in range(300):
    audit.append_audit(Path(sys.argv[2]), mark, number, int(sys.argv[3]))
"""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, audit_module.__file__, str(audit), str(process)]
        )
        for process in range(3)
    ]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    found = sorted((tokens, biased) for biased, tokens in counts(audit))
    assert found == [(process, number) for process in range(3) for number in range(300)]
