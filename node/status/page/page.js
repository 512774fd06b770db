// The page of a panal node: what its events tell, section by section (docs/status-api.md).

import { Comb } from "./comb.js";
import { byId, cell, element, facts, lines, write } from "./elements.js";
import { Feed } from "./feed.js";
import { Peers } from "./peers.js";
import { ago, clock, count, fixed, runs, size, span } from "./words.js";

const combs = new Map();

const show = {
  node(node) {
    document.title = `${node.name || node.short_id} - panal`;
    write(byId("title"), node.name || "panal node");
    write(byId("short-id"), node.short_id);
    write(byId("version"), `panal ${node.version}`);
    const state = byId("state");
    state.hidden = false;
    write(state, { serving: "serving", paused: "paused", nothing: "serves nothing" }[node.state]);
    state.className = `badge ${{ serving: "good", paused: "mid", nothing: "" }[node.state]}`;
    const { memory, load, traffic, work } = node;
    facts(byId("node"), [
      ["peer id", node.peer_id],
      ["running for", span(node.uptime_seconds)],
      ["swarm", `${node.swarm.name}${node.swarm.private ? ", private" : ", open"}`],
      ["serves", node.serves.map((each) => `${each.name || each.architecture || each.model.slice(0, 12)}: ${count(each.cells)} cells, ${size(each.bytes)}`).join("; ") || "nothing"],
      ["memory", `${size(memory.rss_bytes)} resident, of it ${size(memory.mapped_bytes)} weights`],
      ["load", `${load.cpu === null ? "unknown" : `${Math.round(load.cpu * 100)} % of ${load.cores} cores`}${load.wait_ms === null ? "" : `, ${count(load.wait_ms)} ms to wait`}`],
      ["up, down", `${size(traffic.up)}/s, ${size(traffic.down)}/s`],
      ["sent, received", `${size(traffic.sent_bytes)}, ${size(traffic.received_bytes)}`],
      ["calls answered", `${count(work.calls)}${work.refused ? `, ${count(work.refused)} refused` : ""}`],
      ...(node.relay.serving ? [["relays", `${node.relay.serving.reservations} of ${node.relay.serving.max_reservations} peers, ${node.relay.serving.circuits} circuits`]] : []),
    ]);
    const reach = node.reach;
    write(byId("reach-verdict"), `${reach.verdict}${reach.reason ? `: ${reach.reason}` : ""}`);
    lines(byId("evidence"), [
      ...reach.evidence,
      `mapping ${reach.mapping}, filtering ${reach.filtering}${reach.udp === null ? "" : reach.udp ? ", UDP gets out" : ", UDP does not get out"}`,
      ...node.serves.map((each) => `serves ${each.name || each.model.slice(0, 12)}: ${runs(each.experts)}`),
    ]);
    lines(byId("addresses").querySelector("ul"), [...node.addresses, ...node.relay.using]);
    showPause(node);
  },

  models(models) {
    byId("no-models").hidden = models.length > 0;
    const known = new Set(models.map((model) => model.id));
    for (const [id, comb] of combs) if (!known.has(id)) { comb.root.remove(); combs.delete(id); }
    models.forEach((model, index) => {
      let comb = combs.get(model.id);
      if (comb === undefined) { comb = new Comb(model, () => feed.peers); combs.set(model.id, comb); }
      else comb.update(model);
      const place = byId("models").children[index];
      if (place !== comb.root) byId("models").insertBefore(comb.root, place ?? null);
    });
  },

  answers(answers) {
    const table = byId("answers"), body = table.tBodies[0];
    table.hidden = !answers.length;
    byId("no-answers").hidden = answers.length > 0;
    const labels = [...table.tHead.rows[0].cells].map((each) => [each.textContent, each.className]);
    while (body.rows.length > answers.length) body.lastElementChild.remove();
    while (body.rows.length < answers.length) body.append(element("tr", {}, ...labels.map(([label, kind]) => element("td", { "data-label": label, class: kind || null }))));
    answers.forEach((answer, index) => {
      const row = body.rows[index], trips = answer.trips;
      const slowest = feed.peers.get(trips.slowest_peer);
      [
        ago(answer.at, Date.now() / 1000), `${count(answer.prompt_tokens)} (${count(answer.cached_tokens)})`, count(answer.tokens), fixed(answer.tokens_per_second, 1),
        count(trips.passes), count(trips.trips), fixed(trips.trips_per_token, 2), trips.drafted ? `${count(trips.accepted)} of ${count(trips.drafted)}` : "",
        size(trips.sent_bytes), size(trips.received_bytes), `${fixed(trips.waited_seconds, 2)} s`, `${fixed(trips.computed_seconds, 2)} s`,
        trips.slowest_peer ? slowest?.name || trips.slowest_peer.slice(-8) : "", answer.stopped,
      ].forEach((text, column) => cell(row, column, text, column === 13 ? answer.error : ""));
    });
  },

  gateway(gateway) {
    byId("answers-section").hidden = gateway === null;
    if (gateway === null) return;
    facts(byId("gateway"), [
      ["state", gateway.ready ? "answers" : gateway.reason || "does not answer yet"],
      ["under way", `${gateway.active} of ${gateway.slots}, ${gateway.waiting} wait`],
      ["tokens/s, all together", fixed(gateway.tokens_per_second, 1)],
      ["answered", `${count(gateway.answered)}, ${count(gateway.left)} left early, ${count(gateway.failed)} failed, ${count(gateway.refused)} refused`],
      ["tokens written", count(gateway.tokens)],
      ["prompt tokens, known before", `${count(gateway.prompt_tokens)}, ${count(gateway.cached_tokens)}`],
      ["context", `${count(gateway.context)} tokens`],
    ]);
  },

  warnings(warnings) {
    const section = byId("warnings");
    section.hidden = !warnings.length;
    const colours = { error: "bad", warning: "mid", info: "" };
    const told = JSON.stringify(warnings);
    if (section.dataset.told === told) return;
    section.dataset.told = told;
    section.firstElementChild.replaceChildren(...warnings.map((each) => element("li", { class: colours[each.level] || "badge-plain", "data-code": each.code }, element("strong", {}, each.what), element("span", {}, each.advice))));
  },
};

