"""The page in a real browser: write, replay, and what it says when something is wrong."""

import json
from dataclasses import replace

import pytest
from browsing import BROWSER, NO_BROWSER, coloured, complaint_about, open_advanced, opened

from dllmark.marking.strategies import MAX_DELTA, STRATEGIES
from dllmark.sampling.settings import TEMPERATURE, TOKENS
from dllmark.server import streams
from dllmark.server.access import Tokens
from dllmark.server.service import Service

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = sync_api.expect
expect.set_options(timeout=60_000)  # a busy machine is no failure

pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)


def write(page, tokens=12, seed=1):
    open_advanced(page)
    page.get_by_label("Tokens", exact=True).fill(str(tokens))
    page.get_by_label("Seed").fill(str(seed))
    page.get_by_role("button", name="Write").click()
    expect(page.get_by_text("Done:")).to_be_visible(timeout=120_000)


def test_both_texts_are_written_and_judged(page, server):
    write(page)
    request = {"prompt": page.get_by_label("Your prompt").input_value(), "tokens": 12, "seed": 1}
    for side, watermark in (("marked", True), ("unmarked", False)):
        answer = server.post("/v1/generate", **request, suppress_end=True, watermark=watermark)
        answer = answer.json()
        assert page.locator(f"#{side}").text_content() == answer["text"]
        detection = answer["detection"]
        shown = page.locator(f"#{side}-verdict")
        expect(shown).to_contain_text(detection["verdict"])
        counted = f"{detection['green']} of {detection['pairs']} pairs"
        expect(page.locator(f"#{side}-meter")).to_contain_text(counted)


def test_a_written_text_has_the_colours_of_its_check(page):
    write(page)
    for side in ("marked", "unmarked"):
        page.locator(f"#check-{side}").click()
        expect(page.locator("#tokens")).to_have_text(page.locator(f"#{side}").text_content())
        assert coloured(page, f"#{side}") == coloured(page, "#tokens")
    assert any(colour for _, colour in coloured(page, "#marked"))


def test_both_texts_grow_together_token_by_token(page, gate):
    gate.let(3)
    open_advanced(page)
    page.get_by_label("Tokens", exact=True).fill("12")
    page.get_by_role("button", name="Write").click()
    expect(page.get_by_text("step 3 of 6")).to_be_visible()
    for side in ("#marked", "#unmarked"):
        expect(page.locator(f"{side} .token")).to_have_count(6)
        expect(page.locator(f"{side} .mask")).to_have_count(6)
        expect(page.locator(f"{side} .new")).to_have_count(2)
        expect(page.locator(f"{side}-meter")).to_contain_text("50 % expected")
        expect(page.locator(f"{side}-verdict")).to_contain_text("by chance")
    gate.open()
    expect(page.get_by_text("Done:")).to_be_visible()
    expect(page.locator("#marked .mask")).to_have_count(0)


def test_the_slider_replays_the_order_of_generation(page):
    write(page)
    final = page.locator("#marked").text_content()
    page.get_by_role("slider", name="Step").focus()
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


def test_a_link_to_the_example_ends_a_writing(page, server, gate):
    page.get_by_role("button", name="Write").click()
    gate.wait_for_model()
    page.goto(f"{server.url}/#step=5")
    expect(page.locator("#stage-title")).to_have_text("Recorded example")
    gate.let(1)
    expect(page.get_by_text("Stopped.")).to_be_visible()
    expect(page.get_by_text("step 5 of")).to_be_visible()
    gate.open()


def test_a_second_tab_sees_its_place_in_the_queue_and_the_progress_before_it(
    browser, serve, key, gate
):
    server = serve([key])
    with opened(browser, server.url) as first, opened(browser, server.url) as second:
        for page in (first, second):
            expect(page.locator("html[data-ready]")).to_be_attached()
            open_advanced(page)
            page.get_by_label("Tokens", exact=True).fill("12")
        first.get_by_role("button", name="Write").click()
        gate.wait_for_model()
        second.get_by_role("button", name="Write").click()
        expect(second.get_by_text("Waiting: 1 text comes first.")).to_be_visible()
        bar = second.get_by_role("progressbar")
        expect(bar).to_have_js_property("value", 0)
        gate.let(3)
        expect(bar).to_have_js_property("value", 0.5)
        gate.open()
        expect(first.get_by_text("Done:")).to_be_visible()
        expect(second.get_by_text("Done:")).to_be_visible()
        expect(bar).to_be_hidden()


def test_a_link_to_written_texts_brings_their_prompt_and_settings(browser, server):
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    with opened(browser, server.url, **allowed) as page:
        expect(page.locator("html[data-ready]")).to_be_attached()
        page.get_by_label("Your prompt").fill("Why is the sky blue & wide?")
        write(page, tokens=8, seed=5)
        text = page.locator("#marked").text_content()
        page.get_by_role("button", name="Copy link").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        link = page.evaluate("() => navigator.clipboard.readText()")
    assert link.startswith(server.url + "/#prompt=")
    with opened(browser, server.url, link.removeprefix(server.url)) as page:
        expect(page.get_by_label("Your prompt")).to_have_value("Why is the sky blue & wide?")
        page.get_by_role("button", name="Write").click()
        expect(page.get_by_text("Done:")).to_be_visible()
        assert page.locator("#marked").text_content() == text


def test_a_text_is_written_and_checked_by_keyboard_alone(page):
    open_advanced(page)
    page.get_by_label("Tokens", exact=True).fill("12")
    page.get_by_label("Your prompt").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Write")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("Done:")).to_be_visible()
    page.locator("#check-marked").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).not_to_be_empty()
    text = page.get_by_label("Text to check")
    expect(text).to_be_focused()
    assert text.input_value() == page.locator("#marked").text_content()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("Nothing to check yet")).to_be_visible()


