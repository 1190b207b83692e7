// A text being denoised: every token where and when the model commits it, to be replayed.

import { colouredTokens, element } from "./dom.js";

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
  add(step) {
    this.steps = step.number;
    for (const { position, text } of step.revealed) Object.assign(this.tokens[position], { text, step: step.number });
    for (const { position, mark } of step.marks ?? []) this.tokens[position].marks.push({ mark, step: step.number });
  }

  /** Takes the finished text and, where the server tells them, its tokens as the detector sees them. */
  finish(text, tokens) {
    this.final = tokens ? { text, tokens } : null;
    this.draw(this.steps);
  }

  /** Shows the text as it stood after a step; after the last, as Check shows it. */
  draw(step) {
    const spans =
      this.final && step >= this.steps
        ? colouredTokens(this.final.text, this.final.tokens)
        : this.tokens.map((token) => this.#span(token, step));
    this.place.replaceChildren(...spans);
  }

  #span(token, step) {
    if (token.step > step) return element("span", { className: "mask", textContent: "░░", ariaHidden: "true" });
    const mark = token.marks.findLast((change) => change.step <= step)?.mark ?? "";
    const fresh = token.step === step && step < this.total ? "new" : "";
    return element("span", { className: `token ${mark === "not scored" ? "" : mark} ${fresh}`, textContent: token.text });
  }
}
