// A text being denoised: every token where and when the model commits it, to be replayed.

import { colouredTokens, element, tokenSpan } from "./dom.js";

export class Canvas {
  constructor(place) {
    this.place = place;
    this.clear();
  }

  clear() {
    this.tokens = [];
    this.steps = 0;
    this.total = 0;
    this.final = null;
    this.place.replaceChildren();
  }

  start(count, total) {
    this.clear();
    this.total = total;
    this.tokens = Array.from({ length: count }, () => ({ text: "", step: Infinity, marks: [] }));
    this.draw(0);
  }

  /** Adds one step of the stream. */
  add(number, { revealed, marks = [] }) {
    this.steps = number;
    for (const { position, text } of revealed) Object.assign(this.tokens[position], { text, step: number });
    for (const { position, mark } of marks) this.tokens[position].marks.push({ mark, step: number });
  }

  /** Takes the finished text and, where the server tells them, its tokens as the detector sees them. */
  finish(text, tokens) {
    this.final = tokens ? { text, tokens, when: this.#whenCharactersCame(text) } : null;
    this.draw(this.steps);
  }

  /** Shows the text as it stood after a step; after the last, as Check shows it. */
  draw(step) {
    const done = this.final && step >= this.steps;
    const spans = done
      ? colouredTokens(this.final.text, this.final.tokens, () => "", (start) => this.final.when[start])
      : this.tokens.flatMap((token) => this.#spans(token, step));
    this.place.replaceChildren(...spans);
  }

  /** Returns a token, or the mask it still is: as wide as the token, where that is known already. */
  #spans(token, step) {
    if (token.step > step) {
      const known = token.text !== "";
      const mask = { className: known ? "mask" : "mask unknown", ariaHidden: "true", textContent: known ? token.text.trimStart() || token.text : "mask" };
      return [token.text.startsWith(" ") || !known ? " " : "", element("span", mask)];
    }
    const mark = token.marks.findLast((change) => change.step <= step)?.mark ?? "plain";
    const fresh = token.step === step && step < this.total ? "new" : "";
    return tokenSpan(token.text, `${mark === "not scored" ? "plain" : mark} ${fresh}`, this.#when(token));
  }

  #when = (token) => (this.total > 1 ? (token.step - 1) / (this.total - 1) : 0);

  /** Returns for each character when it came, from 0 to 1; nothing where the text was cut otherwise. */
  #whenCharactersCame(text) {
    const when = this.tokens.flatMap((token) => Array.from(token.text, () => this.#when(token)));
    return this.tokens.map((token) => token.text).join("").startsWith(text) ? when : [];
  }
}
