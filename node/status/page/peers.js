// The table of peers: rows are kept and changed in place, and only as many are made as somebody looks at.

import { byId, cell, element, facts, put, write } from "./elements.js";
import { ago, clock, count, credits, fixed, runs } from "./words.js";

const SHOWN = 100; // rows at first
const AT_ONCE = 40; // rows made in one go: a thousand are half a second of work
const NAMES = new Intl.Collator([], { sensitivity: "base", numeric: true });
const ORDER = { online: 0, heard: 1, offline: 2 };
const COLOURS = { online: "badge good", heard: "badge", offline: "badge bad" };

export class Peers {
  constructor(feed) {
    this.feed = feed;
    this.rows = new Map();
    this.due = new Set(); // ids of rows that show what is no longer so
    this.most = SHOWN;
    this.body = byId("peers").tBodies[0];
    this.columns = [...byId("peers").tHead.rows[0].cells].map((each) => [each.textContent, each.className]);
    byId("find").addEventListener("input", () => { this.most = SHOWN; this.update(); });
    byId("more").addEventListener("click", () => { this.most = Infinity; this.update(); });
  }

  // Peers that have changed, null: any may have. `update` shows it.
  note(ids) {
    for (const id of ids ?? this.rows.keys()) this.due.add(id);
  }

  update() {
    const { peers, status } = this.feed;
    if (!status) return;
    const wanted = byId("find").value.trim().toLowerCase();
    const matches = (peer) => !wanted || [peer.name, peer.id, peer.address, peer.state, peer.route?.kind ?? ""].some((text) => text.toLowerCase().includes(wanted));
    const found = [...peers.values()].filter(matches).sort(compare);
    const shown = found.slice(0, this.most);
    let online = 0;
    for (const peer of peers.values()) online += peer.connected;
    write(byId("peers-count"), peers.size ? `${count(online)} online of ${count(peers.size + status.peers_left_out)}` : "");
    byId("peers-scroll").hidden = !shown.length;
    byId("no-peers").hidden = peers.size > 0;
    byId("find-label").hidden = !peers.size;
    byId("none-found").hidden = !peers.size || shown.length > 0;
    const more = byId("more");
    more.hidden = shown.length === found.length;
    write(more, `Show all ${count(found.length)}`);

    const keep = new Set(shown.map((peer) => peer.id));
    for (const [id, row] of this.rows) {
      if (!keep.has(id)) { row.detail?.remove(); row.remove(); this.rows.delete(id); }
    }
    let place = this.body.firstElementChild, room = AT_ONCE;
    for (const peer of shown) {
      let row = this.rows.get(peer.id);
      const isNew = row === undefined;
      if (isNew && (room -= 1) < 0) {
        clearTimeout(this.later);
        this.later = setTimeout(() => this.update(), 0);
        return;
      }
      if (isNew) { row = this.make(peer); this.rows.set(peer.id, row); }
      if (this.due.delete(peer.id) || isNew) this.fill(row, peer);
      if (row === place) place = row.nextElementSibling;
      else put(this.body, row, place);
      if (row.detail) {
        if (row.detail === place) place = place.nextElementSibling;
        else put(this.body, row.detail, place);
      }
    }
    this.due.clear(); // the others have no row
  }

  // What grows older by itself.
  age(now) {
    for (const [id, row] of this.rows) {
      const peer = this.feed.peers.get(id);
      if (peer) cell(row, 6, peer.connected ? "now" : ago(peer.last_seen, now));
    }
  }

  make(peer) {
    const row = element("tr", { "data-peer": peer.id }, ...this.columns.map(([label, kind]) => element("td", { "data-label": label, class: kind || null })));
    row.toggle = element("button", { type: "button", class: "name", "aria-expanded": "false" });
    row.toggle.addEventListener("click", () => this.toggle(peer.id));
    row.short = element("small");
    row.cells[0].append(row.toggle, row.short);
    row.state = element("span");
    row.cells[1].append(row.state);
    return row;
  }

  fill(row, peer) {
    write(row.toggle, peer.name || peer.short_id);
    write(row.short, peer.name ? peer.short_id : "");
    write(row.state, peer.state);
    row.state.className = COLOURS[peer.state];
    const route = peer.route;
    cell(row, 2, route ? route.kind : "", route ? route.reason : peer.reason);
    cell(row, 3, peer.address);
    cell(row, 4, peer.rtt_ms === null ? "" : `${fixed(peer.rtt_ms, 1)} ms`);
    cell(row, 5, peer.loss === null ? "" : `${fixed(peer.loss * 100, 2)} %`);
    cell(row, 6, peer.connected ? "now" : ago(peer.last_seen, Date.now() / 1000));
    cell(row, 7, count(peer.holds.reduce((sum, held) => sum + held.cells, 0)));
    cell(row, 8, count(peer.calls.made));
    cell(row, 9, `${count(peer.calls.failed)}, ${count(peer.calls.late)}`);
    cell(row, 10, peer.credit === null ? "" : credits(peer.credit * 1e6));
    if (row.detail) this.describe(row.detail, peer);
  }

  toggle(id) {
    const row = this.rows.get(id);
    if (row.detail) { row.detail.remove(); row.detail = null; } else {
      row.detail = element("tr", { class: "detail" }, element("td", { colspan: this.columns.length }, element("dl", { class: "facts" })));
      this.describe(row.detail, this.feed.peers.get(id));
      row.after(row.detail);
    }
    row.toggle.setAttribute("aria-expanded", String(Boolean(row.detail)));
  }

  describe(detail, peer) {
    const model = (id) => this.feed.status.models.find((each) => each.id === id)?.name || id.slice(0, 12);
    facts(detail.querySelector("dl"), [
      ["peer id", peer.id],
      ...peer.holds.map((held) => [`serves of ${model(held.model)}`, runs(held.experts)]),
      ["not asked by this node because", peer.unusable],
      ["panal", peer.version || "unknown"],
      ["can be reached by strangers", `${{ public: "yes", private: "no" }[peer.reach] ?? "unknown"}${peer.relays ? "; relays for others" : ""}`],
      ["connected since", peer.since === null ? "not connected" : clock(peer.since)],
      ["by", peer.route ? `${peer.route.transport.toUpperCase()}${peer.route.via ? ` through ${peer.route.via}` : ""}` : ""],
      ["calls it made here", count(peer.calls.served)],
      ["a call there waits", peer.load_ms === null ? "" : `${count(peer.load_ms)} ms`],
    ].filter(([, text]) => text));
  }
}

function compare(one, other) {
  return ORDER[one.state] - ORDER[other.state] || NAMES.compare(one.name, other.name) || (one.id < other.id ? -1 : 1);
}
