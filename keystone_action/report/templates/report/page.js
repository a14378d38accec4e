// The two views of the page, the cells and one cell, and its keys.
const STEP = 100;
const overview = document.getElementById("overview");
const one = document.getElementById("cell");
const explorer = document.getElementById("explorer");
const title = document.title;
let kept = [];
let shown = 0;
let last = null;
let place = 0;

const list = make("ol", { class: "cells" });
const more = make("button", { type: "button", class: "more", onclick: () => grow() });
const grid = make("div", { class: "grids" });
const bar = toolbar(() => {
  history.replaceState(null, "", hashOf(null));
  showCells();
});

function row(cell) {
  return make("li", {}, make("a", { href: hashOf(cell), class: cell.verdict, "data-id": cell.id },
    state(cell.verdict), make("code", {}, cell.id), make("span", { class: "why" }, cell.reason),
    make("span", { class: "number" }, cell.composite), make("span", { class: "number" }, duration(cell.seconds)), make("span", { class: "number" }, money(cell.cost))));
}

function grow(least = 0) {
  const until = Math.max(shown + STEP, least);
  list.append(...kept.slice(shown, until).map(row));
  shown = Math.min(until, kept.length);
  more.hidden = shown === kept.length;
  more.textContent = `Show more cells (${(kept.length - shown).toLocaleString("en")} left)`;
}

let specsOfGrid = null;
function showCells() {
  kept = found();
  shown = 0;
  list.replaceChildren();
  grow();
  bar.show(kept);
  const specs = index.specs.map((_, number) => number).filter((number) => !wanted.get("spec") || index.specs[number].id === wanted.get("spec"));
  if (specsOfGrid !== String(specs)) {
    specsOfGrid = String(specs);
    grid.replaceChildren(...grids(specs, chooseGroup));
    grid.hidden = grid.childElementCount === 0;
    if (!grid.hidden) grid.prepend(make("h2", {}, "Parameters × scenarios"), make("p", { class: "about" }, "A mark is a replica; the bar is the 95% interval of the pass rate (Wilson)."));
  }
}

function chooseGroup([spec, scenario, set]) {
  for (const key of [...wanted.keys()]) wanted.delete(key);
  if (index.specs.length > 1) wanted.set("spec", index.specs[spec].id);
  wanted.set("scenario", texts[scenario]);
  for (const [name, value] of sets[set]) wanted.set(`p.${name}`, value);
  history.replaceState(null, "", hashOf(null));
  showCells();
  bar.scrollIntoView({ block: "start" });
  list.querySelector("a")?.focus({ preventScroll: true });
}

function showCell(cell) {
  if (overview.hidden === false) place = scrollY;
  if (!kept.length) kept = found();
  const at = kept.indexOf(cell);
  one.replaceChildren(...cellPage(cell, [["↑ Previous", kept[at - 1]], ["↓ Next", at < 0 ? undefined : kept[at + 1]]]));
  overview.hidden = true;
  one.hidden = false;
  document.title = `${MARKS[cell.verdict]} ${cell.id}`;
  last = cell;
  scrollTo(0, 0);
  one.querySelector("h1").focus({ preventScroll: true });
}

function route() {
  const id = readHash();
  const cell = byId.get(id);
  if (cell) {
    showCell(cell);
    return;
  }
  const wasCell = overview.hidden;
  one.hidden = true;
  one.replaceChildren();
  overview.hidden = false;
  document.title = title;
  showCells();
  if (id) bar.querySelector(".count").textContent += `. There is no cell ${id} on this page.`;
  if (wasCell && last) {
    const at = kept.indexOf(last);
    if (at >= shown) grow(at + 1);
    scrollTo(0, place);
    list.children[at]?.firstElementChild.focus({ preventScroll: place > 0 });
  }
}

function move(step) {
  if (overview.hidden) {
    const next = kept[kept.indexOf(last) + step];
    if (last && next) location.hash = hashOf(next);
    return;
  }
  const now = document.activeElement.closest?.(".cells > li");
  if (now && step > 0 && !now.nextElementSibling) grow();
  const next = now ? (step > 0 ? now.nextElementSibling : now.previousElementSibling) : list.firstElementChild;
  if (next) next.firstElementChild.focus();
  else if (step < 0) bar.querySelector("#search").focus();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const { target, key } = event;
  const isTyping = target.matches?.("input, textarea");
  const isTaken = isTyping || target.matches?.("select, pre");
  if (key === "Escape") {
    if (overview.hidden) location.hash = hashOf(null);
    else if (isTyping && target.value) {
      wanted.delete("text");
      target.value = "";
      history.replaceState(null, "", hashOf(null));
      showCells();
    } else target.blur?.();
  } else if (key === "/" && !isTyping && !overview.hidden) {
    const search = bar.querySelector("#search");
    search.focus();
    search.select();
  } else if (key === "ArrowDown" && target.id === "search") move(1);
  else if (!isTaken && (key === "j" || (key === "ArrowDown" && target.closest?.(".cells")))) move(1);
  else if (!isTaken && (key === "k" || (key === "ArrowUp" && target.closest?.(".cells")))) move(-1);
  else return;
  event.preventDefault();
});

let folded = [];
addEventListener("beforeprint", () => {
  grow(500);
  folded = [...document.querySelectorAll("main:not([hidden]) details:not([open])")];
  for (const details of folded) details.open = true;
});
addEventListener("afterprint", () => folded.forEach((details) => { details.open = false; }));

if (cells.length === 1) {
  // The list of its checks says all that the table does.
  for (const table of overview.querySelectorAll(".invariants")) table.hidden = cells[0].checkCount > 0;
  explorer.append(...cellBody(cells[0], detailsOf(cells[0])));
  explorer.hidden = false;
} else if (cells.length) {
  const help = make("p", { class: "keys" }, ...[["/", "search"], ["j", "or"], ["↓", "next"], ["k", "or"], ["↑", "previous"], ["Enter", "open"], ["Esc", "back"]]
    .flatMap(([key, what]) => [make("kbd", {}, key), ` ${what} `]));
  explorer.append(grid, make("h2", { id: "cells" }, "Cells"), bar, help, list, more);
  explorer.hidden = false;
  new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && shown < kept.length && grow()).observe(more);
  addEventListener("hashchange", route);
  route();
}
