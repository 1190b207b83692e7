// A text being denoised: every token where and when the model commits it, to be replayed.

import { element } from "./dom.js";

export class Canvas {
  constructor(place) {
    this.place = place;
    this.clear();
  }

  clear() {
    this.tokens = [];
    this.steps = 0;
    this.total = 0;
    this.end = Infinity;
    this.place.replaceChildren();
  }

  start(count, total) {
    this.clear();
    this.total = total;
    this.tokens = Array.from({ length: count }, () => ({ text: "", step: Infinity, mark: "", markStep: Infinity }));
    this.place.append(...this.tokens.map(() => element("span")));
    this.draw(0);
  }

  /** Adds one step of the stream. */
  add(step) {
    this.steps = step.number;
    for (const { position, text } of step.revealed) Object.assign(this.tokens[position], { text, step: step.number });
    for (const { position, mark } of step.marks ?? []) Object.assign(this.tokens[position], { mark, markStep: step.number });
  }

  /** Shows the text as it stood after a step. */
  draw(step) {
    this.tokens.forEach((token, at) => {
      const span = this.place.children[at];
      const known = token.step <= step;
      span.textContent = known ? token.text : "░░";
      span.ariaHidden = known ? null : "true";
      const mark = token.markStep <= step && token.mark !== "not scored" ? token.mark : "";
      const fresh = known && token.step === step && step < this.total ? "new" : "";
      span.className = known ? `token ${mark} ${fresh} ${at >= this.end ? "past-end" : ""}` : "mask";
    });
  }
}
