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

// Where the browser can, what is moved keeps the focus and what is open in it.
export function put(parent, child, before) {
  if (child.isConnected && parent.moveBefore) parent.moveBefore(child, before);
  else parent.insertBefore(child, before);
}

export function facts(list, rows) {
  const known = new Map([...list.children].map((each) => [each.dataset.key, each]));
  rows.forEach(([key, text], index) => {
    let row = known.get(key);
    if (row === undefined) row = element("div", { "data-key": key }, element("dt", {}, key), element("dd"));
    known.delete(key);
    if (list.children[index] !== row) put(list, row, list.children[index] ?? null);
    write(row.lastElementChild, text);
  });
  while (list.children.length > rows.length) list.lastElementChild.remove();
}

export function lines(list, texts) {
  if ([...list.children].map((each) => each.textContent).join("\n") === texts.join("\n")) return;
  list.replaceChildren(...texts.map((each) => element("li", {}, each)));
}

// A table's cell; below its text, smaller, what is more.
export function cell(row, index, text, more = "") {
  const target = row.cells[index];
  if (target.told === `${text}\n${more}`) return;
  target.told = `${text}\n${more}`;
  target.textContent = text;
  if (more) target.append(element("small", {}, more));
}
