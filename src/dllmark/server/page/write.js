// The left side: the same prompt with and without the watermark, live, and a slider to replay both.

import { Refused, stream } from "./api.js";
import { Canvas } from "./canvas.js";
import { byId, showVerdict } from "./dom.js";

export function setUpWriting(info, checkText) {
  const sides = [new Side("marked", true, checkText)];
  if (!info.public) sides.push(new Side("unmarked", false, checkText));
  const replay = setUpReplay(sides);
  let running = null;

  byId("gamma").value = info.keys[0]?.gamma ?? "";
  byId("length").max = info.limits.tokens;
  byId("length").value = info.tokens;
  byId("temperature").value = info.temperature;
  for (const name of Object.keys(info.strategies)) byId("strategy").add(new Option(name));
  byId("strategy").value = info.strategy;
  const useOwnDelta = () => (byId("delta").value = info.strategies[byId("strategy").value]);
  byId("strategy").addEventListener("change", useOwnDelta);
  byId("delta").max = info.max_delta;
  byId("delta").disabled = info.public; // a form is not sent while a field that is required is empty
  if (!info.public) useOwnDelta();
  byId("stop").addEventListener("click", () => running?.abort());

  byId("write-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    running?.abort();
    const mine = (running = new AbortController());
    const body = settings(info);
    byId("write-error").textContent = "";
    byId("stop").disabled = false;
    sides.forEach((side) => side.clear());
    replay.reset();
    try {
      for (const side of sides) await side.write(body, mine.signal, replay);
      const verdicts = sides.map((side) => `${side.title.toLowerCase()}: ${side.verdict}`);
      byId("write-status").textContent = `Done: ${verdicts.join("; ")}.`;
    } catch (error) {
      if (running !== mine) return;
      if (error.name === "AbortError") byId("write-status").textContent = "Stopped.";
      else {
        byId("write-status").textContent = "";
        byId("write-error").textContent = error.message;
      }
    }
    if (running === mine) byId("stop").disabled = true;
  });
}

/** Returns what the form asks for; both texts get the same seed. */
function settings(info) {
  const number = (id) => byId(id).valueAsNumber;
  const seed = Number.isNaN(number("seed")) ? Math.floor(Math.random() * 2 ** 31) : number("seed");
  const body = {
    prompt: byId("prompt").value,
    temperature: number("temperature"),
    tokens: number("length"),
    suppress_end: true,
    seed,
  };
  return info.public ? body : { ...body, strategy: byId("strategy").value, delta: number("delta") };
}

/** One of the two texts. */
class Side {
  constructor(id, marked, checkText) {
    this.id = id;
    this.marked = marked;
    this.title = byId(`${id}-title`).textContent;
    this.canvas = new Canvas(byId(id));
    this.button = byId(`check-${id}`);
    this.button.addEventListener("click", () => checkText(this.text));
  }

  clear() {
    this.canvas.clear();
    byId(`${this.id}-verdict`).replaceChildren();
    this.button.disabled = true;
  }

  async write(settings, signal, replay) {
    const { strategy, delta, ...plain } = settings;
    const body = this.marked ? settings : { ...plain, watermark: false };
    byId(this.id).ariaBusy = "true";
    try {
      for await (const { name, data } of stream("/v1/generate", body, signal)) {
        if (name === "start") {
          this.canvas.start(data.tokens, data.steps);
          replay.start(data.steps);
          byId("write-status").textContent = this.marked ? "Writing with the watermark …" : "Writing without it …";
        } else if (name === "step") {
          this.canvas.add(data);
          replay.follow(data.number, this.canvas);
        } else if (name === "end") {
          this.finish(data);
        } else {
          throw new Refused(data.error.message, 500);
        }
      }
    } finally {
      byId(this.id).ariaBusy = "false";
    }
  }

  finish(data) {
    this.text = data.text;
    this.verdict = data.detection.verdict;
    this.canvas.finish(data.text, data.detection.tokens);
    showVerdict(byId(`${this.id}-verdict`), data.detection);
    this.button.disabled = false;
  }
}

/** The slider moves all texts through their steps; while one is written it follows. */
function setUpReplay(sides) {
  const slider = byId("replay");
  const play = byId("play");
  let timer = null;

  const show = (step) => {
    slider.value = step;
    byId("replay-step").textContent = `step ${step} of ${slider.max}`;
    slider.ariaValueText = `step ${step} of ${slider.max}`;
  };
  const draw = () => {
    const step = slider.valueAsNumber;
    sides.forEach((side) => side.canvas.draw(step));
    show(step);
  };
  const pause = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };

  slider.addEventListener("input", () => {
    pause();
    draw();
  });
  play.addEventListener("click", () => {
    if (timer) return pause();
    if (slider.value === slider.max) slider.value = 0;
    play.textContent = "Pause";
    timer = setInterval(() => {
      slider.value = slider.valueAsNumber + 1;
      draw();
      if (slider.value === slider.max) pause();
    }, 80);
  });

  return {
    reset() {
      pause();
      slider.max = 0;
      slider.disabled = play.disabled = true;
      byId("replay-step").textContent = "no steps yet";
    },
    start(steps) {
      slider.max = steps;
      slider.disabled = play.disabled = false;
    },
    follow(step, canvas) {
      canvas.draw(step);
      show(step);
    },
  };
}
