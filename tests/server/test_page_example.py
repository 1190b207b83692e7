"""The recorded example: it plays without a model or a key, on this server and on any web host."""

import json
from pathlib import Path

import pytest
from browsing import BROWSER, NO_BROWSER, coloured, opened

from dllmark.relation.key import Secret, WatermarkKey

ROOT = Path(__file__).parents[2]

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = sync_api.expect
expect.set_options(timeout=60_000)  # a busy machine is no failure

needs_browser = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
CLIPBOARD = {"permissions": ["clipboard-read", "clipboard-write"]}


@pytest.fixture(scope="module")
def make_page():
    """The script that records, pictures and exports the page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        import make_page

        yield make_page


@pytest.fixture(scope="module")
def example(make_page):
    """The recording in the package."""
    return json.loads(make_page.EXAMPLE.read_text(encoding="utf-8"))


@pytest.fixture
def host(make_page, tmp_path):
    """The exported page on a web host that knows nothing of dllmark."""
    make_page.export(tmp_path / "site", "https://example.org/demo")
    with make_page.hosted(tmp_path / "site") as url:
        yield url.rstrip("/")


def texts_of(recording):
    """Yield for each of the two texts its steps and its end."""
    events = [(event["name"], event["data"]) for event in recording["events"]]
    for of in (lambda data: data, lambda data: data["unmarked"]):
        steps = [of(data) for name, data in events if name == "step"]
        yield steps, of(events[-1][1])


def test_the_recording_holds_both_texts_from_the_first_mask_to_the_verdict(example):
    start = example["events"][0]["data"]
    assert [event["name"] for event in example["events"]] == [
        "start", *["step"] * start["steps"], "end"
    ]  # fmt: skip
    for steps, end in texts_of(example):
        shown = {one["position"]: one["text"] for step in steps for one in step["revealed"]}
        assert len(shown) == start["tokens"]
        together = "".join(shown[at] for at in range(start["tokens"]))
        assert together == end["text"] or "\ufffd" in together  # a character of several tokens
        assert steps[0]["detection"]["pairs"] < steps[-1]["detection"]["pairs"]
    verdicts = [end["detection"]["verdict"] for _, end in texts_of(example)]
    assert verdicts == ["watermarked", "not detected"]


def names_in(value):
    """All names of fields, at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(names_in, value.values()))
    return set().union(*map(names_in, value)) if isinstance(value, list) else set()


def test_a_recording_holds_nothing_that_tells_of_a_key(make_page, model, example):
    """Neither that in the package nor one that is made now, which has the same fields."""
    made = make_page.record(model, "Hello", tokens=16)
    key = WatermarkKey(Secret(make_page.SECRET), 0.5, model.tokenizer.id)
    told = {"detection", "verdict", "p_value", "pairs", "green", "gamma", "tokens", "strength"}
    told |= {"name", "data", "events", "prompt", "model", "steps", "number", "revealed", "marks"}
    told |= {"position", "text", "mark", "end", "unmarked"}
    for recording in (made, example):
        assert names_in(recording) <= told
        written = json.dumps(recording)
        assert key.id not in written
        assert make_page.SECRET.decode() not in written
        assert make_page.SECRET.hex() not in written
    assert [len(steps) for steps, _ in texts_of(made)] == [8, 8]


@needs_browser
def test_the_page_opens_with_the_example_playing(browser, server, example):
    start = example["events"][0]["data"]
    total = start["steps"]
    with opened(browser, server.url, paused=True) as page:
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        expect(page.locator("#stage-prompt")).to_contain_text(example["prompt"])
        expect(page.locator("#marked .mask")).to_have_count(start["tokens"])
        expect(page.get_by_text(f"step 0 of {total}")).to_be_visible()
        page.clock.run_for(60_000)
        expect(page.get_by_text(f"step {total} of {total}")).to_be_visible()
        expect(page.get_by_role("button", name="Play")).to_be_visible()
        for side, (_, end) in zip(("marked", "unmarked"), texts_of(example), strict=True):
            found = end["detection"]
            share = f"{round(100 * found['green'] / found['pairs'])} %"
            assert page.locator(f"#{side}").text_content() == end["text"]
            expect(page.locator(f"#{side}-meter strong")).to_have_text(share)
            expect(page.locator(f"#{side}-meter")).to_contain_text("50 % expected")
            expect(page.locator(f"#{side}-verdict")).to_contain_text(found["verdict"])
            colours = [colour for _, colour in coloured(page, f"#{side}")]
            assert colours.count("green") == found["green"]
            assert colours.count("red") == found["pairs"] - found["green"]


