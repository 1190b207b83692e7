"""The page in a real browser: write, replay, paste, edit, and what it says when something is wrong.

With DLLMARK_SCREENSHOTS=1 the last test writes docs/page/*.png, with the embedded model.
"""

import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import Gate, serving

from dllmark import Detector, load_model
from dllmark.marking.strategies import DEFAULT, MAX_DELTA, STRATEGIES
from dllmark.sampling.settings import TEMPERATURE, TOKENS
from dllmark.server import streams
from dllmark.server.access import Tokens
from dllmark.server.limits import Limits
from dllmark.server.service import Service
from dllmark.server.upstream import Upstream

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = sync_api.expect
expect.set_options(timeout=60_000)  # a busy machine is no failure

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
SCREENSHOTS = Path(__file__).parents[2] / "docs" / "page"

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no browser here: apt-get install chromium, or put one on the PATH"
)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER)
        yield browser
        browser.close()


@contextmanager
def opened(browser, url, **options):
    """A page; whatever it complains about, or asks another host for, fails the test."""
    page = browser.new_page(**options)
    page.set_default_timeout(60_000)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: _only(url, request.url, page.complaints))
    page.goto(url + "/")
    yield page
    page.close()
    assert page.complaints == []


def _only(url, requested, complaints):
    if not requested.startswith(url):
        complaints.append(f"requests {requested}")


@pytest.fixture
def page(browser, server):
    with opened(browser, server.url) as page:
        expect(page.locator("html[data-ready]")).to_be_attached()  # fields cannot be focused before
        yield page


def write(page, tokens=12, seed=1):
    page.get_by_label("Tokens", exact=True).fill(str(tokens))
    page.get_by_label("Seed").fill(str(seed))
    page.get_by_role("button", name="Write").click()
    expect(page.get_by_text("Done:")).to_be_visible(timeout=120_000)


def test_both_texts_are_written_and_judged(page, server):
    write(page)
    request = {"prompt": page.get_by_label("Prompt").input_value(), "tokens": 12, "seed": 1}
    for side, watermark in (("marked", True), ("unmarked", False)):
        answer = server.post("/v1/generate", **request, suppress_end=True, watermark=watermark)
        answer = answer.json()
        assert page.locator(f"#{side}").text_content() == answer["text"]
        detection = answer["detection"]
        shown = page.locator(f"#{side}-verdict")
        expect(shown).to_contain_text(detection["verdict"])
        expect(shown).to_contain_text(f"{detection['green']} of {detection['pairs']} pairs green")


def coloured(page, place):
    """The tokens shown in a place, each with its colour."""
    script = (
        "spans => spans.map(span => [span.textContent, span.className.match(/green|red/)?.[0]])"
    )
    return page.locator(f"{place} .token").evaluate_all(script)


def test_a_written_text_has_the_colours_of_its_check(page):
    write(page)
    for side in ("marked", "unmarked"):
        page.locator(f"#check-{side}").click()
        expect(page.locator("#tokens")).to_have_text(page.locator(f"#{side}").text_content())
        assert coloured(page, f"#{side}") == coloured(page, "#tokens")
    assert any(colour for _, colour in coloured(page, "#marked"))


def test_tokens_appear_where_and_when_they_are_committed(page, gate):
    gate.let(3)
    page.get_by_label("Tokens", exact=True).fill("12")
    page.get_by_role("button", name="Write").click()
    expect(page.get_by_text("step 3 of 6")).to_be_visible()
    expect(page.locator("#marked .token")).to_have_count(6)
    expect(page.locator("#marked .mask")).to_have_count(6)
    expect(page.locator("#marked .new")).to_have_count(2)
    gate.open()
    expect(page.get_by_text("Done:")).to_be_visible()
    expect(page.locator("#marked .mask")).to_have_count(0)


def test_the_slider_replays_the_order_of_generation(page):
    write(page)
    final = page.locator("#marked").text_content()
    page.get_by_label("Replay").focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("step 0 of 6")).to_be_visible()
    expect(page.locator("#marked .mask")).to_have_count(12)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#marked .token")).to_have_count(2)
    expect(page.locator("#unmarked .token")).to_have_count(2)
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_text("step 6 of 6")).to_be_visible()
    assert page.locator("#marked").text_content() == final


def test_a_writing_can_be_stopped(page, gate):
    page.get_by_role("button", name="Write").click()
    gate.wait_for_model()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    gate.open()


