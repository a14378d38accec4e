// One cell: its checks, what its agent did in order, what it changed, what it asked services for, what it printed.
const FILES = ["agent.stdout", "agent.stderr", "trace.jsonl", "diff.patch", "audit.jsonl"];

function cellPage(cell, neighbours) {
  const details = detailsOf(cell);
  const spec = index.specs[cell.spec];
  const facts = [
    spec.id, cell.scenario === spec.id ? "" : `scenario ${cell.scenario}`, parametersOf(cell), `replica ${cell.replica}`,
    cell.composite === "–" ? "not graded" : `composite ${cell.composite}${details?.mark ?? ""}, needs ${spec.threshold}`, duration(cell.seconds),
    details?.usage || money(cell.cost), details && details.attempts > 1 ? `attempt ${details.attempts}` : "",
  ].filter(Boolean);
  return [
    make("nav", { class: "path", "aria-label": "Cells" },
      make("a", { href: hashOf(null), class: "back" }, "← All cells"),
      ...neighbours.map(([label, other]) => (other ? make("a", { href: hashOf(other), title: other.id }, label) : make("span", {}, label)))),
    make("header", { class: `top ${cell.verdict}` },
      make("h1", { tabindex: "-1" }, `${MARKS[cell.verdict]} ${cell.id}`),
      make("div", { class: "facts" }, ...facts.map((fact) => make("span", {}, fact))),
      cell.reason ? prose(cell.reason) : null,
      details?.error && details.error !== cell.reason ? block(details.error, "Error") : null),
    ...cellBody(cell, details),
  ];
}

// What is below the head of a cell; of a run's only cell it stands below the head of the run.
function cellBody(cell, details) {
  return [
    ...(details?.forbidden ?? []).map((rule) => section(`Forbidden: ${rule.rule}`, block(rule.text, rule.rule))),
    ...(cell.checkCount ? [checksSection(cell, details)] : []),
    ...(details ? evidence(details) : [make("p", { class: "notes" },
      "This page has only the row of this cell. The rest is in results.json and in the files below.")]),
    filesSection(cell, details),
  ].filter(Boolean);
}

function section(title, ...children) {
  return make("section", {}, make("h2", {}, title), ...children);
}

function checksSection(cell, details) {
  const checks = details?.checks ?? checksOf(cell);
  const left = cell.checkCount - checks.length;
  return section("Checks", make("ol", { class: "checks" }, ...checks.map((check) => checkItem(check, details))),
    left ? make("p", {}, `${counted(left, "check")} more in results.json`) : null);
}

function checkItem(check, details) {
  const small = [check.gate, check.type, check.weight && `weight ${check.weight}`, check.seconds ? duration(check.seconds) : "",
    check.line ? `${details.path}:${check.line}` : ""].filter(Boolean);
  const isBad = check.status === "fail" || check.status === "error";
  const found = (check.found ?? []).map(foundValue);
  return make("li", { class: check.status }, make("div", { class: "check" }, state(check.status), make("code", { class: "name" }, check.name),
    make("span", { class: "score" }, check.score), make("small", {}, small.join(" · "))),
    check.about ? make("p", { class: "about" }, check.about) : null,
    check.message ? (/\n/.test(check.message) || check.message.length > 300 ? block(check.message, `Message of ${check.name}`) : prose(check.message)) : null,
    found.length ? make("details", { open: isBad && found.length <= 6 }, make("summary", {}, "What it found"), make("dl", {}, ...found.flat())) : null);
}

function foundValue(value) {
  const body = value.rows
    ? make("div", { class: "scroll" }, make("table", { class: "rows" },
      make("thead", {}, make("tr", {}, ...value.columns.map((column) => make("th", { scope: "col" }, column)))),
      make("tbody", {}, ...value.rows.map((row) => make("tr", {}, ...row.map((item) => make("td", {}, item)))))))
    : /\n/.test(value.text) || value.text.length > 120 ? block(value.text, value.name) : make("code", {}, value.text);
  return [make("dt", {}, value.name), make("dd", {}, body)];
}

function evidence(details) {
  const found = [];
  if (details.asked.length) {
    found.push(section("What it was asked", ...details.asked.flatMap(([title, text]) => [make("p", {}, `${title}:`), block(text, title)])));
  }
  if (details.agent) {
    found.push(section("Agent", make("p", {}, details.agent.ended),
      ...details.agent.printed.flatMap(([title, text]) => [make("p", {}, `${title}:`), block(text, title)])));
  } else {
    found.push(section("Agent", make("p", {}, "No agent ran.")));
  }
  if (details.trace.length > 1) found.push(section("What it did, in order", timeline(details.trace)));
  if (details.diff) found.push(section("What it changed", patch(details.diff)));
  if (details.audit.length) found.push(section("What was observed", timeline(details.audit)));
  const told = [...details.notices, ...details.left_out];
  if (told.length) found.push(section("Notes", make("ul", {}, ...told.map((note) => make("li", {}, prose(note))))));
  return found;
}

function timeline(events) {
  const began = events.map((event) => Date.parse(event.at)).find((moment) => !Number.isNaN(moment));
  return make("ol", { class: "timeline" }, ...events.map((event) => {
    const moment = Date.parse(event.at);
    const after = Number.isNaN(moment) ? "" : `${moment < began ? "−" : "+"}${duration(Math.abs(moment - began) / 1000)}`;
    return make("li", { class: event.kind },
      make("time", after ? { datetime: event.at, title: event.at } : {}, after), make("div", {},
        make("strong", {}, event.kind.replaceAll("_", " ")), " ", make("span", {}, event.title), event.text ? block(event.text, event.title) : null));
  }));
}

// A unified diff, a class for each kind of line; a fold for each file where there are several.
function patch(text) {
  const parts = text.split(/^(?=(?:# )?diff --git )/m).filter(Boolean);
  const shown = parts.map((part) => {
    const lines = part.replace(/\n$/, "").split("\n");
    const body = make("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": lines[0] }, ...lines.map((line) => make("span", { class: kindOfLine(line) }, `${line}\n`)));
    const title = lines[0].replace(/^(# )?diff --git /, "");
    const count = (kind) => lines.filter((line) => kindOfLine(line) === kind).length;
    return make("details", { open: parts.length <= 5 }, make("summary", {}, make("code", {}, title), ` +${count("added")} −${count("removed")}`), body);
  });
  return make("div", {}, ...shown);
}

function kindOfLine(line) {
  if (/^(diff |index |--- |\+\+\+ |new file|deleted file|old mode|new mode|similarity|rename|Binary|GIT )/.test(line)) return "about";
  return { "+": "added", "-": "removed", "@": "place" }[line[0]] ?? "same";
}

function filesSection(cell, details) {
  const files = details?.files.length ? details.files : details ? [] : FILES.map((name) => [name, null]);
  if (!files.length) return null;
  return section("Files", make("ul", { class: "files" }, ...files.map(([name, size]) => make("li", {},
    make("a", { href: ["cells", cell.id, ...name.split("/")].map(encodeURIComponent).join("/") }, name),
    size === null ? "" : make("small", {}, ` ${counted(size, "byte")}`)))));
}
