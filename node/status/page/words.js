// Numbers and times as people read them. Pure.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
const RUNS_NAMED = 6; // the rest is counted

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "unknown";
  let unit = 0;
  while (bytes >= 1024 && unit < SIZES.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit === 0 ? Math.round(bytes) : bytes.toFixed(bytes < 10 ? 2 : 1)} ${SIZES[unit]}`;
}

export const count = (number) => number.toLocaleString("en");

export const many = (number, thing) => `${count(number)} ${thing}${number === 1 ? "" : "s"}`;

export const fixed = (number, digits) => (number === null ? "" : number.toFixed(digits));

export const credits = (micro) => (micro / 1e6).toLocaleString("en", { maximumSignificantDigits: 3 });

export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const ago = (then, now) => (then === null ? "never" : now - then < 2 ? "now" : `${span(now - then)} ago`);

export const clock = (unix) => new Date(unix * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

// Cells of runs [[first layer, last layer, [[first expert, last expert], ...]], ...], shortly.
export function runs(cells) {
  const range = (first, last) => (first === last ? `${first}` : `${first}-${last}`);
  const ranges = (experts) => experts.slice(0, RUNS_NAMED).map((each) => range(...each)).concat(experts.length > RUNS_NAMED ? ["..."] : []).join(", ");
  return cells.slice(0, RUNS_NAMED)
    .map(([first, last, experts]) => `layer${first === last ? "" : "s"} ${range(first, last)}: experts ${ranges(experts)}`)
    .concat(cells.length > RUNS_NAMED ? [`and ${cells.length - RUNS_NAMED} more runs`] : [])
    .join("; ");
}

export function holds(cells, layer, expert) {
  return cells.some(([first, last, experts]) => layer >= first && layer <= last && experts.some(([a, b]) => expert >= a && expert <= b));
}
