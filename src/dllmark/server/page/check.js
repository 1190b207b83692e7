// Any text's verdict, the reason for it, its tokens, marked stretches and curve, again after every edit.

import { post } from "./api.js";
import { drawCurve } from "./curve.js";
import { byId, colouredTokens, element, showError, showMeter, showVerdict } from "./dom.js";
import { noStretches, reason, showPValue, whatNext } from "./words.js";
import { submitOnCtrlEnter } from "./write.js";

const PAUSE = 350; // milliseconds without a keystroke before a text is checked
const EMPTY = "Nothing to check yet: paste a text, drop a file, or check one that was written above.";

export function setUpChecking(info) {
  const text = byId("text");
  let timer = null;
  let latest = null;
  let before = null;

  async function check() {
    clearTimeout(timer);
    latest?.abort();
    const mine = (latest = new AbortController());
    const content = text.value;
    showError(byId("check-error"), null);
    if (!content.trim()) {
      before = null;
      return showNothing(EMPTY);
    }
    const options = info.public ? {} : { explain: true, spans: true };
    try {
      const { results } = await post("v1/detect", { text: content, ...options }, mine.signal);
      show(content, results[0], before);
      before = results[0].z ?? null;
    } catch (error) {
      if (error.name === "AbortError") return;
      showNothing("");
      showError(byId("check-error"), error, check);
    }
  }

  function put(content) {
    text.value = content;
    return check();
  }

  byId("check-button").disabled = false; // before this, the browser itself would send the form
  byId("check-form").addEventListener("submit", (event) => {
    event.preventDefault();
    check();
  });
  text.addEventListener("keydown", submitOnCtrlEnter);
  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE);
  });
  byId("delete").addEventListener("click", () => put(deleteWords(text.value, 0.1)));
  byId("swap").addEventListener("click", () => put(swapWords(text.value, 0.1)));
  setUpFiles(info.limits.body, put);
  check(); // typed, or kept by a reload, before the server had answered

  return (content) => {
    before = null;
    byId("check").scrollIntoView({ block: "start" });
    text.focus({ preventScroll: true });
    return put(content);
  };
}

/** A file may be dropped on the section, or chosen. */
function setUpFiles(largest, put) {
  const section = byId("check");

  async function read(file) {
    if (!file) return;
    if (file.size > largest) {
      const message = `${file.name} has ${file.size} bytes, but ${largest} are the most here: cut it, or use dllmark detect.`;
      return showError(byId("check-error"), new Error(message));
    }
    try {
      const content = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      put(content);
    } catch {
      showError(byId("check-error"), new Error(`${file.name} is no text in UTF-8: save it as plain text first.`));
    }
  }

  byId("choose").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", () => {
    read(byId("file").files[0]);
    byId("file").value = ""; // the same file may be chosen again
  });
  section.addEventListener("dragover", (event) => {
    event.preventDefault();
    section.classList.add("dropping");
  });
  section.addEventListener("dragleave", () => section.classList.remove("dropping"));
  section.addEventListener("drop", (event) => {
    event.preventDefault();
    section.classList.remove("dropping");
    const [file] = event.dataTransfer.files;
    if (file) read(file);
    else put(event.dataTransfer.getData("text"));
  });
}

/** Deletes a share of the words, at least one, with the space before each. */
function deleteWords(content, share) {
  const words = content.match(/\s*\S+/g) ?? [];
  for (let left = Math.ceil(words.length * share); left > 0 && words.length > 1; left--) {
    words.splice(Math.floor(Math.random() * words.length), 1);
  }
  return words.join("");
}

/** Swaps neighbouring words, so that about a share of them moves, and at least two. */
function swapWords(content, share) {
  const words = content.match(/\S+/g) ?? [];
  const between = content.split(/\S+/);
  for (let left = Math.ceil((words.length * share) / 2); left > 0 && words.length > 1; left--) {
    const at = Math.floor(Math.random() * (words.length - 1));
    [words[at], words[at + 1]] = [words[at + 1], words[at]];
  }
  return between.map((space, at) => space + (words[at] ?? "")).join("");
}

function showNothing(why) {
  byId("result").hidden = !why;
  byId("verdict").replaceChildren();
  byId("reason").textContent = why;
  byId("next").textContent = "";
  byId("details").hidden = true;
}

function show(content, detection, before) {
  byId("result").hidden = false;
  showVerdict(byId("verdict"), detection, false);
  byId("reason").textContent = reason(detection);
  byId("next").textContent = whatNext(detection);
  byId("details").hidden = !detection.tokens;
  if (!detection.tokens) return; // a public server tells no more
  showMeter(byId("check-meter"), detection);
  const moved = before === null ? "" : ` (before ${before.toFixed(2)})`;
  const tried = detection.keys_tried > 1 ? `, best of ${detection.keys_tried}` : "";
  const figures = {
    z: detection.z.toFixed(2) + moved,
    p: showPValue(detection.p_value),
    key: (detection.label ?? detection.key_id) + tried,
  };
  byId("figures").replaceChildren(
    ...Object.entries(figures).map(([name, value]) =>
      element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value })),
    ),
  );
  showSpans(content, detection);
  drawCurve(byId("curve"), detection);
}

/** Shows the tokens, and the stretches as buttons that show where each stands. */
function showSpans(content, detection) {
  const stretchOf = (start, end) => detection.spans.findIndex((span) => span.start <= start && end <= span.end);
  const classesOf = (start, end) => (stretchOf(start, end) >= 0 ? `marked stretch-${stretchOf(start, end)}` : "");
  byId("tokens").replaceChildren(...colouredTokens(content, detection.tokens, classesOf));
  const characters = Array.from(content);
  const lines = detection.spans.map((span, at) => {
    const piece = characters.slice(span.start, span.end).join("").replace(/\s+/g, " ").trim();
    const excerpt = piece.length > 70 ? `${piece.slice(0, 40)} … ${piece.slice(-25)}` : piece;
    const button = element("button", { type: "button", className: "stretch", textContent: `“${excerpt}”` });
    button.addEventListener("click", () => pointOut(button, at));
    const figures = ` ${span.green} of ${span.pairs} pairs green, p ${showPValue(span.p_value)}`;
    return element("li", {}, button, element("span", { className: "quiet", textContent: figures }));
  });
  byId("spans").replaceChildren(...lines);
  byId("no-spans").textContent = lines.length ? "" : noStretches(detection);
}

function pointOut(button, at) {
  for (const one of document.querySelectorAll("#spans button")) one.ariaPressed = String(one === button);
  for (const token of byId("tokens").children) {
    token.classList.toggle("pointed", token.classList.contains(`stretch-${at}`));
  }
  const first = byId("tokens").querySelector(".pointed");
  byId("tokens").scrollTop = first.offsetTop - first.offsetHeight; // its first line, and one before
  byId("tokens").scrollIntoView({ block: "nearest" });
}