def test_a_pasted_text_is_judged_and_coloured(page, key, tokenizer, marked):
    text = marked + " <b>naïve</b> 🙂 \n"
    page.get_by_label("Text to check").fill(text)
    expect(page.locator("#verdict")).to_have_text("✓ watermarked")
    detector = Detector(key, tokenizer)
    detection = detector.detect(text)
    expect(page.locator("#figures")).to_contain_text(f"{detection.green} of {detection.pairs}")
    expect(page.locator("#figures")).to_contain_text(f"{detection.z:.2f}")
    assert page.locator("#tokens").text_content() == text
    colours = [token.mark for token in detector.explain(text)]
    expect(page.locator("#tokens .green")).to_have_count(colours.count("green"))
    expect(page.locator("#tokens .red")).to_have_count(colours.count("red"))
    [span] = detector.spans(text)
    expect(page.locator("#spans li")).to_contain_text(f"{span.green} of {span.pairs} pairs green")
    title = page.locator("#curve svg title").text_content()
    assert f"{detection.z:.2f} after {detection.pairs} pairs" in title
    assert page.locator("#tokens b").count() == 0


def z_shown(page):
    return float(re.search(r"z(-?[\d.]+)", page.locator("#figures").text_content())[1])


@pytest.mark.parametrize("button", ["Delete 10 %", "Swap 10 %"])
def test_an_edit_moves_the_score(page, marked, button):
    page.get_by_label("Text to check").fill(marked)
    expect(page.locator("#verdict")).to_have_text("✓ watermarked")
    before, words = z_shown(page), marked.split()
    page.get_by_role("button", name=button).click()
    expect(page.locator("#figures")).to_contain_text(f"before {before:.2f}")
    assert z_shown(page) < before
    after = page.get_by_label("Text to check").input_value().split()
    if button.startswith("Delete"):
        assert len(after) == 0.9 * len(words)
    else:
        moved = sum(old != new for old, new in zip(words, after, strict=True))
        assert sorted(after) == sorted(words)
        assert 0 < moved <= 0.1 * len(words)


def test_a_written_text_can_be_checked_by_keyboard_alone(page):
    page.get_by_label("Prompt").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Strategy")).to_be_focused()
    page.get_by_label("Tokens", exact=True).fill("12")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Done:")).to_be_visible()
    page.locator("#check-marked").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).not_to_be_empty()
    text = page.get_by_label("Text to check")
    expect(text).to_be_focused()
    assert text.input_value() == page.locator("#marked").text_content()


def test_every_field_has_a_name_for_screen_readers(page):
    for field in page.locator("input, select, textarea, button").all():
        if field.is_visible():
            name = field.evaluate("field => field.labels?.[0]?.textContent ?? field.textContent")
            assert name.strip(), field.get_attribute("id")
    assert page.locator("[role=status]").count() == 2
    assert page.locator("html").get_attribute("lang") == "en"


@contextmanager
def complaint_about(page, what):
    """The browser itself logs every answer from 400 on."""
    before = len(page.complaints)
    yield
    assert any(what in complaint for complaint in page.complaints[before:])
    del page.complaints[before:]


def test_errors_are_shown_as_the_server_words_them(browser, serve, key):
    server = serve([key], limits=Limits(characters=60))
    with opened(browser, server.url) as page:
        error = page.locator("#check-error")
        with complaint_about(page, "413"):
            page.get_by_label("Text to check").fill("word " * 13)
            expect(error).to_have_text("a text has 65 characters, but 60 are the most: cut it")
        page.get_by_label("Text to check").fill("word " * 12)
        expect(error).to_be_empty()
        expect(page.locator("#verdict")).not_to_be_empty()
        with complaint_about(page, "400"):
            page.get_by_label("Prompt").fill("  ")
            page.get_by_role("button", name="Write").click()
            expect(page.locator("#write-error")).to_contain_text("prompt 1 is empty")


def test_a_text_typed_before_the_server_has_answered_is_checked_too(browser, serve, key):
    server = serve([key], with_model=False)
    with opened(browser, server.url) as page:
        held = []
        page.route("**/v1/server", lambda route: held.append(route))
        with page.expect_request("**/v1/server"):
            page.reload()
        page.get_by_label("Text to check").fill("Hello there, said the lighthouse keeper.")
        expect(page.locator("#verdict")).to_be_empty()
        held[0].continue_()
        expect(page.locator("#verdict")).not_to_be_empty()


def test_before_another_server_the_page_checks_and_says_who_writes(browser, serve, key):
    server = serve([key], with_model=False, upstream=Upstream("http://127.0.0.1:9/v1"))
    with opened(browser, server.url) as page:
        expect(page.locator("#about")).to_contain_text("written by http://127.0.0.1:9/v1")
        expect(page.locator("#write")).to_be_hidden()
        page.get_by_label("Text to check").fill("Hello there, said the lighthouse keeper.")
        expect(page.locator("#verdict")).not_to_be_empty()


