// Elements are made one by one and get text, never markup: what an agent wrote stays text, whatever it is.
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
}

function state(verdict) {
  return make("span", { class: `state ${verdict}` }, `${MARKS[verdict]} ${verdict}`);
}

// A value between 0 and 1 with the interval around it.
function interval(value, low, high, label) {
  return draw("svg", { class: "rate", width: 88, height: 12, viewBox: "0 0 88 12", role: "img", "aria-label": label },
    draw("rect", { class: "back", y: 4, width: 88, height: 4, rx: 2 }),
    draw("rect", { class: "range", x: low * 88, y: 2, width: Math.max((high - low) * 88, 1), height: 8, rx: 3 }),
    draw("circle", { class: "value", cx: 3 + value * 82, cy: 6, r: 3 }));
}

// A message, with what it quotes in backticks as code: the rule of `prose` in report/escape.py.
function prose(text) {
  const pieces = text.split(/(?:(?<!\S)|(?<=\s\()|(?<=^\())`([^\s`](?:[^`]*[^\s`])?)`(?=[.,;:)]*(?:\s|$))/);
  return make("p", {}, ...pieces.map((piece, number) => (number % 2 ? make("code", {}, piece) : piece)));
}

// Text as a block, folded where it is long.
function block(text, name = "") {
  const body = make("pre", { tabindex: "0", "aria-label": name || "text", role: "region" }, text);
  if (text.length <= 1200 && text.split("\n").length <= 20) return body;
  return make("details", {}, make("summary", {}, name || "text", make("small", {}, ` ${counted(text.split("\n").length, "line")}`)), body);
}