// --- pausing ---

function showPause(node) {
  const button = byId("pause"), pause = node.pause;
  button.hidden = node.state === "nothing";
  const resumes = node.state === "paused" && pause?.by_hand;
  if (!button.disabled) write(button, resumes ? "Resume" : "Pause");
  button.dataset.path = resumes ? "/api/resume" : "/api/pause";
  // Schedule and idle rule are the config's: a button that did nothing would be a lie.
  if (node.state === "paused" && !pause?.by_hand) button.hidden = true;
  if (!button.dataset.failed) write(byId("pause-note"), pause ? `Nothing is served: ${pause.text}${pause.until ? ` (until ${clock(pause.until)})` : ""}` : "");
}

async function change(path) {
  return fetch(path, { method: "POST", credentials: "same-origin", headers: { "content-type": "application/json" }, body: "{}" });
}

byId("pause").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  button.disabled = true;
  delete button.dataset.failed;
  try {
    let answer = await change(button.dataset.path);
    if (answer.status === 403) { // a node that began anew may have another token: the page's own address sets it
      await fetch("/", { credentials: "same-origin", cache: "no-store" });
      answer = await change(button.dataset.path);
    }
    if (!answer.ok) throw new Error((await answer.json()).error?.message ?? `the node said ${answer.status}`);
  } catch (error) {
    button.dataset.failed = "yes";
    write(byId("pause-note"), `That did not work: ${error.message}`);
  } finally {
    button.disabled = false;
    if (feed.status) showPause(feed.status.node);
    button.focus();
  }
});

// --- the feed ---

const changedSections = new Set();
let changedPeers = new Set(); // null: all
let isDue = false;

function draw() {
  isDue = false;
  for (const section of changedSections) {
    if (section === "peers") peers.update(changedPeers);
    else show[section](feed.status[section]);
  }
  changedSections.clear();
  changedPeers = new Set();
}

// Several events of one moment are one drawing; a tab that nobody sees draws nothing.
function onChange(sections, ids) {
  for (const section of sections) changedSections.add(section);
  if (sections.has("peers")) changedPeers = ids === null || changedPeers === null ? null : new Set([...changedPeers, ...ids]);
  if (!isDue) { isDue = true; requestAnimationFrame(draw); }
}

function onState(state) {
  const badge = byId("feed");
  write(badge, state === "live" ? "live" : "no connection to the node; trying again");
  badge.className = `badge ${state === "live" ? "good" : "bad"}`;
}

const feed = new Feed(onChange, onState);
const peers = new Peers(feed);
setInterval(() => {
  if (document.hidden || !feed.status) return;
  peers.age(Date.now() / 1000);
  show.answers(feed.status.answers);
}, 5000);
