// The page at /: two pictures side by side, and one against the gallery. What comes from the service is shown as text only.
"use strict";

const byId = (id) => document.getElementById(id);
let about = {};
let token = ""; // in memory only: a reload forgets it

// Make an element. Children are elements or text; text is never parsed as HTML.
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

// Names may hold anything: show control characters, and marks that change the direction of text, as \u....
function shown(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, (character) =>
    "\\u" + character.codePointAt(0).toString(16).padStart(4, "0"));
}

async function ask(path, pictures) {
  const options = { headers: token ? { Authorization: `Bearer ${token}` } : {} };
  if (pictures) {
    options.method = "POST";
    options.body = new FormData();
    pictures.forEach((picture) => options.body.append("picture", picture));
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The service does not answer. Is it running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) byId("token-form").hidden = false;
  if (!response.ok) throw new Error(answer.error || `The service answered ${response.status}.`);
  return answer;
}

const percent = (share) => share > 0.999 && share < 1 ? "> 99.9 %" : share < 0.001 && share > 0 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
const tone = (accepted) => accepted === null ? "" : accepted ? "yes" : "no";

// A bar from -1 to 1 with a mark at the threshold.
function scale(similarity, threshold, accepted) {
  const at = (cosine) => `${50 * (1 + Math.max(-1, Math.min(1, cosine)))}%`;
  const value = make("div", `value ${tone(accepted)}`);
  value.style.width = at(similarity);
  const bar = make("div", "scale", value);
  bar.setAttribute("aria-hidden", "true");
  if (threshold !== null) {
    const limit = make("div", "limit");
    limit.style.left = at(threshold);
    bar.append(limit);
  }
  return bar;
}

function numbers(similarity, probability, threshold) {
  const line = make("p", "numbers", make("span", "", "similarity ", make("b", "", similarity.toFixed(3))));
  if (probability !== null) line.append(make("span", "", "P(same) ", make("b", "", percent(probability))));
  if (threshold !== null) line.append(make("span", "", `threshold ${threshold.toFixed(3)}`));
  return line;
}

function facesLine(faces) {
  if (!faces || faces.every((count) => count === 1)) return "";
  return make("p", "faint", `Faces found: ${faces.join(" and ")}; the largest was taken.`);
}

function warningLines(warnings) {
  return warnings.map((text) => make("p", "problem", shown(text)));
}

function showComparison(answer) {
  const words = { null: "No threshold is known", true: "The same", false: "Different" };
  return [
    make("p", `verdict ${tone(answer.same)}`, words[answer.same]),
    scale(answer.similarity, answer.threshold, answer.same),
    numbers(answer.similarity, answer.probability, answer.threshold),
    facesLine(answer.faces),
    ...warningLines(answer.warnings),
  ];
}

function showSearch(answer) {
  const verdict = { known: shown(answer.name ?? ""), nobody: "Nobody in the gallery" }[answer.verdict] ?? "No threshold is known";
  const list = make("ol", "matches");
  for (const match of answer.matches) {
    list.append(make("li", "",
      make("div", "name", shown(match.name)),
      scale(match.similarity, answer.threshold, match.accepted || null),
      numbers(match.similarity, null, null)));
  }
  const above = answer.threshold === null ? "" : make("p", "faint", `The nearest is the answer if it is above ${answer.threshold.toFixed(3)}, the mark on the bars.`);
  const empty = answer.matches.length ? "" : make("p", "faint", "The gallery is empty.");
  return [make("p", `verdict ${tone({ known: true, nobody: false }[answer.verdict] ?? null)}`, verdict), above, list, empty, facesLine(answer.faces), ...warningLines(answer.warnings)];
}

// Keeps the last request of a result only: an answer to an earlier one is not shown.
function asker(result, path, show) {
  let last = 0;
  return async (pictures) => {
    const number = ++last;
    result.setAttribute("aria-busy", "true");
    result.replaceChildren(make("p", "faint", "Comparing …"));
    let children;
    try {
      children = show(await ask(path + (byId("align-line").hidden ? "" : `?align=${byId("align").checked}`), pictures));
    } catch (error) {
      children = [make("p", "problem", shown(error.message))];
    }
    if (number === last) {
      result.replaceChildren(...children);
      result.removeAttribute("aria-busy");
    }
  };
}

// Turn a .drop into a place for one picture: by a click, the keyboard, or drag and drop.
function makeDrop(place, number, changed) {
  const input = make("input", "");
  input.type = "file";
  input.accept = "image/png,image/jpeg,image/bmp,image/webp";
  input.id = `picture-${number}`;
  const label = make("label", "");
  label.htmlFor = input.id;
  place.append(input, label);
  const prompt = () => label.replaceChildren(make("strong", "", place.dataset.label), make("span", "faint", "Drop it here, or choose a file"));
  let url = null;
  const take = (file) => {
    if (!file) return;
    if (url) URL.revokeObjectURL(url);
    url = URL.createObjectURL(file);
    const image = make("img", "");
    image.alt = place.dataset.label;
    image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth < 100));
    image.addEventListener("error", () => image.remove());
    image.src = url;
    label.replaceChildren(image, make("span", "faint", shown(file.name)));
    place.classList.add("filled");
    changed(file);
  };
  input.addEventListener("click", () => { input.value = ""; }); // the same file may be chosen again, after a change of it
  input.addEventListener("change", () => take(input.files[0]));
  for (const kind of ["dragenter", "dragover"]) {
    place.addEventListener(kind, (event) => { event.preventDefault(); place.classList.add("over"); });
  }
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  prompt();
}

function begin() {
  const [first, second, third] = document.querySelectorAll(".drop");
  const compare = asker(byId("compare-result"), "verify", showComparison);
  const search = asker(byId("search-result"), "search", showSearch);
  const pair = [null, null];
  let looked = null;
  const compareBoth = () => pair[0] && pair[1] && compare(pair);
  const lookUp = () => looked && search([looked]);
  [first, second].forEach((place, index) => makeDrop(place, index + 1, (file) => { pair[index] = file; compareBoth(); }));
  makeDrop(third, 3, (file) => { looked = file; lookUp(); });
  byId("align").addEventListener("change", () => { compareBoth(); lookUp(); });
  // A picture that misses its place must not replace the page.
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    token = byId("token").value;
    byId("token-form").hidden = true;
    describe();
  });
}

async function describe() {
  try {
    about = await ask("about");
  } catch (error) {
    byId("about").textContent = shown(error.message);
    return;
  }
  const people = about.people === null ? "no gallery" : `${about.people.toLocaleString("en")} in the gallery`;
  byId("about").textContent = `${shown(about.described)} · ${people}`;
  byId("align-line").hidden = !about.align || about.aligned === false;
  byId("align").checked = about.aligned === true;
  byId("search").hidden = about.people === null;
  byId("main").hidden = false;
}

begin();
describe();
