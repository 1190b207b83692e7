// z of the text's beginnings, from one pair to all of them, as a drawing.

import { element } from "./dom.js";

const WIDTH = 420;
const HEIGHT = 210;
const LEFT = 32;
const TOP = 22;
const BOTTOM = 30;

/** Draws the curve of a detection from the colours of its tokens. */
export function drawCurve(into, detection) {
  const points = zOfBeginnings(detection);
  if (!points.length) {
    into.replaceChildren(element("p", { textContent: "no pair was scored" }));
    return;
  }
  const threshold = normalQuantile(detection.fpr / detection.keys_tried);
  const low = Math.min(0, ...points) - 0.5;
  const high = Math.max(threshold, ...points) + 0.5;
  const x = (pairs) => LEFT + ((WIDTH - LEFT - 10) * pairs) / points.length;
  const y = (z) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (z - low) / (high - low));
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const last = points[points.length - 1].toFixed(2);
  svg.append(
    draw("title", {}, `z rises and falls with the text: ${last} after ${points.length} pairs`),
    ...ticks(low, high).flatMap((z) => [
      draw("line", { x1: LEFT, x2: WIDTH - 10, y1: y(z), y2: y(z), class: "axis" }),
      draw("text", { x: LEFT - 6, y: y(z) + 4, "text-anchor": "end" }, String(z)),
    ]),
    draw("line", { x1: LEFT, x2: WIDTH - 10, y1: y(threshold), y2: y(threshold), class: "threshold" }),
    draw("text", { x: WIDTH - 10, y: 12, "text-anchor": "end" }, `- - about the verdict's limit, p ${detection.fpr}`),
    draw("polyline", { class: "line", points: points.map((z, at) => `${x(at + 1)},${y(z)}`).join(" ") }),
    draw("text", { x: LEFT, y: HEIGHT - 10 }, "0"),
    draw("text", { x: WIDTH - 10, y: HEIGHT - 10, "text-anchor": "end" }, `${points.length} scored pairs`),
    draw("text", { x: LEFT, y: 12 }, "z"),
  );
  into.replaceChildren(svg);
}

/** Returns z after 1, 2, 3 … scored pairs. */
export function zOfBeginnings(detection) {
  const gamma = detection.gamma;
  let pairs = 0;
  let green = 0;
  const points = [];
  for (const token of detection.tokens) {
    if (token.mark === "not scored") continue;
    pairs += 1;
    green += token.mark === "green";
    points.push((green - gamma * pairs) / Math.sqrt(gamma * (1 - gamma) * pairs));
  }
  return points;
}

/** Returns some round values between two bounds. */
function ticks(low, high) {
  const step = [1, 2, 5, 10, 20, 50].find((size) => (high - low) / size <= 6) ?? 100;
  const values = [];
  for (let z = Math.ceil(low / step) * step; z <= high; z += step) values.push(z);
  return values;
}

/** Returns the z that a standard normal variable exceeds with a probability, by bisection. */
function normalQuantile(probability) {
  let low = 0;
  let high = 40;
  for (let round = 0; round < 60; round++) {
    const middle = (low + high) / 2;
    [low, high] = normalTail(middle) > probability ? [middle, high] : [low, middle];
  }
  return low;
}

/** Abramowitz and Stegun, 26.2.17: right to seven digits, for z from 0 up. */
function normalTail(z) {
  const t = 1 / (1 + 0.2316419 * z);
  const series = ((((1.330274429 * t - 1.821255978) * t + 1.781477937) * t - 0.356563782) * t + 0.31938153) * t;
  return (series * Math.exp((-z * z) / 2)) / Math.sqrt(2 * Math.PI);
}

function draw(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}
