// Small helpers to build elements. Text goes in through textContent alone, so it can be no markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function showPValue(value) {
  return value > 0 ? value.toPrecision(2) : "< 1e-300";
}

/** Returns a text as spans, one for each of its tokens, coloured as the detector scored them. */
export function colouredTokens(text, tokens, classesOf = () => "") {
  const characters = Array.from(text); // positions count characters, not UTF-16 units
  let shown = 0;
  const spans = tokens.map((token) => {
    const start = shown;
    shown = Math.max(shown, token.end);
    const mark = token.mark === "not scored" ? "" : token.mark;
    const textContent = characters.slice(start, shown).join("");
    return element("span", { className: `token ${mark} ${classesOf(start, token.end)}`, textContent });
  });
  return [...spans, characters.slice(shown).join("")]; // white space at the end is no token
}

/** Writes a verdict and its figures, of which a public server gives a bound only. */
export function showVerdict(into, detection, withFigures = true) {
  const sign = { watermarked: "✓ ", "not detected": "✗ ", "too short": "… " }[detection.verdict];
  const figures =
    detection.z === undefined
      ? ` p ≤ ${detection.p_value_at_most}`
      : ` z ${detection.z.toFixed(2)}, p ${showPValue(detection.p_value)}, ` +
        `${detection.green} of ${detection.pairs} pairs green`;
  into.replaceChildren(
    element("span", { className: `name ${detection.verdict.replace(" ", "-")}`, textContent: sign + detection.verdict }),
    ...(withFigures ? [element("span", { className: "figures", textContent: figures })] : []),
  );
}
