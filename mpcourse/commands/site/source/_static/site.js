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
  const shown = element("span", { ariaHidden: "true" }); // the slider says it itself
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

async function explore(figure) {
  const { controls, pictures, order } = await unpack(figure.dataset.frames);
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

// A question with choices: the answer that waits below it says whether the guess agrees.
function ask(question) {
  const answer = document.querySelector(`details.answer[data-guess="${question.dataset.guess}"]`);
  const words = answer?.querySelector("p").textContent ?? "";
  const buttons = [...question.querySelectorAll("button")];
  const right = buttons.filter((button) => words.startsWith(button.textContent))
    .sort((one, other) => other.textContent.length - one.textContent.length)[0];
  for (const button of buttons) button.addEventListener("click", () => {
    for (const each of buttons) each.setAttribute("aria-pressed", each === button);
    const agrees = button === right ? "as you said" : "not what you guessed";
    question.querySelector("span").textContent = right ? `${words} (${agrees})` : "see below";
    if (answer) answer.open = true;
  });
}

// What is wider than the window can be scrolled by keyboard, too.
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const wide of document.querySelectorAll(
  ".picture, .view, p:has(> img), .cell_output pre, .highlight pre, .pst-scrollable-table-container",
))
  widths.observe(wide);
// The theme's name for every fold hides the words that are seen on it.
for (const fold of document.querySelectorAll("summary[aria-label]")) fold.removeAttribute("aria-label");
for (const question of document.querySelectorAll("fieldset.guess")) ask(question);
for (const figure of document.querySelectorAll(".explorer")) explore(figure);
