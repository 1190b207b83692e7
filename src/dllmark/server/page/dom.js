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

/** Writes a verdict and its figures, of which a public server gives a bound only. */
export function showVerdict(into, found, withFigures = true) {
  const sign = { watermarked: "✓ ", "not detected": "✗ ", "too short": "… " }[found.verdict];
  const figures =
    found.z === undefined
      ? ` p ≤ ${found.p_value_at_most}`
      : ` z ${found.z.toFixed(2)}, p ${showPValue(found.p_value)}, ` +
        `${found.green} of ${found.pairs} pairs green`;
  into.replaceChildren(
    element("span", { className: `name ${found.verdict.replace(" ", "-")}`, textContent: sign + found.verdict }),
    ...(withFigures ? [element("span", { className: "figures", textContent: figures })] : []),
  );
}
