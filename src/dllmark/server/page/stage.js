// The stage: a text with the watermark and one without, step by step, recorded or as they are written.

import { Canvas } from "./canvas.js";
import { byId, copy, showMeter, showVerdict } from "./dom.js";

const PACE = 130; // milliseconds a step
const NOTHING = { pairs: 0, green: 0 };

/** One of the two texts. */
class Side {
  constructor(id) {
    this.id = id;
    this.canvas = new Canvas(byId(id));
    this.title = byId(`${id}-title`).textContent;
    byId(`copy-${id}`).addEventListener("click", (event) => copy(event.target, this.text));
    this.clear();
  }

  clear() {
    this.canvas.clear();
    this.text = "";
    this.found = []; // what the detector said after each step
    this.#enable(false);
    byId(`${this.id}-verdict`).replaceChildren();
    showMeter(byId(`${this.id}-meter`), undefined);
  }

  start({ tokens, steps }) {
    this.clear();
    this.canvas.start(tokens, steps);
  }

  add(number, data) {
    this.canvas.add(number, data);
    this.found[number] = data.detection;
  }

  finish(data) {
    this.text = data.text;
    this.verdict = data.detection.verdict;
    this.found[this.canvas.steps] = data.detection;
    this.canvas.finish(data.text, data.detection.tokens);
    this.#enable(true);
  }

  draw(step) {
    this.canvas.draw(step);
    const known = this.found.find((detection) => detection?.pairs);
    const before = known && { ...NOTHING, gamma: known.gamma };
    const now = step > 0 ? this.found[step] : before;
    showMeter(byId(`${this.id}-meter`), now);
    if (now?.verdict) showVerdict(byId(`${this.id}-verdict`), now);
    else byId(`${this.id}-verdict`).replaceChildren();
  }

  #enable(ready) {
    byId(`copy-${this.id}`).disabled = byId(`check-${this.id}`).disabled = !ready;
  }
}

export class Stage {
  constructor() {
    this.sides = [new Side("marked"), new Side("unmarked")];
    this.timer = null;
    this.turn = 0; // whose texts these are: each `clear` begins another
    this.link = () => "";
    byId("replay").addEventListener("input", () => {
      this.pause();
      this.draw(byId("replay").valueAsNumber);
    });
    byId("play").addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    byId("copy-link").addEventListener("click", (event) => {
      const at = `${location.origin}${location.pathname}`;
      copy(event.target, `${at}#${new URLSearchParams(this.link())}`);
    });
  }

  /** Calls a function with a text whose button was pressed. */
  onCheck(check) {
    for (const side of this.sides) byId(`check-${side.id}`).addEventListener("click", () => check(side.text));
  }

  /** Makes room for other texts: both, or that with the watermark alone. */
  clear(title, prompt, both = true) {
    this.pause();
    this.turn += 1;
    this.both = both;
    byId("stage-title").textContent = title;
    byId("stage-prompt").textContent = prompt;
    byId("unmarked-side").hidden = !both;
    byId("stage").classList.toggle("single", !both);
    for (const side of this.sides) side.clear();
    byId("replay").max = 0;
    byId("replay").disabled = byId("play").disabled = byId("copy-link").disabled = true;
    byId("replay-step").textContent = "no steps yet";
  }

  /** Takes an event of a stream: `start`, `step` or `end`. */
  take({ name, data }) {
    const of = this.both ? [data, data.unmarked] : [data];
    if (name === "start") {
      for (const side of this.sides.slice(0, of.length)) side.start(data);
      byId("replay").max = data.steps;
    } else if (name === "step") {
      of.forEach((part, at) => this.sides[at].add(data.number, part));
    } else {
      of.forEach((part, at) => this.sides[at].finish(part));
      byId("replay").disabled = byId("play").disabled = byId("copy-link").disabled = false;
    }
  }

  get steps() {
    return Number(byId("replay").max);
  }

  draw(step) {
    for (const side of this.both ? this.sides : this.sides.slice(0, 1)) side.draw(step);
    const where = `step ${step} of ${this.steps}`;
    byId("replay").value = step;
    byId("replay").ariaValueText = byId("replay-step").textContent = where;
  }

  play() {
    let step = byId("replay").valueAsNumber;
    if (step >= this.steps) step = 0;
    this.draw(step);
    byId("play").textContent = "Pause";
    this.timer = setInterval(() => {
      this.draw(++step);
      if (step >= this.steps) this.pause();
    }, PACE);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play").textContent = "Play";
  }

  /** Says both verdicts in one line. */
  get summary() {
    const shown = this.both ? this.sides : this.sides.slice(0, 1);
    return shown.map((side) => `${side.title.toLowerCase()}: ${side.verdict}`).join("; ");
  }
}
