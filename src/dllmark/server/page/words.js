// What the page says of numbers and verdicts, in plain sentences.

const LARGE = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]];

export const percent = (share) => `${Math.round(100 * share)} %`;

export const many = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;

/** Says how often something happens by chance: "12 in 100", "1 in 400 billion", "1 in 10²⁰". */
export function odds(p) {
  if (p >= 0.095) return `${Math.round(100 * p)} in 100`;
  if (p <= 0) return "less than 1 in 10³⁰⁰";
  const times = Number((1 / p).toPrecision(2));
  if (times >= 1e15) return `1 in 10${superscript(Math.round(-Math.log10(p)))}`;
  const [size, name] = LARGE.find(([least]) => times >= least) ?? [1, ""];
  return `1 in ${(times / size).toLocaleString("en")} ${name}`.trim();
}

const superscript = (number) => Array.from(String(number), (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");

export function showPValue(value) {
  return value > 0 ? value.toPrecision(2) : "< 1e-300";
}

/** Says why a verdict is what it is. */
export function reason(detection) {
  if (detection.z === undefined) return coarseReason(detection);
  const { green, pairs, gamma, expected, fpr, verdict } = detection;
  if (verdict === "too short") return tooShort(detection);
  const own = percent(expected) === percent(gamma) ? "" : ` (${percent(expected)} for common words under this key)`;
  const share = `${green} of ${pairs} pairs are green: ${percent(green / pairs)}, where ${percent(gamma)} are expected${own}`;
  const chance = odds(detection.p_value);
  return verdict === "watermarked"
    ? `${share}. By chance that happens ${chance} times; the limit for this verdict is ${odds(fpr)}.`
    : `${share}. By chance that happens ${chance} times, too often for the limit of ${odds(fpr)}.`;
}

function tooShort({ pairs, pairs_needed: needed }) {
  const has = pairs === 1 ? "There is 1 pair of tokens" : `There are ${pairs} pairs of tokens`;
  const short = `${has} to count, too few to tell`;
  return needed ? `${short}: about ${needed} are needed.` : `${short} chance from a mark.`;
}

function coarseReason({ verdict, p_value_at_most: most }) {
  if (verdict === "too short") return "The text is too short to tell chance from a mark.";
  return verdict === "watermarked"
    ? `So many green pairs come by chance at most ${odds(most)} times.`
    : "There are not many more green pairs than chance brings.";
}

/** Says what to do with a verdict. */
export function whatNext({ verdict }) {
  return {
    watermarked:
      "What next: if you report it, say how many texts you checked. It does not say who wrote or used the text.",
    "not detected":
      "What next: if it should carry the mark, check a longer piece, as it was written, with the key of that time.",
    "too short": "What next: paste more of the same text.",
  }[verdict];
}

/** Says why a text has no stretch to show. */
export function noStretches({ verdict }) {
  return verdict === "watermarked"
    ? "No single stretch stands out: the mark is spread over the whole text, thinly."
    : "No stretch of it is greener than chance allows.";
}

/** Says what this server's model is, under the page. */
export function aboutModel(model) {
  if (!model) return "";
  return model === "embedded"
    ? "The embedded model is small and made for trying the watermark: do not believe what it says."
    : `${model} may say what is not true.`;
}
