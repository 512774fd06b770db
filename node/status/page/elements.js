// Elements without markup: whatever a peer calls itself becomes text and nothing else.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children); // strings become text nodes
  return made;
}

export const byId = (id) => document.getElementById(id);

// Only what differs is written: a screen reader is not told, and a selection not lost, once a second.
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function facts(list, rows) {
  const known = new Map([...list.children].map((each) => [each.dataset.key, each]));
  for (const [key, text] of rows) {
    let row = known.get(key);
    if (row === undefined) {
      row = element("div", { "data-key": key }, element("dt", {}, key), element("dd"));
      list.append(row);
    }
    known.delete(key);
    write(row.lastElementChild, text);
  }
  for (const row of known.values()) row.remove();
}

export function lines(list, texts) {
  if ([...list.children].map((each) => each.textContent).join("\n") === texts.join("\n")) return;
  list.replaceChildren(...texts.map((each) => element("li", {}, each)));
}

export function cell(row, index, text, small = "") {
  const target = row.cells[index];
  const shown = target.firstChild;
  if (shown === null || shown.nodeType !== Node.TEXT_NODE) target.prepend(document.createTextNode(text));
  else if (shown.data !== text) shown.data = text;
  let below = target.querySelector("small");
  if (below === null && small) { below = element("small"); target.append(below); }
  if (below !== null) write(below, small);
}
