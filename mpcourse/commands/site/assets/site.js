"use strict";

// An explorer without a kernel: all its pictures were drawn when the site was built.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function element(name, settings, ...children) {
  const made = Object.assign(document.createElement(name), settings);
  made.append(...children);
  return made;
}

function control({ label, words, start, slider }, moved) {
  const shown = element("output", {}, words[start]);
  const input = slider
    ? element("input", { type: "range", min: 0, max: words.length - 1, value: start })
    : element("select", {}, ...words.map((word) => element("option", {}, word)));
  if (!slider) input.selectedIndex = start;
  const position = () => (slider ? Number(input.value) : input.selectedIndex);
  const say = () => {
    shown.textContent = slider ? words[position()] : "";
    if (slider) input.setAttribute("aria-valuetext", words[position()]);
  };
  say();
  input.addEventListener("input", () => { say(); moved(); });
  return { position, size: words.length, row: element("label", {}, element("span", {}, label), input, shown) };
}

async function explore(figure, { controls, packed }) {
  const { pictures, order } = await unpack(packed);
  const view = figure.querySelector(".view");
  const said = figure.querySelector(".said");
  const draw = () => {
    const index = made.reduce((sum, { position, size }) => sum * size + position(), 0);
    view.innerHTML = pictures[order[index]];
    said.textContent = view.querySelector("text").textContent;
  };
  const made = controls.map((each) => control(each, draw));
  figure.querySelector(".controls").append(...made.map(({ row }) => row));
  draw();
  figure.dataset.ready = "yes";
}

// The search: every word has to stand in the section; a word in its heading counts for more.
function search(query, sections) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const rank = ([, title, heading, , text]) => {
    const [all, top] = [`${title} ${heading} ${text}`.toLowerCase(), `${title} ${heading}`.toLowerCase()];
    if (!words.every((word) => all.includes(word))) return 0;
    return 1 + words.filter((word) => top.includes(word)).length;
  };
  return sections.map((section) => [rank(section), section]).filter(([points]) => points)
    .sort((one, other) => other[0] - one[0]).map(([, section]) => section);
}

function showFound(place, query, sections) {
  const found = search(query, sections).slice(0, 40);
  const list = found.map(([page, title, heading, anchor, text]) => {
    const at = Math.max(0, text.toLowerCase().indexOf(query.toLowerCase().split(/\s+/)[0]) - 60);
    const name = heading === title ? title : `${title}: ${heading}`;
    const link = element("a", { href: `${page}.html#${encodeURIComponent(anchor)}` }, name);
    return element("li", {}, link, element("div", {}, `… ${text.slice(at, at + 160)} …`));
  });
  const count = found.length ? `${found.length} places have “${query}”` : `Nothing has “${query}”`;
  place.append(element("h2", {}, count), element("ol", {}, ...list));
}

// What is wider than the window can be scrolled by keyboard, too.
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const wide = target.scrollWidth > target.clientWidth;
    if (wide) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const output of document.querySelectorAll(".output")) widths.observe(output);

const place = document.getElementById("found");
const query = new URLSearchParams(location.search).get("q");
if (place && query) {
  document.getElementById("q").value = query;
  showFound(place, query, window.SECTIONS);
}
const figure = document.querySelector(".explorer");
if (figure && window.FRAMES) explore(figure, window.FRAMES);
