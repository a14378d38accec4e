// What is shown of the cells, and how that stands in the address: `#CELL?text=…&verdict=fail&…`.
const SORTS = {
  worst: ["worst first", null],
  score: ["lowest score", (cell) => (cell.composite === "–" ? -1 : Number(cell.composite))],
  slow: ["slowest", (cell) => -cell.seconds],
  cost: ["dearest", (cell) => -(cell.cost ?? 0)],
  id: ["by name", null],
};
const MAX_CHOICES = 1000;
const VERDICTS = ["error", "fail", "flaky", "pass"].filter((verdict) => cells.some((cell) => cell.verdict === verdict));
const wanted = new URLSearchParams();

function readHash() {
  const [name, query = ""] = splitHash(location.hash.slice(1));
  for (const key of [...wanted.keys()]) wanted.delete(key);
  for (const [key, value] of new URLSearchParams(query)) if (value) wanted.set(key, value);
  let id = name;
  try {
    id = decodeURIComponent(name);
  } catch {
    // A name that is not encoded is taken as it is.
  }
  return id;
}

function splitHash(hash) {
  const at = hash.indexOf("?");
  return at < 0 ? [hash, ""] : [hash.slice(0, at), hash.slice(at + 1)];
}

function hashOf(cell) {
  const query = wanted.toString();
  return `#${cell ? encodeURIComponent(cell.id) : ""}${query || !cell ? `?${query}` : ""}`;
}

function found() {
  const words = (wanted.get("text") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const verdicts = (wanted.get("verdict") ?? "").split(",").filter(Boolean);
  const [spec, scenario, check] = ["spec", "scenario", "check"].map((key) => wanted.get(key));
  const parameters = [...wanted].filter(([key]) => key.startsWith("p.")).map(([key, value]) => [key.slice(2), value]);
  const fits = sets.map((pairs) => parameters.every(([name, value]) => pairs.some((pair) => pair[0] === name && pair[1] === value)));
  const number = check === null ? -1 : texts.indexOf(check);
  const kept = cells.filter((cell) => (verdicts.length === 0 || verdicts.includes(cell.verdict))
    && (spec === null || index.specs[cell.spec].id === spec)
    && (scenario === null || cell.scenario === scenario)
    && fits[cell.set]
    && (check === null || cell.checks.some((one) => one[0] === number && ["fail", "error"].includes(index.statuses[one[1]])))
    && words.every((word) => haystackOf(cell).includes(word)));
  const by = SORTS[wanted.get("sort")]?.[1];
  if (by) kept.sort((one, other) => by(one) - by(other));
  if (wanted.get("sort") === "id") kept.sort((one, other) => (one.id < other.id ? -1 : 1));
  return kept;
}

function toolbar(changed) {
  const set = (key, value) => {
    if (value) wanted.set(key, value);
    else wanted.delete(key);
    changed();
  };
  const search = make("input", {
    type: "search", id: "search", placeholder: "Search cells", "aria-label": "Search cells", autocomplete: "off", spellcheck: "false",
    oninput: () => set("text", search.value.trim()),
  });
  const select = (key, label, choices, names = {}) => make("label", {}, `${label} `, make("select", { "data-key": key, onchange: (event) => set(key, event.target.value) },
    make("option", { value: "" }, key === "sort" ? SORTS.worst[0] : "any"),
    ...choices.map((choice) => make("option", { value: choice }, names[choice] ?? choice))));
  const buttons = VERDICTS.map((verdict) => make("button", {
    type: "button", class: `verdict ${verdict}`, "data-verdict": verdict, "aria-pressed": "false",
    onclick: () => {
      const chosen = new Set((wanted.get("verdict") ?? "").split(",").filter(Boolean));
      if (!chosen.delete(verdict)) chosen.add(verdict);
      set("verdict", [...chosen].join(","));
    },
  }, `${MARKS[verdict]} ${verdict} `, make("small", {}, cells.filter((cell) => cell.verdict === verdict).length.toLocaleString("en"))));
  const selects = [];
  const add = (key, label, choices, least = 2) => {
    if (choices.length >= least && choices.length <= MAX_CHOICES) selects.push(select(key, label, choices));
  };
  add("spec", "Spec", index.specs.map((spec) => spec.id));
  add("scenario", "Scenario", [...new Set(cells.map((cell) => cell.scenario))]);
  const values = new Map();
  for (const [name, value] of sets.flat()) values.set(name, (values.get(name) ?? new Set()).add(value));
  for (const [name, all] of [...values].slice(0, 8)) add(`p.${name}`, name, [...all]);
  const failing = new Set(cells.flatMap((cell) => cell.checks.filter((check) => ["fail", "error"].includes(index.statuses[check[1]])).map((check) => check[0])));
  add("check", "Failed check", [...failing].map((number) => texts[number]), 1);
  const sorts = Object.keys(SORTS).filter((key) => key !== "worst" && (key !== "cost" || cells.some((cell) => cell.cost)));
  selects.push(select("sort", "Order", sorts, Object.fromEntries(sorts.map((key) => [key, SORTS[key][0]]))));
  const clear = make("button", { type: "button", class: "clear", onclick: () => {
    for (const key of [...wanted.keys()]) wanted.delete(key);
    changed();
    search.focus();
  } }, "Clear");
  const count = make("p", { class: "count", role: "status" });
  const bar = make("div", { class: "toolbar", role: "search" }, make("div", { class: "line" }, search, ...buttons),
    make("div", { class: "line" }, ...selects, clear), count);
  bar.show = (kept) => {
    if (document.activeElement !== search || search.value.trim() !== (wanted.get("text") ?? "")) search.value = wanted.get("text") ?? "";
    const chosen = (wanted.get("verdict") ?? "").split(",");
    for (const button of buttons) button.setAttribute("aria-pressed", String(chosen.includes(button.dataset.verdict)));
    for (const one of bar.querySelectorAll("select")) one.value = wanted.get(one.dataset.key) ?? "";
    clear.hidden = [...wanted.keys()].length === 0;
    const left = index.total - cells.length;
    count.textContent = `${kept.length === cells.length ? "" : `${kept.length.toLocaleString("en")} of `}${counted(cells.length, "cell")}`
      + (left ? `; ${left.toLocaleString("en")} more that passed are in results.json alone` : "");
  };
  return bar;
}
