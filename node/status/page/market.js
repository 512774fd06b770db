// Who owes whom, and whose answers were found false. Where everything is free, none of it is shown.

import { byId, cell, element, facts } from "./elements.js";
import { clock, count, credits } from "./words.js";

export function showMarket(market, peers) {
  byId("market-section").hidden = market === null;
  if (market === null) return;
  const called = (id) => peers.get(id)?.name || id.slice(-8);
  byId("no-credits").hidden = market.credits.length > 0;
  fill("credits", market.credits.map((each) => [
    [called(each.peer), peers.get(each.peer)?.name ? each.peer.slice(-8) : ""],
    [amount(each.owes)],
    [amount(each.unsigned)],
    [credits(each.limit)],
    [amount(-each.owes)],
    [amount(each.due)],
    [note(each)],
  ]));
  const audits = market.audits;
  byId("audits-part").hidden = audits === null;
  if (audits === null) return;
  facts(byId("audited"), [
    ["run again", audits.share ? `${+(audits.share * 100).toFixed(1)} % of the answers that come here` : "nothing; who was found out before is not asked all the same"],
    ["answers run again", `${count(audits.checked)}${audits.checked ? `, ${count(audits.agreed)} agreed, of them ${count(audits.same_bytes)} byte for byte` : ""}`],
    ...(audits.unsettled ? [["not settled", count(audits.unsettled)]] : []),
    ...(audits.convicted ? [["found false", count(audits.convicted)]] : []),
    ...(audits.waiting || audits.missed ? [["waiting", `${count(audits.waiting)}${audits.missed ? `; for ${count(audits.missed)} nobody had time` : ""}`]] : []),
  ]);
  fill("audits", audits.peers.map((each) => [
    [called(each.peer), peers.get(each.peer)?.name ? each.peer.slice(-8) : ""],
    [count(each.checked)],
    [count(each.agreed)],
    [count(each.checked - each.agreed)],
    [count(each.marks)],
    [count(each.strikes)],
    [each.standing.toFixed(1), each.hearsay ? `${each.hearsay.toFixed(1)} by hearsay` : ""],
    [each.build],
    [each.until === null ? (each.suspected ? "asked, in dispute" : "asked") : `not until ${clock(each.until)}`],
  ]));
  byId("found-part").hidden = !audits.evidence.length;
  fill("found", audits.evidence.map((each) => [
    [clock(each.at)],
    [called(each.peer)],
    [count(each.layer)],
    [count(each.pairs)],
    [each.cosine.toExponential(1)],
    [each.length === null ? "infinite" : `${(each.length * 100).toPrecision(2)} %`],
    [each.reason, each.pardoned === null ? "" : `pardoned ${clock(each.pardoned)}`],
  ]));
}

const amount = (micro) => (micro > 0 ? credits(micro) : "");

// What is wrong with an account, the gravest first; and what waits.
function note(each) {
  const wrong = each.fault
    || (each.refuses && `it computes nothing for this node: ${each.refuses}`)
    || (each.refused_here && `this node computes nothing for it: ${each.refused_here}`)
    || (each.refused && `it took no receipt: ${each.refused}`);
  const waits = each.waiting ? `${credits(each.waiting)} signed off, it has not taken it yet` : "";
  return [wrong, waits].filter(Boolean).join("; ");
}

// Rows are kept, and written where they differ; a table without any is not shown.
function fill(id, rows) {
  const table = byId(id), body = table.tBodies[0];
  byId(`${id}-scroll`).hidden = !rows.length;
  const labels = [...table.tHead.rows[0].cells].map((each) => [each.textContent, each.className]);
  while (body.rows.length > rows.length) body.lastElementChild.remove();
  while (body.rows.length < rows.length) body.append(element("tr", {}, ...labels.map(([label, kind]) => element("td", { "data-label": label, class: kind || null }))));
  rows.forEach((cells, index) => cells.forEach(([text, more], column) => cell(body.rows[index], column, text, more)));
}
