// Small helpers to build elements. Text goes in through textContent alone, so it can be no markup.

import { odds, percent } from "./words.js";

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Returns a token as it is shown: the space before a word stands outside its colour. */
export function tokenSpan(text, className, when) {
  const [, space, word] = text.match(/^( *)(.*)$/s);
  const span = element("span", { className: `token ${className}`, textContent: word || space });
  if (when !== undefined) span.style.setProperty("--when", when.toFixed(2));
  return word && space ? [space, span] : [span];
}

/** Returns a text as spans, one for each of its tokens, coloured as the detector scored them. */
export function colouredTokens(text, tokens, classesOf = () => "", whenOf = () => undefined) {
  const characters = Array.from(text); // positions count characters, not UTF-16 units
  let shown = 0;
  const spans = tokens.flatMap((token) => {
    const start = shown;
    shown = Math.max(shown, token.end);
    const mark = token.mark === "not scored" ? "plain" : token.mark;
    const piece = characters.slice(start, shown).join("");
    return tokenSpan(piece, `${mark} ${classesOf(start, token.end)}`, whenOf(start, token.end));
  });
  return [...spans, characters.slice(shown).join("")]; // white space at the end is no token
}

const SIGNS = { watermarked: "✓ ", "not detected": "✗ ", "too short": "… " };

/** Writes a verdict, how strong it is, and how often chance does the same. */
export function showVerdict(into, detection, withOdds = true) {
  const { verdict, strength } = detection;
  const name = strength ? `${verdict}, ${strength}` : verdict;
  const parts = [element("span", { className: `name ${verdict.replace(" ", "-")}`, textContent: SIGNS[verdict] + name })];
  if (withOdds) {
    const most = detection.p_value_at_most;
    const often = most === undefined ? odds(detection.p_value) : `at most ${odds(most)}`;
    parts.push(element("span", { className: "odds", textContent: `${often} by chance` }));
  }
  into.replaceChildren(...parts);
}

/** Draws the share of green pairs as a bar, with what is expected; nothing where it is not told. */
export function showMeter(into, detection) {
  into.hidden = detection?.pairs === undefined;
  if (into.hidden) return;
  const share = detection.pairs ? detection.green / detection.pairs : 0;
  const fill = element("span", { className: "fill" });
  const tick = element("span", { className: "tick" });
  const expected = element("span", { className: "expected", textContent: `${percent(detection.gamma)} expected` });
  fill.style.width = `${100 * share}%`;
  tick.style.left = expected.style.left = `${100 * detection.gamma}%`;
  into.replaceChildren(
    element(
      "p",
      { className: "share" },
      element("strong", { textContent: detection.pairs ? percent(share) : "– %" }),
      element("span", { textContent: `green, ${detection.green} of ${detection.pairs} pairs` }),
    ),
    element("div", { className: detection.pairs ? "bar" : "bar empty", ariaHidden: "true" }, fill, tick),
    element("p", { className: "scale" }, expected),
  );
}

/** Says what went wrong; where the server is lost, with a button that tries again. */
export function showError(into, error, again) {
  into.replaceChildren(error?.message ?? "");
  if (error?.status !== 0 || !again) return;
  const button = element("button", { type: "button", textContent: "Try again" });
  button.addEventListener("click", () => {
    into.replaceChildren();
    again();
  });
  into.append(button);
}

/** Copies a text, and says so on the button that was pressed. */
export async function copy(button, text) {
  const label = (button.dataset.label ??= button.textContent);
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here"; // without https, browsers refuse
  }
  setTimeout(() => (button.textContent = label), 2000);
}