def test_a_lost_server_says_so_and_can_be_tried_again(browser, serve, key):
    with opened(browser, serve([key]).url) as page:
        expect(page.locator("html[data-ready]")).to_be_attached()
        places = {"detect": ("#check-error", "#verdict"), "generate": ("#write-error", "#marked")}
        for route, (error, answer) in places.items():
            page.route(f"**/v1/{route}", lambda route: route.abort())
            with complaint_about(page, "ERR_FAILED"):
                page.get_by_label("Text to check").fill("Hello")
                if route == "generate":
                    open_advanced(page)
                    page.get_by_label("Tokens", exact=True).fill("12")
                    page.get_by_role("button", name="Write").click()
                expect(page.locator(error)).to_contain_text("The server does not answer")
            page.unroute(f"**/v1/{route}")
            page.locator(error).get_by_role("button", name="Try again").click()
            expect(page.locator(error)).to_be_empty()
            expect(page.locator(answer)).not_to_be_empty()
        expect(page.get_by_text("Done:")).to_be_visible()


def test_a_stream_that_breaks_off_says_so_and_can_be_tried_again(page):
    start = json.dumps({"tokens": 12, "steps": 6, "seed": 1})
    page.route(
        "**/v1/generate",
        lambda route: route.fulfill(
            content_type="text/event-stream", body=f"event: start\ndata: {start}\n\n"
        ),
    )
    open_advanced(page)
    page.get_by_label("Tokens", exact=True).fill("12")
    page.get_by_role("button", name="Write").click()
    expect(page.locator("#write-error")).to_contain_text("The connection broke off")
    expect(page.locator("#marked .mask")).to_have_count(12)
    page.unroute("**/v1/generate")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("Done:")).to_be_visible()


def test_a_server_that_is_gone_at_the_start_can_be_tried_again(browser, serve, key):
    with opened(browser, serve([key], with_model=False).url) as page:
        page.route("**/v1/server", lambda route: route.abort())
        with complaint_about(page, "ERR_FAILED"):
            page.reload()
            expect(page.locator("#page-error")).to_contain_text("The server does not answer")
        page.unroute("**/v1/server")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator("html[data-ready]")).to_be_attached()
        expect(page.locator("#page-error")).to_be_empty()


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
        expect(page.locator("#write-form")).to_be_hidden()
        page.complaints.clear()
        page.reload()
        expect(page.locator("html[data-ready]")).to_be_attached()
        expect(token).to_be_hidden()
        assert "a-token" not in page.url


def test_a_public_server_shows_verdicts_only(browser, serve, key, marked):
    server = serve([key], public=True)
    with opened(browser, server.url) as page:
        page.get_by_label("Text to check").fill(marked)
        expect(page.locator("#verdict")).to_have_text("✓ watermarked, clear")
        expect(page.locator("#reason")).to_contain_text("at most 1 in 1 million times")
        expect(page.locator("#details")).to_be_hidden()
        write(page)
        expect(page.locator("#marked .token")).to_have_count(12)
        assert page.locator("#marked .green, #marked .red").count() == 0
        for hidden in ("#unmarked-side", "#marked-meter", "#delete", "#swap"):
            expect(page.locator(hidden)).to_be_hidden()
        expect(page.get_by_label("γ of the key")).to_be_hidden()
        expect(page.locator("#about")).to_have_text("Model tiny.")
        assert key.id not in page.content()


def test_the_footer_fits_the_model(browser, start, serve, key, tokenizer, model):
    embedded = Service([key], tokenizer, replace(model, name="embedded"))
    for server, words in (
        (start(embedded), "The embedded model is small"),
        (serve([key]), "tiny may say what is not true."),
        (serve([key], with_model=False), ""),
    ):
        with opened(browser, server.url) as page:
            expect(page.locator("html[data-ready]")).to_be_attached()
            assert page.locator("#about-model").text_content().startswith(words)
            assert bool(page.locator("#about-model").text_content()) == bool(words)


def test_the_api_is_described_without_other_hosts(browser, server):
    with opened(browser, server.url) as page:
        page.get_by_role("link", name="HTTP API").click()
        expect(page.get_by_role("heading", name="POST /v1/detect")).to_be_visible()
        operations = server.client.get("/openapi.json").json()["paths"]
        expect(page.locator(".operation")).to_have_count(len(operations))


def shows_with_its_delta(page, strategy):
    delta = STRATEGIES[strategy].default_delta
    expect(page.get_by_label("Strategy")).to_have_value(strategy)
    expect(page.get_by_label("δ, bias")).to_have_value(f"{delta:g}")


def test_the_page_starts_from_the_packages_defaults(browser, server):
    with opened(browser, server.url) as page:
        expect(page.get_by_label("Strategy")).to_be_hidden()
        page.get_by_text("Advanced").click()
        shows_with_its_delta(page, "cooled-joint")
        expect(page.get_by_label("Temperature")).to_have_value(f"{TEMPERATURE:g}")
        expect(page.get_by_label("Tokens", exact=True)).to_have_value(str(TOKENS))


def test_another_strategy_brings_its_own_delta(page):
    open_advanced(page)
    page.get_by_label("Strategy").select_option("kgw")
    shows_with_its_delta(page, "kgw")
    expect(page.get_by_label("δ, bias")).to_have_attribute("max", f"{MAX_DELTA:g}")


def test_comments_that_keep_a_stream_alive_are_passed_over(browser, serve, key, monkeypatch):
    monkeypatch.setattr(streams, "PING_SECONDS", 0.001)
    with opened(browser, serve([key]).url) as page:
        write(page)
