"""A recorded step does what an ordinary one does. On a machine with a GPU these run there."""

import pytest
import torch
from tiny import PROMPTS, tiny_model

from dllmark.detection.detector import Detector
from dllmark.marking.strategies import BIASES
from dllmark.marking.watermark import Watermark
from dllmark.sampling import denoiser
from dllmark.sampling.recorder import Recorder
from dllmark.sampling.settings import Dream, Llada, Parallel
from dllmark.sampling.texts import generate

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SAMPLERS = {
    "llada": Llada(steps=32, block_length=16, temperature=0),
    "uneven": Llada(steps=12, block_length=16, temperature=0),
    "apart": Llada(steps=12, block_length=16, temperature=0.7, apart=True),
    "random": Llada(steps=16, block_length=8, order="random", temperature=0.7),
    "remask": Llada(steps=32, block_length=16, remask=0.2, temperature=0),
    "guided": Llada(steps=16, block_length=16, cfg_scale=1.0, temperature=0),
    "prefix cache": Llada(steps=32, block_length=16, cache="prefix", temperature=0),
    "block cache": Llada(steps=32, block_length=16, cache="block", temperature=0),
    "window cache": Llada(steps=32, block_length=16, cache="window", temperature=0),
    "entropy": Dream(steps=16, order="entropy", temperature=0),
    "origin": Dream(steps=16, order="origin", temperature=0.5),
    "parallel": Parallel(threshold=0.4, block_length=8, temperature=0),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_work_is_done_once_for_every_run(device):
    total = torch.zeros((), device=device)
    recorder = Recorder(torch.Generator(device))
    for _ in range(5):
        recorder.run("add", lambda: total.add_(1))
        recorder.run("double", lambda: total.mul_(2))
    assert total.item() == 62


@GPU
def test_recorded_noise_is_new_in_every_run():
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = torch.zeros(4, device="cuda")
    recorder, seen = Recorder(generator), set()
    for _ in range(6):
        recorder.run("draw", lambda: drawn.copy_(torch.rand(4, generator=generator, device="cuda")))
        seen.add(tuple(drawn.tolist()))
    assert len(seen) == 6


@GPU
@pytest.mark.parametrize("strategy", [None, *BIASES])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_text_is_written_as_without_recording(
    small_tokenizer, small_key, monkeypatch, name, strategy
):
    model = tiny_model(small_tokenizer)
    model.transformer.cuda()
    watermark = strategy and Watermark(small_key, strategy, tokenizer=small_tokenizer)

    def texts():
        written = generate(model, PROMPTS, watermark, SAMPLERS[name], tokens=32, chat=False, seed=4)
        return [text.ids for text in written]

    recorded = texts()
    monkeypatch.setattr(Recorder, "run", lambda self, key, work: work())
    assert recorded == texts()


@GPU
@pytest.mark.parametrize("strategy", [None, *BIASES])
@pytest.mark.parametrize("name", ["llada", "uneven", "entropy", "parallel"])
def test_a_gpu_writes_what_a_cpu_writes(small_tokenizer, small_key, name, strategy):
    watermark = strategy and Watermark(small_key, strategy, tokenizer=small_tokenizer)
    texts = []
    for device in ("cpu", "cuda"):
        model = tiny_model(small_tokenizer)
        model.transformer.to(device)
        written = generate(model, PROMPTS, watermark, SAMPLERS[name], tokens=32, chat=False)
        texts.append([text.ids for text in written])
    assert texts[0] == texts[1]


@GPU
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("strategy", ["expected-bidirectional", "guided-bidirectional"])
def test_leaving_out_what_cannot_be_drawn_changes_no_text(
    small_tokenizer, small_key, monkeypatch, strategy, temperature
):
    model = tiny_model(small_tokenizer)
    model.transformer.cuda()
    watermark = Watermark(small_key, strategy, tokenizer=small_tokenizer)
    sampler = Llada(steps=16, block_length=16, temperature=temperature)
    texts = []
    for _ in range(2):
        written = generate(model, PROMPTS, watermark, sampler, tokens=32, chat=False, seed=4)
        texts.append([text.ids for text in written])
        monkeypatch.setattr(denoiser, "reachable_tokens", lambda *_: None)
    assert texts[0] == texts[1]


@GPU
def test_a_text_written_on_a_gpu_carries_the_mark(small_tokenizer, small_key):
    model = tiny_model(small_tokenizer)
    model.transformer.cuda()
    watermark = Watermark(small_key, delta=6.0, tokenizer=small_tokenizer)
    sampler = Llada(steps=128, temperature=1.0)
    [text] = generate(model, ["w1"], watermark, sampler, tokens=128, chat=False)
    assert Detector(small_key, small_tokenizer).detect(text.ids).p_value < 1e-4


@GPU
@pytest.mark.parametrize("strategy", ["joint", "adaptive-joint", "cooled-joint"])
def test_joint_is_written_as_without_recording(small_tokenizer, small_key, monkeypatch, strategy):
    model = tiny_model(small_tokenizer)
    model.transformer.cuda()
    watermark = Watermark(small_key, strategy, tokenizer=small_tokenizer)
    texts = []
    for _ in range(2):
        sampler = Llada(steps=16, block_length=16)
        written = generate(model, PROMPTS, watermark, sampler, tokens=32, chat=False, seed=4)
        texts.append([text.ids for text in written])
        monkeypatch.setattr(Recorder, "run", lambda self, key, work: work())
    assert texts[0] == texts[1]