@needs_browser
def test_tokens_are_shaded_by_when_they_came(browser, server, example):
    with opened(browser, server.url, "/#step=20") as page:
        expect(page.get_by_text("step 20 of")).to_be_visible()
        shades = page.locator("#marked .token").evaluate_all(
            "tokens => tokens.map(one => Number(one.style.getPropertyValue('--when')))"
        )
    [(steps, _), _] = texts_of(example)
    came = {one["position"]: at for at, step in enumerate(steps[:20]) for one in step["revealed"]}
    last = len(steps) - 1
    assert shades == [round(came[position] / last, 2) for position in sorted(came)]


@needs_browser
def test_the_verdict_grows_more_certain_with_the_steps(browser, server, example):
    [(steps, _), _] = texts_of(example)
    least = min(step["detection"]["p_value"] for step in steps)
    assert least < 1e-3 < steps[3]["detection"]["p_value"]
    with opened(browser, server.url, "/#step=4") as page:
        verdict = page.locator("#marked-verdict")
        expect(verdict).to_contain_text("by chance")
        before = verdict.text_content()
        page.get_by_role("slider", name="Step").press("End")
        expect(verdict).to_contain_text("✓ watermarked")
        assert verdict.text_content() != before


@needs_browser
def test_who_wants_less_motion_sees_the_end_and_may_press_play(browser, server, example):
    total = example["events"][0]["data"]["steps"]
    with opened(browser, server.url, paused=True, reduced_motion="reduce") as page:
        expect(page.get_by_text(f"step {total} of {total}")).to_be_visible()
        expect(page.locator("#marked .mask")).to_have_count(0)
        page.get_by_role("button", name="Play").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        expect(page.locator("#marked .mask")).not_to_have_count(0)


@needs_browser
def test_a_link_leads_to_the_step_at_which_it_was_copied(browser, host, example):
    total = example["events"][0]["data"]["steps"]
    with opened(browser, host, "/#step=10", **CLIPBOARD) as page:
        expect(page.get_by_text("step 10 of")).to_be_visible()
        page.get_by_role("slider", name="Step").press("ArrowRight")
        page.get_by_role("button", name="Copy link").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("() => navigator.clipboard.readText()") == f"{host}/#step=11"
        page.goto(f"{host}/#step=5")  # pasted into the same tab, it loads nothing anew
        expect(page.get_by_text("step 5 of")).to_be_visible()
    for wrong, shown in (("-3", 0), ("nonsense", 0), ("2.4", 2), ("1e9", total)):
        with opened(browser, host, f"/#step={wrong}") as page:
            expect(page.get_by_text(f"step {shown} of {total}")).to_be_visible()


@needs_browser
def test_the_exported_page_needs_no_server_and_says_how_to_get_one(browser, host):
    with opened(browser, host, **CLIPBOARD) as page:
        expect(page.locator("#marked .token").first).to_be_visible()
        for part in ("#write-form", "#check", "#check-marked", "nav a", "#token-form"):
            expect(page.locator(part).first).to_be_hidden()
        page.get_by_role("button", name="Copy commands").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert "dllmark serve" in page.evaluate("() => navigator.clipboard.readText()")
        page.get_by_role("slider", name="Step").press("End")
        page.locator("#copy-marked").click()
        expect(page.locator("#copy-marked")).to_have_text("Copied")
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert copied == page.locator("#marked").text_content()


def test_the_exported_page_can_be_shared(make_page, tmp_path):
    make_page.export(tmp_path / "site", "https://example.org/demo")
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for tag in ("og:title", "og:description", "og:url", "og:image", "twitter:card"):
        assert tag in page
    assert 'content="https://example.org/demo/share.png"' in page
    assert "default-src 'none'" in page
    share = (tmp_path / "site" / "share.png").read_bytes()
    width, height = (int.from_bytes(share[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1200, 630)
    assert (tmp_path / "site" / "loop.webp").read_bytes()[8:12] == b"WEBP"
    assert (tmp_path / "site" / "loop.webp").stat().st_size < 1_000_000
