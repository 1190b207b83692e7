// The recorded example, which needs no server: docs/make_page.py records it.

import { byId } from "./dom.js";

/** Loads the recording and plays it; `step` stops it there, and so does a wish for less motion. */
export async function showExample(stage, step) {
  const before = stage.turn;
  const { prompt, model, events } = await (await fetch("page/example.json")).json();
  if (stage.turn !== before) return; // something is written there already
  stage.clear("Recorded example", `The ${model} model was asked: “${prompt}”`);
  for (const event of events) stage.take(event);
  stage.link = () => ({ step: byId("replay").value });
  if (step !== undefined) stage.draw(Math.min(Math.max(step, 0), stage.steps));
  else if (matchMedia("(prefers-reduced-motion: reduce)").matches) stage.draw(stage.steps);
  else stage.play();
}
