// This node: what it is, what it does, how it can be reached.

import { byId, facts, lines, write } from "./elements.js";
import { count, credits, many, runs, size, span } from "./words.js";

export function showNode(node, gateway, market) {
  document.title = `${node.name || node.short_id} - panal`;
  write(byId("title"), node.name || "panal node");
  write(byId("short-id"), node.short_id);
  const [word, colour] = standing(node, gateway);
  const state = byId("state");
  state.hidden = false;
  write(state, word);
  state.className = `badge ${colour}`;
  const { memory, load, traffic, work, relay } = node;
  facts(byId("node"), [
    ["peer id", node.peer_id],
    ["serves", node.serves.map((each) => `${called(each)}: ${many(each.cells, "cell")}, ${size(each.bytes)}`).join("; ") || "no experts ([[serve]] in its config says which)"],
    ["running for", `${span(node.uptime_seconds)}, panal ${node.version}`],
    ["swarm", `${node.swarm.name}, ${node.swarm.private ? "private" : "open to all"}`],
    ["memory", memory.rss_bytes === null ? "unknown" : `${size(memory.rss_bytes)}, of it ${size(memory.mapped_bytes)} mapped from files`],
    ["load", `${load.cpu === null ? "unknown" : `${Math.round(load.cpu * 100)} % of ${many(load.cores, "core")}`}${load.wait_ms === null ? "" : `, a call waits ${count(load.wait_ms)} ms`}`],
    ["up, down now", `${size(traffic.up)}/s, ${size(traffic.down)}/s`],
    ["up, down in all", `${size(traffic.sent_bytes)}, ${size(traffic.received_bytes)}`],
    ...(node.serves.length || work.calls ? [["calls answered", `${count(work.calls)}${work.refused ? `, ${count(work.refused)} refused` : ""}${work.calls ? `, ${span(work.compute_seconds)} of computing` : ""}`]] : []),
    ...(work.chunk_bytes ? [["weights given away", size(work.chunk_bytes)]] : []),
    ...(market ? account(market) : []),
    ...(relay.serving ? [["relays for", `${count(relay.serving.reservations)} of ${many(relay.serving.max_reservations, "peer")}, ${many(relay.serving.circuits, "connection")} now, ${size(relay.serving.relayed_bytes)} in all`]] : []),
  ]);
  const reach = node.reach;
  write(byId("reach-verdict"), `${reach.verdict}${reach.reason ? `: ${reach.reason}` : ""}`);
  lines(byId("evidence"), [
    ...reach.evidence,
    `mapping ${reach.mapping}, filtering ${reach.filtering}${reach.udp === null ? "" : reach.udp ? ", UDP gets out" : ", UDP does not get out"}`,
  ]);
  byId("slices").hidden = !node.serves.length;
  lines(byId("slices").querySelector("ul"), node.serves.flatMap((each) => [
    `${called(each)}: ${runs(each.experts)}`,
    ...(each.budget_bytes === null ? [] : [`chosen by the node within ${size(each.budget_bytes)}: ${each.why}`]),
  ]));
  const relayed = relay.serving ? relay.serving.addresses.map((each) => `as a relay: ${each}`) : [];
  lines(byId("addresses").querySelector("ul"), [...node.addresses, ...relay.using.map((each) => `through a relay: ${each}`), ...relayed]);
}

// What is owed, what is asked, what was spent.
const account = (market) => [
  ["credit", `others owe ${credits(market.owed)}, this node owes ${credits(market.owes)}`],
  ...(market.asks.length ? [["asks a pair", market.asks.map((each) => `${count(Math.round(each.mean))} micro-credits${each.lowest === each.highest ? "" : ` (${count(each.lowest)} to ${count(each.highest)})`}`).join("; ")]] : []),
  ...(market.holders_answered + market.holders_silent + market.holders_heard ? [["other holders", `${count(market.holders_answered)} answer, ${count(market.holders_silent)} do not, ${count(market.holders_heard)} not asked yet`]] : []),
  ...(market.spent_today || market.budget_day !== null ? [["spent today", `${credits(market.spent_today)}${market.budget_day === null ? "" : ` of ${credits(market.budget_day)}`} credits`]] : []),
];

const called = (served) => served.name || served.architecture || served.model.slice(0, 12);

// In one word what this node is for others, and its colour.
function standing(node, gateway) {
  if (node.state === "paused") return ["paused", "mid"];
  if (node.state === "serving") return ["serving", "good"];
  if (node.relay.serving) return ["relay", "good"];
  return [gateway ? "asks, serves nothing" : "serves nothing", ""];
}
