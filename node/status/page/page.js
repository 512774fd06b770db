// The page of a panal node: what its events tell, section by section (docs/status-api.md).

import { showAnswers, showGateway } from "./answers.js";
import { Comb } from "./comb.js";
import { byId, element, put, write } from "./elements.js";
import { Feed } from "./feed.js";
import { showMarket } from "./market.js";
import { listen, showPause } from "./pausing.js";
import { Peers } from "./peers.js";
import { showNode } from "./this_node.js";
import { clock, holds } from "./words.js";

const AGE_MS = 5000; // between changes of "12 s ago"
const combs = new Map();

const show = {
  node(node) {
    showNode(node, feed.status.gateway, feed.status.market);
    showPause(node);
  },

  models(models) {
    byId("no-models").hidden = models.length > 0;
    byId("legend").hidden = !models.length;
    const known = new Set(models.map((model) => model.id));
    for (const [id, comb] of combs) if (!known.has(id)) { comb.root.remove(); combs.delete(id); }
    models.forEach((model, index) => {
      let comb = combs.get(model.id);
      // Models that others serve are a line each, unless there is only that one.
      if (comb === undefined) { comb = new Comb(model, holders, model.here.length > 0 || models.length === 1); combs.set(model.id, comb); }
      else comb.update(model);
      const place = byId("models").children[index];
      if (place !== comb.root) put(byId("models"), comb.root, place ?? null);
    });
  },

  answers(answers) {
    showAnswers(answers, feed.peers, Date.now() / 1000);
  },

  gateway: showGateway,

  market(market) {
    showMarket(market, feed.peers);
  },

  warnings(warnings) {
    const section = byId("warnings"), colours = { error: "bad", warning: "mid", info: "plain" };
    const worth = warnings.filter((each) => each.code !== "paused"); // it stands beside the button
    section.hidden = !worth.length;
    const told = JSON.stringify(worth);
    if (section.dataset.told === told) return;
    section.dataset.told = told;
    section.firstElementChild.replaceChildren(...worth.map((each) => element("li", { class: colours[each.level] ?? "plain", "data-code": each.code }, element("strong", {}, each.what), element("span", {}, each.advice), element("small", {}, `since ${clock(each.since)}`))));
  },
};

// Names of those who serve a cell, this node among them.
function holders(model, layer, expert) {
  const has = (held) => held.model === model && holds(held.experts, layer, expert);
  const { node } = feed.status;
  const names = node.state === "serving" && node.serves.some(has) ? ["this node"] : [];
  for (const peer of feed.peers.values()) if (peer.state !== "offline" && peer.holds.some(has)) names.push(peer.name || peer.short_id);
  return names;
}

// --- the feed ---

const changedSections = new Set();
let isDue = false;

function draw() {
  isDue = false;
  for (const section of changedSections) {
    if (section === "peers") peers.update();
    else show[section](feed.status[section]);
  }
  changedSections.clear();
}

// Several events of one moment are one drawing; a tab that nobody sees draws nothing.
function onChange(sections, ids) {
  for (const section of sections) changedSections.add(section);
  if (sections.includes("peers")) peers.note(ids);
  if (sections.includes("gateway") || sections.includes("market")) changedSections.add("node"); // which shows some of both
  if (!isDue) { isDue = true; requestAnimationFrame(draw); }
}

function onState(state) {
  const badge = byId("feed");
  write(badge, state === "live" ? "live" : "no connection to the node; trying again");
  badge.className = `badge ${state === "live" ? "good" : "bad"}`;
  document.body.classList.toggle("stale", state !== "live");
}

const feed = new Feed(onChange, onState);
const peers = new Peers(feed);
listen(() => feed.status.node, ({ state, pause }) => Object.assign(feed.status.node, { state, pause }));
write(byId("api"), `${location.origin}/v1`);
setInterval(() => {
  if (document.hidden || !feed.status) return;
  peers.age(Date.now() / 1000);
  show.answers(feed.status.answers);
}, AGE_MS);
