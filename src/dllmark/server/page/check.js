// The right side: any text's verdict, tokens, marked stretches and curve, again after every edit.

import { post } from "./api.js";
import { drawCurve } from "./curve.js";
import { byId, colouredTokens, element, showPValue, showVerdict } from "./dom.js";

const PAUSE = 350; // milliseconds without a keystroke before a text is checked

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
    byId("check-error").textContent = "";
    if (!content.trim()) {
      byId("result").hidden = true;
      before = null;
      return;
    }
    const options = info.public ? {} : { explain: true, spans: true };
    try {
      const { results } = await post("/v1/detect", { text: content, ...options }, mine.signal);
      show(content, results[0], before);
      before = results[0].z;
    } catch (error) {
      if (error.name === "AbortError") return;
      byId("result").hidden = true;
      byId("check-error").textContent = error.message;
    }
  }

  function put(content) {
    text.value = content;
    return check();
  }

  byId("details").hidden = info.public;
  byId("check-button").disabled = false; // before this, the browser itself would send the form
  byId("check-form").addEventListener("submit", (event) => {
    event.preventDefault();
    check();
  });
  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE);
  });
  byId("delete").addEventListener("click", () => put(deleteWords(text.value, 0.1)));
  byId("swap").addEventListener("click", () => put(swapWords(text.value, 0.1)));
  if (text.value) check(); // typed, or kept by a reload, before the server had answered

  return (content) => {
    before = null;
    byId("check").scrollIntoView({ block: "start" });
    text.focus({ preventScroll: true });
    return put(content);
  };
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

function show(content, detection, before) {
  byId("result").hidden = false;
  showVerdict(byId("verdict"), detection, false);
  const moved = before === null || detection.z === undefined ? "" : ` (before ${before.toFixed(2)})`;
  const figures =
    detection.z === undefined
      ? { p: `at most ${detection.p_value_at_most}` }
      : {
          z: detection.z.toFixed(2) + moved,
          p: showPValue(detection.p_value),
          "green pairs": `${detection.green} of ${detection.pairs}`,
          key: detection.keys_tried > 1 ? `${detection.key_id}, best of ${detection.keys_tried}` : detection.key_id,
        };
  byId("figures").replaceChildren(
    ...Object.entries(figures).map(([name, value]) =>
      element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value })),
    ),
  );
  if (!detection.tokens) return;
  const marked = (start, end) => detection.spans.some((span) => span.start <= start && end <= span.end);
  const classesOf = (start, end) => (marked(start, end) ? "marked" : "");
  byId("tokens").replaceChildren(...colouredTokens(content, detection.tokens, classesOf));
  showSpans(Array.from(content), detection.spans);
  drawCurve(byId("curve"), detection);
}

function showSpans(characters, spans) {
  const lines = spans.map((span) => {
    const piece = characters.slice(span.start, span.end).join("").replace(/\s+/g, " ").trim();
    const excerpt = piece.length > 70 ? `${piece.slice(0, 40)} … ${piece.slice(-25)}` : piece;
    const figures = `${span.green} of ${span.pairs} pairs green, p ${showPValue(span.p_value)}`;
    return element("li", { textContent: `“${excerpt}” (${figures})` });
  });
  byId("spans").replaceChildren(...(lines.length ? lines : [element("li", { className: "none", textContent: "none" })]));
}
