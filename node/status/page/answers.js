// The answers this node has given lately, with what they cost; and the state of its API.

import { byId, cell, element, facts } from "./elements.js";
import { ago, count, credits, fixed, size } from "./words.js";

const COST = 12; // its column, there when anything costs anything
const PAID_NAMED = 3; // peers

export function showGateway(gateway) {
  byId("answers-section").hidden = gateway === null;
  if (gateway === null) return;
  facts(byId("gateway"), [
    ["state", gateway.ready ? "ready" : gateway.reason || "not ready yet"],
    ["under way", `${count(gateway.active)} of ${count(gateway.slots)}${gateway.waiting ? `, ${count(gateway.waiting)} of ${count(gateway.queue)} wait` : ""}`],
    ["tokens/s, all together", fixed(gateway.tokens_per_second, 1)],
    ["answers", [`${count(gateway.answered)} given`, ...[["left", "given up"], ["failed", "failed"], ["refused", "refused"]].filter(([key]) => gateway[key]).map(([key, word]) => `${count(gateway[key])} ${word}`)].join(", ")],
    ["tokens written", count(gateway.tokens)],
    ["tokens read", `${count(gateway.prompt_tokens)}${gateway.cached_tokens ? `, of them ${count(gateway.cached_tokens)} known` : ""}`],
    ["context", `${count(gateway.context)} tokens`],
  ]);
}

export function showAnswers(answers, peers, now) {
  const table = byId("answers"), body = table.tBodies[0];
  byId("answers-scroll").hidden = byId("answers-words").hidden = !answers.length;
  byId("no-answers").hidden = answers.length > 0;
  const labels = [...table.tHead.rows[0].cells].map((each) => [each.textContent, each.className]);
  while (body.rows.length > answers.length) body.lastElementChild.remove();
  while (body.rows.length < answers.length) body.append(element("tr", {}, ...labels.map(([label, kind]) => element("td", { "data-label": label, class: kind || null }))));
  const priced = answers.some((answer) => answer.trips.cost > 0);
  byId("cost-words").hidden = table.tHead.rows[0].cells[COST].hidden = !priced;
  answers.forEach((answer, index) => {
    const row = body.rows[index], trips = answer.trips;
    const paid = Object.entries(trips.cost_by_peer).sort((a, b) => b[1] - a[1]).slice(0, PAID_NAMED);
    row.cells[COST].hidden = !priced;
    const slowest = peers.get(trips.slowest_peer);
    [
      [ago(answer.at, now)],
      [count(answer.prompt_tokens), answer.cached_tokens ? `${count(answer.cached_tokens)} known` : ""],
      [count(answer.tokens), `in ${fixed(answer.prompt_seconds + answer.seconds, 1)} s`],
      [fixed(answer.tokens_per_second, 1)],
      [count(trips.passes)],
      [count(trips.trips)],
      [fixed(trips.trips_per_token, 2)],
      [trips.drafted ? `${count(trips.accepted)} of ${count(trips.drafted)}` : ""],
      [size(trips.sent_bytes)],
      [size(trips.received_bytes)],
      [`${fixed(trips.waited_seconds, 2)} s`],
      [`${fixed(trips.computed_seconds, 2)} s`],
      priced ? [credits(trips.cost), paid.map(([peer, cost]) => `${peers.get(peer)?.name || peer.slice(-8)} ${credits(cost)}`).join(", ")] : [""],
      [trips.slowest_peer ? slowest?.name || trips.slowest_peer.slice(-8) : ""],
      [answer.stopped, answer.error],
    ].forEach(([text, more], column) => cell(row, column, text, more));
  });
}