def test_a_server_that_is_gone_is_told(browser, serve, key):
    server = serve([key], with_model=False)
    with opened(browser, server.url) as page:
        expect(page.locator("#about")).to_contain_text(key.id)
        page.route("**/v1/detect", lambda route: route.abort())
        with complaint_about(page, "ERR_FAILED"):
            page.get_by_label("Text to check").fill("Hello")
            expect(page.locator("#check-error")).to_contain_text("The server does not answer")


def test_a_token_is_asked_for_where_the_server_wants_one(browser, serve, key):
    server = serve([key], with_model=False, tokens=Tokens(["a-token-for-the-page"]))
    with opened(browser, server.url) as page:
        token = page.get_by_label("This server asks for an access token")
        expect(token).to_be_focused()
        with complaint_about(page, "401"):
            token.fill("wrong")
            page.keyboard.press("Enter")
            expect(page.get_by_text("The server does not know this token.")).to_be_visible()
        token.fill("a-token-for-the-page")
        page.keyboard.press("Enter")
        expect(page.locator("#about")).to_contain_text(key.id)
        expect(page.locator("#write")).to_be_hidden()
        page.complaints.clear()


def test_a_public_server_shows_verdicts_only(browser, serve, key, marked):
    server = serve([key], public=True)
    with opened(browser, server.url) as page:
        page.get_by_label("Text to check").fill(marked)
        expect(page.locator("#verdict")).to_have_text("✓ watermarked")
        expect(page.locator("#figures")).to_have_text("pat most 0.000001")
        expect(page.locator("#details")).to_be_hidden()
        write(page)
        expect(page.locator("#marked .token")).to_have_count(12)
        assert page.locator("#marked .green, #marked .red").count() == 0
        expect(page.locator("#unmarked")).to_be_hidden()
        expect(page.get_by_role("button", name="10 %")).to_have_count(0)
        expect(page.get_by_label("γ of the key")).to_be_hidden()
        expect(page.locator("#about")).to_have_text("Model tiny.")
        assert key.id not in page.content()


def test_the_api_is_described_without_other_hosts(browser, server):
    with opened(browser, server.url) as page:
        page.get_by_role("link", name="The HTTP API").click()
        expect(page.get_by_role("heading", name="POST /v1/detect")).to_be_visible()
        operations = server.client.get("/openapi.json").json()["paths"]
        expect(page.locator(".operation")).to_have_count(len(operations))


def test_the_page_starts_from_the_packages_defaults(browser, server):
    with opened(browser, server.url) as page:
        expect(page.get_by_label("Strategy")).to_have_value(DEFAULT.name)
        expect(page.get_by_label("δ, bias")).to_have_value(f"{DEFAULT.default_delta:g}")
        expect(page.get_by_label("Temperature")).to_have_value(f"{TEMPERATURE:g}")
        expect(page.get_by_label("Tokens", exact=True)).to_have_value(str(TOKENS))


def test_another_strategy_brings_its_own_delta(page):
    page.get_by_label("Strategy").select_option("kgw")
    expect(page.get_by_label("δ, bias")).to_have_value(f"{STRATEGIES['kgw'].default_delta:g}")
    expect(page.get_by_label("δ, bias")).to_have_attribute("max", f"{MAX_DELTA:g}")


def test_comments_that_keep_a_stream_alive_are_passed_over(browser, serve, key, monkeypatch):
    monkeypatch.setattr(streams, "PING_SECONDS", 0.001)
    with opened(browser, serve([key]).url) as page:
        write(page)


def test_the_page_fits_a_phone(browser, server, marked):
    with opened(browser, server.url, viewport={"width": 360, "height": 700}) as page:
        page.get_by_label("Text to check").fill(marked)
        expect(page.locator("#curve svg")).to_be_visible()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        for button in page.get_by_role("button").all():
            assert button.bounding_box()["height"] >= 40


@pytest.mark.skipif(not os.environ.get("DLLMARK_SCREENSHOTS"), reason="set DLLMARK_SCREENSHOTS=1")
def test_screenshots(browser, key, tokenizer):
    wide = {"viewport": {"width": 1400, "height": 1000}}
    phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
    looks = {"light": wide, "dark": {**wide, "color_scheme": "dark"}, "phone": phone}
    model = load_model("embedded")
    gate = Gate(model)
    with serving(Service([key], tokenizer, model)) as server:
        gate.let(30)
        for name, options in looks.items():
            with opened(browser, server.url, **options) as page:
                page.get_by_label("Seed").fill("1")
                page.get_by_role("button", name="Write").click()
                if name == "light":
                    expect(page.get_by_text("step 30 of 64")).to_be_visible()
                    page.screenshot(path=SCREENSHOTS / "writing.png")
                    gate.open()
                expect(page.get_by_text("Done:")).to_be_visible(timeout=120_000)
                page.locator("#check-marked").click()
                expect(page.locator("#curve svg")).to_be_visible()
                page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=name != "phone")
