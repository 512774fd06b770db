// A model's cells as a honeycomb: a row for each layer, a column for each expert, drawn on a canvas.

import { element, write } from "./elements.js";
import { count, holds, runs, size } from "./words.js";

const LEAST_WIDTH = 6; // of a cell in CSS pixels: below that nobody sees one; the comb scrolls instead
const MOST_WIDTH = 26;
const NAMED_HOLDERS = 5;

export class Comb {
  constructor(model, peers) {
    this.peers = peers;
    this.told = element("p", { class: "told", role: "status" });
    this.title = element("h3");
    this.about = element("p", { class: "quiet" });
    this.canvas = element("canvas", { tabindex: "0", role: "img" });
    this.frame = element("div", { class: "comb" }, this.canvas);
    const key = (name, text) => element("span", {}, element("i", { class: name }), text);
    this.legend = element("p", { class: "legend" }, key("c0", "nobody"), key("c1", "1 node"), key("c2", "2 nodes"), key("c3", "3 or more"), key("ch", "at home"));
    this.root = element("article", {}, this.title, this.about, this.legend, this.frame, this.told);
    this.at = null; // the cell under pointer or cursor: [row, column]
    this.canvas.addEventListener("pointermove", (event) => this.point(this.under(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.point(this.under(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.update(model);
  }

  update(model) {
    const before = this.model;
    this.model = model;
    const cells = model.layers.length * model.experts;
    write(this.title, `${model.name || model.short_id}`);
    const here = model.here.length ? `; here: ${model.here.join(" and ")}` : "";
    const bytes = model.expert_bytes === null ? "" : `, ${size(model.expert_bytes)} of experts`;
    const missing = model.missing_cells ? `; ${count(model.missing_cells)} served by nobody: ${runs(model.missing)}` : "; every cell has a holder";
    write(this.about, `${model.architecture || "unknown architecture"}, id ${model.short_id}, ${count(model.layers.length)} layers of ${count(model.experts)} experts${bytes}, ${count(model.nodes)} node${model.nodes === 1 ? "" : "s"}${here}${missing}`);
    this.canvas.setAttribute("aria-label", `${count(cells - model.missing_cells)} of ${count(cells)} cells have a holder; arrow keys go from cell to cell`);
    const same = before && before.replicas === model.replicas && before.scarcity === model.scarcity && JSON.stringify(before.home) === JSON.stringify(model.home);
    if (same) return;
    this.replicas = decode(model.replicas);
    this.scarcity = model.scarcity === null ? null : decode(model.scarcity);
    this.isHome = new Uint8Array(cells);
    const row = new Map(model.layers.map((layer, index) => [layer, index]));
    for (const [first, last, experts] of model.home) {
      for (let layer = first; layer <= last; layer += 1) {
        if (!row.has(layer)) continue;
        for (const [a, b] of experts) this.isHome.fill(1, row.get(layer) * model.experts + a, row.get(layer) * model.experts + b + 1);
      }
    }
    this.draw();
    if (this.at) this.point(this.at);
  }

  draw() {
    const { layers, experts } = this.model;
    const room = this.frame.clientWidth;
    if (!room || !layers.length || !experts) return;
    const width = Math.max(LEAST_WIDTH, Math.min(MOST_WIDTH, room / (experts + 0.5)));
    const side = width / Math.sqrt(3), rise = side * 1.5;
    const wide = width * (experts + 0.5), high = rise * (layers.length - 1) + side * 2;
    const dots = Math.min(window.devicePixelRatio || 1, 2);
    this.width = width; this.rise = rise; this.side = side;
    this.canvas.width = Math.ceil(wide * dots); this.canvas.height = Math.ceil(high * dots);
    this.canvas.style.width = `${wide}px`; this.canvas.style.height = `${high}px`;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const fills = [colour("--cell-0"), colour("--cell-1"), colour("--cell-2"), colour("--cell-3"), colour("--cell-home")];
    const pen = this.canvas.getContext("2d");
    pen.scale(dots, dots);
    // One path for each colour: six thousand cells are five fills.
    const paths = fills.map(() => new Path2D());
    for (let row = 0; row < layers.length; row += 1) {
      for (let column = 0; column < experts; column += 1) {
        const index = row * experts + column;
        const kind = this.isHome[index] ? 4 : Math.min(3, this.replicas[index]);
        this.hexagon(paths[kind], row, column, 0.92);
      }
    }
    fills.forEach((fill, kind) => { pen.fillStyle = fill; pen.fill(paths[kind]); });
    pen.strokeStyle = colour("--cell-edge"); pen.lineWidth = Math.max(0.7, width / 14); pen.stroke(paths[0]);
    if (this.at) {
      const mark = new Path2D();
      this.hexagon(mark, ...this.at, 1.1);
      pen.strokeStyle = colour("--ink"); pen.lineWidth = 2; pen.stroke(mark);
    }
  }

  hexagon(path, row, column, share) {
    const x = this.width * (column + 0.5 + (row % 2) / 2), y = this.side + this.rise * row, r = this.side * share;
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
    return row >= 0 && row < this.model.layers.length && column >= 0 && column < this.model.experts;
  }

  key(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const next = this.at ? [this.at[0] + step[0], this.at[1] + step[1]] : [0, 0];
    if (this.has(...next)) this.point(next);
  }

  point(at) {
    const moved = String(at) !== String(this.at);
    this.at = at;
    if (moved) this.draw();
    write(this.told, at === null ? "" : this.describe(...at));
  }

  describe(row, column) {
    const layer = this.model.layers[row], index = row * this.model.experts + column;
    const live = this.replicas[index];
    const scarcity = this.scarcity === null ? Math.max(0, 1 - live / this.model.wanted_replicas) : this.scarcity[index] / 255;
    const holders = [];
    for (const peer of this.peers().values()) {
      if (peer.state === "offline" || !peer.holds.some((held) => held.model === this.model.id && holds(held.experts, layer, column))) continue;
      if (holders.push(peer.name || peer.short_id) > NAMED_HOLDERS) { holders[NAMED_HOLDERS] = "and others"; break; }
    }
    const home = this.isHome[index] ? "computed at home; " : "";
    return `layer ${layer}, expert ${column}: ${home}${live} live replica${live === 1 ? "" : "s"}, scarcity ${Math.round(scarcity * 100)} %${holders.length ? ` (${holders.join(", ")})` : ""}`;
  }
}

const decode = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
