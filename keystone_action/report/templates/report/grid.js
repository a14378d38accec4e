// Parameters × scenarios: each field has a dot for each replica, and the pass rate with its interval.
const ROWS = 40;
const MAX_COLUMNS = 8;
const MAX_DOTS = 40;

function grids(specs, choose) {
  const found = specs.map((spec) => [spec, index.groups.filter((group) => group[0] === spec)])
    .filter(([, groups]) => groups.some((group) => group[7].length > 1) || groups.length > 1);
  return found.map(([spec, groups], number) => {
    const title = index.specs[spec].id;
    const body = make("div", { class: "gridbody" });
    let isFilled = false;
    const fill = () => {
      if (!isFilled) fillGrid(body, groups, title, choose);
      isFilled = true;
    };
    if (found.length === 1) {
      fill();
      return body;
    }
    const open = number < 3;
    if (open) fill();
    return make("details", { class: "spec", open, ontoggle: fill },
      make("summary", {}, make("h3", {}, title), ` ${counted(groups.length, "group")}`), body);
  });
}

function fillGrid(body, groups, title, choose) {
  const scenarios = [...new Set(groups.map((group) => group[1]))];
  const columns = [...new Set(groups.map((group) => group[2]))];
  const isTable = columns.length > 1 && columns.length <= MAX_COLUMNS;
  const table = make("table", { class: isTable ? "grid" : "grid narrow", role: "grid", "aria-label": `Pass rates of ${title}` });
  if (isTable) {
    table.append(make("thead", {}, make("tr", { role: "row" }, make("th", { scope: "col" }, "Scenario"),
      ...columns.map((set) => make("th", { scope: "col" }, make("code", {}, nameOfSet(set)))))));
  }
  const rows = make("tbody");
  table.append(rows);
  const byScenario = byItsScenario(groups);
  const list = isTable ? scenarios.map((scenario) => [scenario, byScenario.get(scenario)])
    : scenarios.flatMap((scenario) => byScenario.get(scenario).map((group) => [scenario, [group]]));
  const isLong = list.length > ROWS;
  if (isLong) {
    const worst = new Map(list.map((row) => [row, Math.min(...row[1].map((group) => (group[4] ? group[3] / group[4] : 0)))]));
    list.sort((row, other) => worst.get(row) - worst.get(other));
  }
  const more = make("button", { type: "button", class: "more" });
  let shown = 0;
  const grow = () => {
    for (const [scenario, own] of list.slice(shown, shown + ROWS)) {
      rows.append(gridRow(scenario, own, isTable ? columns : null, choose));
    }
    shown = Math.min(shown + ROWS, list.length);
    more.hidden = shown === list.length;
    more.textContent = `Show more rows (${(list.length - shown).toLocaleString("en")} left)`;
  };
  more.addEventListener("click", grow);
  grow();
  oneTabStop(table);
  body.append(isLong ? make("p", { class: "about" }, "Rows with the lowest pass rate first.") : "", make("div", { class: "scroll" }, table), more);
}

function byItsScenario(groups) {
  const found = new Map();
  for (const group of groups) found.set(group[1], [...(found.get(group[1]) ?? []), group]);
  return found;
}

function nameOfSet(set) {
  return sets[set].map(([name, value]) => `${name}=${value}`).join(", ") || "no parameters";
}

function gridRow(scenario, groups, columns, choose) {
  const heading = make("th", { scope: "row", role: "rowheader" }, make("code", {}, texts[scenario]));
  if (columns === null) {
    const [group] = groups;
    const set = sets[group[2]].length ? make("small", {}, nameOfSet(group[2])) : null;
    if (set) heading.append(set);
    return make("tr", { role: "row" }, heading, field(group, choose));
  }
  const bySet = new Map(groups.map((group) => [group[2], group]));
  return make("tr", { role: "row" }, heading,
    ...columns.map((set) => bySet.has(set) ? field(bySet.get(set), choose) : make("td", { role: "gridcell", class: "empty" }, "–")));
}

function field(group, choose) {
  const [, scenario, set, passed, graded, low, high, rows] = group;
  const broken = rows.length - graded;
  const label = `${passed} of ${graded} passed${broken ? `, ${counted(broken, "error")}` : ""}`;
  const more = rows.length > 1 && graded
    ? [interval(passed / graded, low, high, `95% interval ${percent(low)} to ${percent(high)}`)] : [];
  const where = [texts[scenario], nameOfSet(set)].join(", ");
  return make("td", { role: "gridcell", "data-set": nameOfSet(set) },
    make("button", {
      type: "button", class: "count", tabindex: "-1", title: `Show the cells of ${where}`,
      "aria-label": `${where}: ${label}`, onclick: () => choose(group),
    }, graded ? `${passed}/${graded}` : "–", ...(broken ? [make("small", {}, ` ${broken} error`)] : [])),
    ...more, dots(rows));
}

function dots(rows) {
  if (rows.length > MAX_DOTS) return make("small", {}, `n = ${rows.length.toLocaleString("en")}`);
  // Only a mouse needs them: a keyboard reaches these cells by the button beside them.
  return make("span", { class: "dots", "aria-hidden": "true" }, ...rows.map((row) => {
    const cell = cells[row];
    return make("a", { href: hashOf(cell), tabindex: "-1", class: cell.verdict, title: `replica ${cell.replica}: ${cell.verdict}${cell.composite === "–" ? "" : `, ${cell.composite}`}` }, MARKS[cell.verdict]);
  }));
}

function percent(share) {
  return `${Math.round(share * 100)}%`;
}

// A grid is one stop of the tab key; arrows move in it.
function oneTabStop(table) {
  const first = table.querySelector("button.count");
  if (first) first.tabIndex = 0;
  table.addEventListener("keydown", (event) => {
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    const from = event.target.closest("td");
    if (!step || !from || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    let row = from.parentElement, column = from.cellIndex;
    do {
      row = step[0] > 0 ? row?.nextElementSibling : step[0] < 0 ? row?.previousElementSibling : row;
      column += step[1];
    } while (row?.cells[column] && !row.cells[column].querySelector("button.count"));
    focusField(table, row?.cells[column]?.querySelector("button.count"));
  });
  table.addEventListener("focusin", (event) => event.target.matches("button.count") && focusField(table, event.target));
}

function focusField(table, button) {
  if (!button) return;
  for (const other of table.querySelectorAll('button.count[tabindex="0"]')) other.tabIndex = -1;
  button.tabIndex = 0;
  if (document.activeElement !== button) button.focus();
}
