// What is wrong with how a page looks: each function returns what it found.
({
  /** Pairs of texts or controls, neither inside the other, that cover each other. */
  overlaps() {
    const kinds =
      "button, input, select, textarea, summary, h1, h2, h3, p, label, output, dt, dd, .text, svg, a";
    const shown = [...document.querySelectorAll(kinds)].filter(
      (one) => this.visible(one) && one.getBoundingClientRect().width > 1,
    );
    const found = [];
    for (const one of shown) {
      for (const other of shown) {
        if (one.contains(other) || other.contains(one)) continue;
        const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 1 && down > 1) found.push(`${this.name(one)} / ${this.name(other)}`);
      }
    }
    return found;
  },

  /** What stands outside the window, or does not fit into its own box. */
  cut() {
    const all = [...document.querySelectorAll("main *, header *, footer *")];
    const found = all.filter((one) => {
      if (!this.visible(one) || one.closest("svg")) return false;
      const box = one.getBoundingClientRect();
      if (box.width && (box.left < -1 || box.right > innerWidth + 1)) return true;
      const style = getComputedStyle(one);
      const isField = ["INPUT", "SELECT", "TEXTAREA"].includes(one.tagName);
      if (style.display === "inline" || isField || !one.clientWidth) return false;
      const tooWide = one.scrollWidth > one.clientWidth + 1 && style.overflowX !== "auto";
      const tooHigh = one.scrollHeight > one.clientHeight + 1 && style.overflowY === "hidden";
      return tooWide || tooHigh;
    });
    return found.map((one) => this.name(one));
  },

  /** Texts whose contrast is below 4.5, the AA of WCAG. */
  faint() {
    const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const layers = (one) =>
      one ? [...layers(one.parentElement), getComputedStyle(one).backgroundColor] : [];
    const luminance = (colours) => {
      for (const colour of ["white", ...colours]) {
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
      }
      const [r, g, b] = Array.from(pen.getImageData(0, 0, 1, 1).data, (value) => value / 255).map(
        (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4),
      );
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const one = walker.currentNode.parentElement;
      const text = walker.currentNode.textContent.trim();
      const unseen = one.closest("[aria-hidden=true], noscript, option, title");
      if (!text || unseen || !this.visible(one)) continue;
      const style = getComputedStyle(one);
      const ink = one.closest("svg") ? style.fill : style.color;
      const both = [luminance(layers(one)), luminance([...layers(one), ink])];
      const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
      if (contrast < 4.5) found.push(`${text.slice(0, 30)}: ${contrast.toFixed(2)}`);
    }
    return found;
  },

  /** What a screen reader would have no name for. */
  nameless() {
    const kinds =
      "input, select, textarea, button, a, progress, [role=group], [role=img], section, article";
    const found = [...document.querySelectorAll(kinds)].filter((one) => {
      const by = one.getAttribute("aria-labelledby");
      const given = by ? document.getElementById(by)?.textContent : one.getAttribute("aria-label");
      const inside = one.querySelector("title")?.textContent ?? one.textContent;
      const own = one.labels ? (one.labels[0]?.textContent ?? one.textContent) : inside;
      return one.checkVisibility() && !(given || own)?.trim();
    });
    return found.map((one) => one.outerHTML.slice(0, 60));
  },

  visible: (one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".skip"),
  name: (one) => `${one.tagName}#${one.id} ${one.textContent.slice(0, 20).trim()}`,
})
