// The recorded example, which needs no server: docs/make_page.py records it.

import { byId } from "./dom.js";

/** Loads the recording and plays it; a link to a step stops it there, a wish for less motion at the end. */
export async function showExample(stage, link) {
  const before = stage.turn;
  const recording = await fetch("page/example.json").then((answer) => answer.json()).catch(() => null);
  if (!recording || stage.turn !== before) return; // the server is gone, or texts are written there
  const { prompt, model, events } = recording;
  stage.clear("Recorded example", `The ${model} model was asked: “${prompt}”`);
  for (const event of events) stage.take(event);
  stage.link = () => ({ step: byId("replay").value });
  const step = Math.round(Number(link.get("step")) || 0);
  if (link.has("step")) stage.draw(Math.min(Math.max(step, 0), stage.steps));
  else if (matchMedia("(prefers-reduced-motion: reduce)").matches) stage.draw(stage.steps);
  else stage.play();
}
