// A model's cells as a honeycomb: a row for each layer, a column for each expert, drawn on a canvas.

import { element, write } from "./elements.js";
import { count, many, runs, size } from "./words.js";

const LEAST_WIDTH = 6; // of a cell in CSS pixels: below that nobody sees one; the comb scrolls instead
const MOST_WIDTH = 26;
const MOST_DOTS = 2; // device pixels for one of CSS, each way: more costs memory and shows nothing
const FILLED = 0.92; // of a cell; the rest is the wall between it and the next
const NAMED_HOLDERS = 5;
const HOME = 4, NOTHING = 5; // kinds besides the number of replicas, which ends at "3 or more"
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
const HERE = { serves: "serves some of it", backbone: "answers with it" };

export class Comb {
  // holders(model id, layer, expert): names of the nodes that serve a cell
  constructor(model, holders, isOpen) {
    this.holders = holders;
    this.at = null; // the cell under pointer or cursor: [row, column]
    this.title = element("h3");
    this.verdict = element("span");
    this.about = element("p", { class: "quiet" });
    this.lacking = element("p", { class: "lacking" });
    this.canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "honeycomb" });
    this.mark = element("div", { class: "mark", hidden: "" });
    this.frame = element("div", { class: "comb" }, this.canvas, this.mark);
    this.told = element("p", { class: "told", role: "status" });
    this.root = element("details", { class: "model", "data-model": model.id, open: isOpen ? "" : null }, element("summary", {}, this.title, " ", this.verdict), this.about, this.lacking, this.frame, this.told);
    this.canvas.addEventListener("pointermove", (event) => this.point(this.under(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.point(this.under(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.frame); // also when the details are opened
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.update(model);
  }

  update(model) {
    const before = this.model;
    this.model = model;
    const lacks = model.missing_cells;
    write(this.title, model.name || `model ${model.short_id}`);
    write(this.verdict, lacks ? `${many(lacks, "cell")} missing` : "complete");
    this.verdict.className = lacks ? "badge bad" : "badge good";
    write(this.about, [
      model.architecture || "unknown architecture", `id ${model.short_id}`, `${many(model.layers.length, "layer")} of ${many(model.experts, "expert")}`,
      ...(model.expert_bytes === null ? [] : [`${size(model.expert_bytes)} of experts`]),
      `on ${many(model.nodes, "node")}`, ...(model.here.length ? [`this node ${model.here.map((each) => HERE[each] ?? each).join(" and ")}`] : []),
    ].join(", "));
    write(this.lacking, lacks ? `Served by nobody: ${runs(model.missing)}` : "");
    this.lacking.hidden = !lacks;
    const same = (key) => before && JSON.stringify(before[key]) === JSON.stringify(model[key]);
    if (["replicas", "scarcity", "home", "missing", "layers"].every(same)) return;
    this.replicas = decode(model.replicas);
    this.scarcity = model.scarcity === null ? null : decode(model.scarcity);
    this.kinds = this.sort(model);
    const cells = this.kinds.filter((kind) => kind !== NOTHING).length;
    this.canvas.setAttribute("aria-label", `${count(cells - lacks)} of ${many(cells, "cell")} have a holder; arrow keys go from cell to cell`);
    if (this.at && !this.has(...this.at)) this.at = null;
    this.draw();
    if (this.at) this.point(this.at);
  }

  // What is drawn of each cell. Layers may differ in their number of experts: what nobody serves and nobody misses is no cell.
  sort(model) {
    const kinds = this.replicas.map((live) => (live === 0 ? NOTHING : Math.min(3, live)));
    const row = new Map(model.layers.map((layer, index) => [layer, index]));
    const mark = (cells, kind) => {
      for (const [first, last, experts] of cells) {
        for (let layer = first; layer <= last; layer += 1) {
          if (!row.has(layer)) continue;
          for (const [a, b] of experts) kinds.fill(kind, row.get(layer) * model.experts + a, row.get(layer) * model.experts + b + 1);
        }
      }
    };
    mark(model.missing, 0);
    mark(model.home, HOME);
    return kinds;
  }

  draw() {
    const { layers, experts } = this.model;
    const room = this.frame.clientWidth;
    if (!room || !layers.length || !experts) return;
    const width = Math.max(LEAST_WIDTH, Math.min(MOST_WIDTH, room / (experts + 0.5)));
    const side = width / Math.sqrt(3), rise = side * 1.5;
    const wide = width * (experts + 0.5), high = rise * (layers.length - 1) + side * 2;
    const dots = Math.min(window.devicePixelRatio || 1, MOST_DOTS);
    this.width = width; this.rise = rise; this.side = side;
    this.canvas.width = Math.ceil(wide * dots); this.canvas.height = Math.ceil(high * dots);
    this.canvas.style.width = `${wide}px`; this.canvas.style.height = `${high}px`;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const fills = [colour("--cell-0"), colour("--cell-1"), colour("--cell-2"), colour("--cell-3"), colour("--cell-home")];
    const pen = this.canvas.getContext("2d");
    pen.scale(dots, dots);
    pen.strokeStyle = colour("--cell-edge"); pen.lineWidth = Math.max(0.7, width / 14);
    // A path for each colour of a row: one for a cell is many calls, one for all is slow to fill (8 times, of 48 x 128).
    for (let row = 0; row < layers.length; row += 1) {
      const paths = fills.map(() => new Path2D());
      for (let column = 0; column < experts; column += 1) {
        const kind = this.kinds[row * experts + column];
        if (kind !== NOTHING) this.hexagon(paths[kind], row, column);
      }
      fills.forEach((fill, kind) => { pen.fillStyle = fill; pen.fill(paths[kind]); });
      pen.stroke(paths[0]);
    }
    this.show();
  }

  // The mark is an element of its own: moving it draws no cell anew.
  show() {
    this.mark.hidden = this.at === null || !this.width;
    if (this.mark.hidden) return;
    const [row, column] = this.at, style = this.mark.style;
    style.width = style.height = `${2 * this.side}px`;
    style.left = `${this.width * (column + 0.5 + (row % 2) / 2) - this.side}px`; style.top = `${this.rise * row}px`;
  }

  hexagon(path, row, column) {
    const x = this.width * (column + 0.5 + (row % 2) / 2), y = this.side + this.rise * row, r = this.side * FILLED;
    for (let corner = 0; corner < 6; corner += 1) {
      const angle = Math.PI / 3 * corner + Math.PI / 6;
      if (corner === 0) path.moveTo(x + r * Math.cos(angle), y + r * Math.sin(angle));
      else path.lineTo(x + r * Math.cos(angle), y + r * Math.sin(angle));
    }
    path.closePath();
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.round((event.clientY - box.top - this.side) / this.rise);
    const column = Math.round((event.clientX - box.left) / this.width - 0.5 - (row % 2) / 2);
    return this.has(row, column) ? [row, column] : null;
  }

  has(row, column) {
    const { layers, experts } = this.model;
    return row >= 0 && row < layers.length && column >= 0 && column < experts && this.kinds[row * experts + column] !== NOTHING;
  }

  key(event) {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [row, column] = this.at ?? [0, 0];
    const next = this.at ? [row + step[0], Math.max(0, Math.min(this.model.experts - 1, column + step[1]))] : [0, 0];
    if (!this.has(...next)) return;
    this.point(next);
    const left = this.width * next[1], { scrollLeft, clientWidth } = this.frame;
    if (left < scrollLeft || left + 2 * this.width > scrollLeft + clientWidth) this.frame.scrollLeft = left - clientWidth / 2;
  }

  point(at) {
    this.at = at;
    this.show();
    write(this.told, at === null ? "" : this.describe(...at));
  }

  describe(row, column) {
    const layer = this.model.layers[row], index = row * this.model.experts + column;
    const live = this.replicas[index];
    const scarcity = this.scarcity === null ? Math.max(0, 1 - live / this.model.wanted_replicas) : this.scarcity[index] / 255;
    const names = this.holders(this.model.id, layer, column);
    const told = names.length > NAMED_HOLDERS ? [...names.slice(0, NAMED_HOLDERS), "and others"] : names;
    const home = this.kinds[index] === HOME ? "computed here; " : "";
    return `layer ${layer}, expert ${column}: ${home}${live ? many(live, "live replica") : "no live replica"}${told.length ? ` (${told.join(", ")})` : ""}, scarcity ${Math.round(scarcity * 100)} %`;
  }
}

const decode = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
