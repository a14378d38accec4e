// The data of the page. Rows are read at once; what is known of one cell is read when somebody opens it.
const MARKS = { pass: "✓", fail: "✗", flaky: "~", error: "!", skip: "–" };
const index = JSON.parse(document.getElementById("index").textContent);
const texts = index.texts;
const sets = index.parameters.map((pairs) => pairs.map(([name, value]) => [texts[name], texts[value]]));
const cells = index.cells.map((row, number) => ({
  number,
  id: row[0],
  spec: row[1],
  scenario: texts[row[2]],
  set: row[3],
  replica: row[4],
  verdict: index.statuses[row[5]],
  composite: row[6],
  seconds: row[7],
  cost: row[8],
  reason: texts[row[9]],
  checks: row[10],
  checkCount: row[11],
}));
const byId = new Map(cells.map((cell) => [cell.id, cell]));

function checksOf(cell) {
  return cell.checks.map(([name, status, score, message]) => ({
    name: texts[name], status: index.statuses[status], score, message: texts[message],
  }));
}

function parametersOf(cell) {
  return sets[cell.set].map(([name, value]) => `${name}=${value}`).join(", ");
}

// Each line but the first and the last is one cell, in the order of the rows.
let lines = null;
function detailsOf(cell) {
  lines ??= document.getElementById("details").textContent.split("\n").slice(1, -1);
  const line = (lines[cell.number] ?? "").replace(/,$/, "");
  return line === "" ? null : JSON.parse(line);
}

// What a search looks through, made when the first one begins.
let haystacks = null;
function haystackOf(cell) {
  haystacks ??= cells.map((one) => [
    one.id, index.specs[one.spec].id, one.scenario, parametersOf(one), one.verdict, one.reason,
    ...one.checks.filter((check) => index.statuses[check[1]] !== "pass").map((check) => `${texts[check[0]]} ${texts[check[3]]}`),
  ].join("\n").toLowerCase());
  return haystacks[cell.number];
}

function duration(seconds) {
  if (seconds > 0 && seconds < 0.001) return "less than 0.001 s";
  if (seconds < 0.995) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function money(dollars) {
  return !dollars ? "" : `$${dollars < 0.01 ? Number(dollars.toPrecision(2)) : dollars.toFixed(2)}`;
}

function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
