// The table of peers: rows are kept and changed in place, and only as many are made as somebody looks at.

import { byId, cell, element, write } from "./elements.js";
import { ago, clock, count, fixed, runs } from "./words.js";

const SHOWN = 100; // rows at first
const AT_ONCE = 40; // rows made in one frame: a thousand are half a second of work
const NAMES = new Intl.Collator([], { sensitivity: "base", numeric: true });
const COLUMNS = [["peer", ""], ["state", ""], ["route", ""], ["address", ""], ["RTT", "n"], ["loss", "n"], ["last seen", ""], ["cells", "n"], ["calls", "n"], ["failed, late", "n"], ["credit", "n"]];
const ORDER = { online: 0, heard: 1, offline: 2 };
const COLOURS = { online: "badge good", heard: "badge", offline: "badge bad" };

export class Peers {
  constructor(feed) {
    this.feed = feed;
    this.rows = new Map();
    this.open = new Set();
    this.most = SHOWN;
    this.body = byId("peers").tBodies[0];
    byId("find").addEventListener("input", () => { this.most = SHOWN; this.update(null); });
    byId("more").addEventListener("click", () => { this.most = Infinity; this.update(null); });
  }

  // changed: ids, or null for all
  update(changed) {
    const { peers, status } = this.feed;
    const wanted = byId("find").value.trim().toLowerCase();
    const matches = (peer) => !wanted || [peer.name, peer.id, peer.address, peer.state, peer.route?.kind ?? ""].some((text) => text.toLowerCase().includes(wanted));
    const found = [...peers.values()].filter(matches).sort(compare);
    const shown = found.slice(0, this.most);
    const online = [...peers.values()].filter((peer) => peer.connected).length;
    write(byId("peers-count"), peers.size ? `${count(online)} online of ${count(peers.size + status.peers_left_out)}` : "");
    byId("peers").hidden = !shown.length;
    byId("no-peers").hidden = peers.size > 0;
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
        this.later = setTimeout(() => this.update(new Set()), 0);
        break;
      }
      if (isNew) { row = this.make(peer); this.rows.set(peer.id, row); }
      if (isNew || changed === null || changed.has(peer.id)) this.fill(row, peer);
      if (row === place) place = row.nextElementSibling;
      else this.body.insertBefore(row, place);
      if (row.detail) {
        if (row.detail === place) place = place.nextElementSibling;
        else this.body.insertBefore(row.detail, place);
      }
    }
  }

  // Once a second or less: what grows older by itself.
  age(now) {
    for (const [id, row] of this.rows) {
      const peer = this.feed.peers.get(id);
      if (peer) cell(row, 6, peer.connected ? "now" : ago(peer.last_seen, now));
    }
  }

  make(peer) {
    const row = element("tr", { "data-peer": peer.id }, ...COLUMNS.map(([label, kind]) => element("td", { "data-label": label, class: kind || null })));
    row.toggle = element("button", { type: "button", class: "name", "aria-expanded": "false" });
    row.toggle.addEventListener("click", () => this.toggle(peer.id));
    row.cells[0].append(row.toggle, element("small"));
    row.state = element("span");
    row.cells[1].append(row.state);
    return row;
  }

  fill(row, peer) {
    write(row.toggle, peer.name || "no name");
    write(row.cells[0].querySelector("small"), peer.short_id);
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
    cell(row, 10, peer.credit === null ? "" : fixed(peer.credit, 3));
    if (row.detail) this.describe(row.detail.cells[0], peer);
  }

  toggle(id) {
    const row = this.rows.get(id);
    if (row.detail) { row.detail.remove(); row.detail = null; } else {
      row.detail = element("tr", { class: "detail" }, element("td", { colspan: COLUMNS.length }));
      this.describe(row.detail.cells[0], this.feed.peers.get(id));
      row.after(row.detail);
    }
    row.toggle.setAttribute("aria-expanded", String(Boolean(row.detail)));
  }

  describe(target, peer) {
    const model = (id) => this.feed.status.models.find((each) => each.id === id)?.name || id.slice(0, 12);
    const told = [
      ["id", peer.id],
      ["version", peer.version || "unknown"],
      ["reachable", `${peer.reach}${peer.relays ? ", relays for others" : ""}`],
      ["connected since", peer.since === null ? "not connected" : clock(peer.since)],
      ["by", peer.route ? `${peer.route.transport}${peer.route.via ? ` through ${peer.route.via}` : ""}` : ""],
      ["calls it made here", count(peer.calls.served)],
      ["its load", peer.load_ms === null ? "unknown" : `${count(peer.load_ms)} ms`],
      ...peer.holds.map((held) => [`holds of ${model(held.model)}`, runs(held.experts)]),
      ["not of use because", peer.unusable],
    ].filter(([, text]) => text);
    target.replaceChildren(element("dl", { class: "facts" }, ...told.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text)))));
  }
}

function compare(one, other) {
  return ORDER[one.state] - ORDER[other.state] || NAMES.compare(one.name, other.name) || (one.id < other.id ? -1 : 1);
}
