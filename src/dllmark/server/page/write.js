// One box: a prompt, answered with the watermark and without it at once, live on the stage.

import { stream } from "./api.js";
import { byId, showError } from "./dom.js";
import { many } from "./words.js";

const KNOBS = { strategy: "strategy", delta: "delta", temperature: "temperature", tokens: "length", seed: "seed" };

export function setUpWriting(info, stage, linked) {
  let running = null;

  fillIn(info, linked);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("prompt").addEventListener("keydown", submitOnCtrlEnter);
  byId("write-form").addEventListener("submit", (event) => {
    event.preventDefault();
    write();
  });

  async function write() {
    running?.abort();
    const mine = (running = new AbortController());
    const body = settings(info);
    const busy = (writing) => {
      byId("stop").hidden = !writing;
      for (const side of ["marked", "unmarked"]) byId(side).ariaBusy = String(writing);
    };
    showError(byId("write-error"), null);
    stage.clear(info.public ? "Your text" : "Your texts", `“${body.prompt}”`, !info.public);
    stage.link = () => linkTo(body);
    const turn = stage.turn;
    busy(true);
    say("Writing …");
    if (byId("marked").getBoundingClientRect().top > 0.7 * innerHeight) byId("stage").scrollIntoView();
    try {
      for await (const event of stream("v1/generate", body, mine.signal)) {
        if (stage.turn === turn) show(event, stage);
        else mine.abort(); // a link led back to the example
      }
      say(`Done: ${stage.summary}.`);
    } catch (error) {
      if (running !== mine) return;
      const stopped = error.name === "AbortError";
      say(stopped ? "Stopped." : "");
      if (!stopped) showError(byId("write-error"), error, write);
    }
    if (running === mine) busy(false);
  }
}

function show(event, stage) {
  if (event.name === "waiting") {
    const { ahead, progress } = event.data;
    say(`Waiting: ${many(ahead, "text")} ${ahead === 1 ? "comes" : "come"} first.`, progress);
    return;
  }
  stage.take(event);
  if (event.name === "step") say("Writing …");
  stage.draw(event.name === "start" ? 0 : event.data.number ?? stage.steps);
}

/** Says how it stands, once; the bar shows how far those are who come first. */
function say(text, progress) {
  if (byId("write-status").textContent !== text) byId("write-status").textContent = text;
  byId("waiting").hidden = progress === undefined;
  byId("waiting").value = progress ?? 0;
}

export function submitOnCtrlEnter(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

/** Puts the server's defaults into the fields, or what a link says. */
function fillIn(info, linked) {
  byId("gamma").value = info.keys[0]?.gamma ?? "";
  byId("length").max = info.limits.tokens;
  byId("length").value = info.tokens;
  byId("temperature").value = info.temperature;
  byId("strategy").replaceChildren(...Object.keys(info.strategies).map((name) => new Option(name)));
  byId("strategy").value = info.strategy;
  const useOwnDelta = () => (byId("delta").value = info.strategies[byId("strategy").value]);
  byId("strategy").addEventListener("change", useOwnDelta);
  byId("delta").max = info.max_delta;
  byId("delta").disabled = info.public; // a form is not sent while a field that is required is empty
  if (!info.public) useOwnDelta();
  if (linked.has("prompt")) byId("prompt").value = linked.get("prompt");
  for (const [name, id] of Object.entries(KNOBS)) if (linked.has(name)) byId(id).value = linked.get(name);
}

/** Returns what the form asks for. */
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
  if (info.public) return body;
  return { ...body, compare: true, strategy: byId("strategy").value, delta: number("delta") };
}

/** Returns what a link has to say so that the same server writes the same texts again. */
function linkTo(body) {
  const names = ["prompt", ...Object.keys(KNOBS)].filter((name) => body[name] !== undefined);
  return names.map((name) => [name, body[name]]);
}
