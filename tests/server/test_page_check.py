"""Checking a text in a real browser: paste, drop, edit, and every sentence about a verdict."""

import re

import pytest
from browsing import BROWSER, NO_BROWSER, complaint_about, opened
from samples import marked_text

from dllmark import Detector
from dllmark.server.limits import Limits
from dllmark.server.upstream import Upstream

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
expect = sync_api.expect
expect.set_options(timeout=60_000)  # a busy machine is no failure

pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)


def test_a_pasted_text_is_judged_explained_and_coloured(page, key, tokenizer, marked):
    text = marked + " <b>naïve</b> 🙂 \n"
    page.get_by_label("Text to check").fill(text)
    detector = Detector(key, tokenizer)
    detection = detector.detect(text)
    expect(page.locator("#verdict")).to_have_text(f"✓ watermarked, {detection.strength}")
    counted = f"{detection.green} of {detection.pairs} pairs"
    expect(page.locator("#check-meter")).to_contain_text(counted)
    expect(page.locator("#reason")).to_contain_text(f"{counted} are green")
    expect(page.locator("#next")).to_contain_text("It does not say who wrote")
    expect(page.locator("#figures")).to_contain_text(f"{detection.z:.2f}")
    assert page.locator("#tokens").text_content() == text
    colours = [token.mark for token in detector.explain(text)]
    expect(page.locator("#tokens .green")).to_have_count(colours.count("green"))
    expect(page.locator("#tokens .red")).to_have_count(colours.count("red"))
    title = page.locator("#curve svg title").text_content()
    assert f"{detection.z:.2f} after {detection.pairs} pairs" in title
    assert page.locator("#tokens b").count() == 0


def test_a_stretch_that_is_pressed_is_pointed_out_in_the_text(page, key, tokenizer, marked, plain):
    text = plain + marked + plain
    page.get_by_label("Text to check").fill(text)
    [span] = Detector(key, tokenizer).spans(text)
    line = page.locator("#spans li")
    expect(line).to_contain_text(f"{span.green} of {span.pairs} pairs green")
    line.get_by_role("button").click()
    expect(line.get_by_role("button")).to_have_attribute("aria-pressed", "true")
    pointed = page.locator("#tokens .pointed").all_text_contents()
    assert " ".join(pointed).split() == text[span.start : span.end].split()
    expect(page.locator("#tokens .pointed").first).to_be_in_viewport()


SENTENCES = {
    "an empty text": ("", "Nothing to check yet"),
    "a blank text": ("  \n ", "Nothing to check yet"),
    "one word": ("lighthouse", "too few to tell"),
    "a short text": ("Hello there.", "too few to tell"),
}


@pytest.mark.parametrize(("text", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_what_cannot_be_judged_is_told_in_a_sentence(page, text, sentence):
    page.get_by_label("Text to check").fill(text)
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.locator("#reason")).to_contain_text(sentence)
    if text.strip():
        expect(page.locator("#verdict")).to_contain_text("too short")
        expect(page.locator("#next")).to_contain_text("paste more")


def test_a_marked_text_without_stretches_says_why_there_are_none(page, key, tokenizer):
    text = marked_text(key, tokenizer, 90, share=0.8)
    assert Detector(key, tokenizer).spans(text) == []
    page.get_by_label("Text to check").fill(text)
    expect(page.locator("#verdict")).to_contain_text("watermarked")
    expect(page.get_by_text("No single stretch stands out")).to_be_visible()
    page.get_by_label("Text to check").fill("word " * 60)
    expect(page.get_by_text("No stretch of it is greener")).to_be_visible()


def drop(page, name, content):
    """Drop a file on the section where texts are checked."""
    script = """([name, bytes]) => {
        const carried = new DataTransfer();
        carried.items.add(new File([new Uint8Array(bytes)], name));
        return carried;
    }"""
    carried = page.evaluate_handle(script, [name, list(content)])
    page.dispatch_event("#check", "drop", {"dataTransfer": carried})


def test_a_file_is_checked_that_is_dropped_or_opened(browser, serve, key, marked):
    server = serve([key], with_model=False, limits=Limits(body=len(marked) + 100))
    with opened(browser, server.url) as page:
        expect(page.locator("html[data-ready]")).to_be_attached()
        drop(page, "a.txt", marked.encode())
        expect(page.locator("#verdict")).to_contain_text("watermarked")
        expect(page.get_by_label("Text to check")).to_have_value(marked)
        content = b"Just two short lines.\n"
        page.locator("#file").set_input_files(
            {"name": "b.md", "mimeType": "text/markdown", "buffer": content}
        )
        expect(page.locator("#verdict")).to_contain_text("too short")
        drop(page, "c.docx", b"\xff\xfe\x00")
        expect(page.locator("#check-error")).to_contain_text("c.docx is no text in UTF-8")
        drop(page, "d.txt", marked.encode() * 2)
        expect(page.locator("#check-error")).to_contain_text("are the most here: cut it")


def z_shown(page):
    return float(re.search(r"z(-?[\d.]+)", page.locator("#figures").text_content())[1])


@pytest.mark.parametrize("button", ["Delete 10 %", "Swap 10 %"])
def test_an_edit_moves_the_score(page, marked, button):
    page.get_by_label("Text to check").fill(marked)
    expect(page.locator("#verdict")).to_contain_text("✓ watermarked")
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
            page.get_by_label("Your prompt").fill("  ")
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
        expect(page.locator("footer")).to_contain_text("written by http://127.0.0.1:9/v1")
        expect(page.locator("#write-form")).to_be_hidden()
        page.get_by_label("Text to check").fill("Hello there, said the lighthouse keeper.")
        expect(page.locator("#verdict")).not_to_be_empty()
