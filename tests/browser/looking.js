// What the tests ask of a page. Runs in it before its own scripts; changes nothing there.

const looking = {
  violations: [], // of the content security policy

  // All that can be reached by Tab, in the document's order.
  reachable() {
    const all = document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']");
    return [...all].filter((each) => each.checkVisibility() && !each.disabled);
  },

  // Which of them has the focus, and whether one sees that; -1: none.
  focused() {
    const at = document.activeElement, style = getComputedStyle(at);
    return { index: this.reachable().indexOf(at), seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 };
  },

  // What can be used, and sections, with the names they are read out by.
  names() {
    const all = document.querySelectorAll("button, input, select, a, canvas, section, [role=group]");
    return [...all].filter((each) => each.checkVisibility()).map((each) => {
      const by = document.getElementById(each.getAttribute("aria-labelledby")), text = ["BUTTON", "A"].includes(each.tagName) ? each.textContent : "";
      return [each.outerHTML.slice(0, 80), each.getAttribute("aria-label") || by?.textContent || each.labels?.[0]?.textContent || text];
    });
  },

  // Texts whose contrast with what is behind them is below the least.
  faint(least) {
    const numbers = (colour) => { const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number); return [r, g, b, a]; };
    const light = ([r, g, b]) => {
      const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
      return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const over = (top, below) => [0, 1, 2].map((each) => top[each] * top[3] + below[each] * (1 - top[3])).concat(1);
    const behind = (element) => {
      const layers = [];
      for (let each = element; each; each = each.parentElement) layers.push(numbers(getComputedStyle(each).backgroundColor));
      return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
    };
    const found = [], seen = [];
    for (const element of document.querySelectorAll("body *")) {
      const own = [...element.childNodes].some((each) => each.nodeType === Node.TEXT_NODE && each.data.trim());
      if (!own || !element.checkVisibility({ opacityProperty: true })) continue;
      const back = behind(element), ink = over(numbers(getComputedStyle(element).color), back);
      const [high, low] = [light(ink), light(back)].sort((a, b) => b - a);
      const contrast = (high + 0.05) / (low + 0.05);
      seen.push(contrast);
      if (contrast < least) found.push(`${element.tagName} ${element.className || element.id}: ${contrast.toFixed(2)} ${element.textContent.slice(0, 40)}`);
    }
    return { found, seen: seen.length, worst: Math.min(...seen) };
  },

  // Frames over some seconds: how many each second, and the longest in ms.
  frames(seconds) {
    return new Promise((resolve) => {
      let count = 0, longest = 0, first = performance.now(), last = first;
      const next = (now) => {
        longest = Math.max(longest, now - last); last = now; count += 1;
        if (now - first > seconds * 1000) resolve({ perSecond: count / seconds, longest });
        else requestAnimationFrame(next);
      };
      requestAnimationFrame(next);
    });
  },

  // Counts what is said to a screen reader, from now on.
  listen() {
    this.said = [];
    const hear = (changes) => { for (const each of changes) this.said.push(each.target.textContent); };
    for (const each of document.querySelectorAll("[role=status], [aria-live]")) new MutationObserver(hear).observe(each, { childList: true, characterData: true, subtree: true });
  },
};

addEventListener("securitypolicyviolation", (event) => looking.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
window.looking = looking;
