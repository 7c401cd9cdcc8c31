// The page at /: two pictures side by side, one against the gallery, and the people in it. What comes from the service is shown as text only.
"use strict";

const byId = (id) => document.getElementById(id);
const PAGE = 10; // names at once
let about = {};
let token = sessionStorage.getItem("token") || ""; // of this tab
let language = localStorage.getItem("language") || (navigator.language.startsWith("zh") ? "zh" : "en");

// -- words -----------------------------------------------------------------------------------------------------------------

function t(key, ...values) {
  return TEXTS[key][language === "zh" ? 1 : 0].replace(/\{\}/g, () => values.shift());
}

// Names may hold anything: show control characters, and marks that change the direction of text, as \u....
function shown(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, (character) =>
    "\\u" + character.codePointAt(0).toString(16).padStart(4, "0"));
}

// Make an element. Children are elements or text; text is never parsed as HTML.
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

const views = []; // what is drawn anew in the other language

// Call `draw` now, and in every later language.
function view(draw) {
  views.push(draw);
  draw();
}

// Show what `draw` returns in a place with a live region, instead of what was there.
function results(place) {
  let draw = () => [];
  const show = () => place.replaceChildren(...draw());
  views.push(show);
  return (next, busy = false) => {
    draw = next;
    place.setAttribute("aria-busy", busy);
    show();
  };
}

function drawWords() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.title = t("title");
  byId("language").textContent = language === "zh" ? "English" : "中文";
  byId("language").lang = language === "zh" ? "en" : "zh-CN";
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = t(element.dataset.text);
}

// -- asking the service ----------------------------------------------------------------------------------------------------

class Problem extends Error {
  constructor(status, answer, key = null) {
    super(answer.error || "");
    this.status = status;
    this.refused = answer.refused || [];
    this.key = key; // of what the page says itself
  }
}

function formOf(pictures, name) {
  const form = new FormData();
  if (name !== undefined) form.append("name", name);
  pictures.forEach((picture) => form.append("picture", picture));
  return form;
}

async function ask(method, path, query = {}, body = undefined) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const words = new URLSearchParams(query).toString();
  const response = await fetch(words ? `${path}?${words}` : path, { method, headers, body }).catch(() => null);
  if (response === null) throw new Problem(0, {}, "noAnswer");
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(response.status, answer, response.status === 401 ? askForToken() : null);
  return answer;
}

const alignment = () => byId("align-line").hidden ? {} : { align: byId("align").checked };

function problem(error) {
  if (!(error instanceof Problem)) throw error; // a defect of this page
  if (error.refused.length) return remarks(error.refused, "problem");
  if (error.key) return [make("p", "problem", t(error.key))];
  const line = shown(error.message || error.status);
  const words = language === "zh" && TEXTS[`status ${error.status}`] ? t(`status ${error.status}`) : "";
  return [make("p", "problem", ...(words ? [words, original(line)] : [line]))];
}

// A line of the service, which speaks English.
function original(line) {
  const element = make("span", "original", line);
  element.lang = "en";
  return element;
}

function remarks(all, className) {
  return all.map(({ picture, rule, text }) => {
    const words = TEXTS[`rule ${rule}`] ? t(`rule ${rule}`) : shown(rule);
    return make("p", className, t("picture", picture, words), original(shown(text)));
  });
}

// -- the token -------------------------------------------------------------------------------------------------------------

const showToken = results(byId("token-result"));

// Forget the token that was refused, if there was one, and ask for another. Returns the key of what is wrong.
function askForToken() {
  const key = token ? "tokenWrong" : "tokenNeeded";
  token = "";
  sessionStorage.removeItem("token");
  byId("token-form").hidden = false;
  byId("token-hint").dataset.text = about.network ? "tokenHint" : "tokenHintPrivate";
  drawWords();
  showToken(() => key === "tokenWrong" || about.network ? [make("p", "problem", t(key))] : []);
  byId("token").focus();
  byId("token").select();
  return key;
}

async function takeToken(event) {
  event.preventDefault();
  token = byId("token").value.trim();
  showToken(() => [make("p", "faint", t("working"))], true);
  const error = await describe();
  if (error) return showToken(() => problem(error));
  sessionStorage.setItem("token", token);
  showToken(() => [make("p", "good", t("tokenAccepted"))]);
}

// -- comparing and looking up ----------------------------------------------------------------------------------------------

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
  const line = make("p", "numbers", make("span", "", `${t("similarity")} `, make("b", "", similarity.toFixed(3))));
  if (probability !== null) line.append(make("span", "", `${t("probability")} `, make("b", "", percent(probability))));
  if (threshold !== null) line.append(make("span", "", t("threshold", threshold.toFixed(3))));
  return line;
}

function facesLine(faces) {
  if (!faces || faces.every((count) => count === 1)) return [];
  return [make("p", "faint", t("faces", faces.join(", ")))];
}

function showComparison(answer) {
  const words = { null: "noThreshold", true: "same", false: "different" };
  return [
    make("p", `verdict ${tone(answer.same)}`, t(words[answer.same])),
    scale(answer.similarity, answer.threshold, answer.same),
    numbers(answer.similarity, answer.probability, answer.threshold),
    ...facesLine(answer.faces),
    ...remarks(answer.warnings, "warning"),
  ];
}

function showSearch(answer) {
  const verdict = { known: shown(answer.name ?? ""), nobody: t("nobody") }[answer.verdict] ?? t("noThreshold");
  const lines = [make("p", `verdict ${tone({ known: true, nobody: false }[answer.verdict] ?? null)}`, verdict)];
  if (answer.threshold !== null) lines.push(make("p", "faint", t("above", answer.threshold.toFixed(3))));
  if (!answer.matches.length) lines.push(make("p", "faint", t("emptyGallery")));
  const list = answer.matches.map((match) => make("li", "",
    make("bdi", "name", shown(match.name)),
    scale(match.similarity, answer.threshold, match.accepted || null),
    numbers(match.similarity, null, null)));
  return [...lines, ...facesLine(answer.faces), ...remarks(answer.warnings, "warning"), make("ol", "matches", ...list)];
}

// Keeps the last request of a place only: an answer to an earlier one is not shown.
function asker(place, path, showAnswer) {
  const show = results(place);
  let last = 0;
  return async (pictures) => {
    const number = ++last;
    show(() => [make("p", "faint", t("working"))], true);
    let draw;
    try {
      const answer = await ask("POST", path, alignment(), formOf(pictures));
      draw = () => showAnswer(answer);
    } catch (error) {
      draw = () => problem(error);
    }
    if (number === last) show(draw);
  };
}

// Turn a .drop into a place for pictures: by a click, the keyboard, or drag and drop. `changed` gets the files, one unless it is for several.
function makeDrop(place, number, changed) {
  const several = "several" in place.dataset;
  const input = make("input", "");
  input.type = "file";
  input.multiple = several;
  input.accept = "image/png,image/jpeg,image/bmp,image/webp";
  input.id = `picture-${number}`;
  const label = make("label", "");
  label.htmlFor = input.id;
  place.append(input, label);
  let file = null;
  view(() => {
    const prompt = several ? t("dropSeveral", about.max_pictures) : t("drop");
    const words = make("strong", "", t(place.dataset.name));
    label.replaceChildren(...(file ? [preview(file, t(place.dataset.name)), make("span", "faint", shown(file.name))] : [words, make("span", "faint", prompt)]));
  });
  const redraw = views.at(-1);
  const take = (files) => {
    if (!files.length) return;
    if (!several) {
      file = files[0];
      place.classList.add("filled");
      redraw();
    }
    changed(several ? [...files] : files[0]);
    if (several) input.value = ""; // further ones are added
  };
  input.addEventListener("click", () => { input.value = ""; }); // the same file may be chosen again, after a change of it
  input.addEventListener("change", () => take(input.files));
  for (const kind of ["dragenter", "dragover"]) {
    place.addEventListener(kind, (event) => { event.preventDefault(); place.classList.add("over"); });
  }
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    take(event.dataTransfer.files);
  });
}

function preview(file, name) {
  const image = make("img", "");
  const url = URL.createObjectURL(file);
  image.alt = name;
  image.addEventListener("load", () => { URL.revokeObjectURL(url); image.classList.toggle("small", image.naturalWidth < 100); });
  image.addEventListener("error", () => { URL.revokeObjectURL(url); image.remove(); });
  image.src = url;
  return image;
}

// -- people ----------------------------------------------------------------------------------------------------------------

const showPeople = results(byId("people-result"));
let people = { count: 0, names: [] };
let start = 0;
let listed = 0;

async function list(from) {
  const number = ++listed;
  byId("names").setAttribute("aria-busy", true);
  try {
    const answer = await ask("GET", "people", { find: byId("find").value, start: from, limit: PAGE });
    if (number !== listed) return;
    [people, start] = [answer, from];
    if (from > 0 && !people.names.length) return list(Math.max(0, from - PAGE)); // the page's last one was removed
    drawPeople();
  } catch (error) {
    if (number === listed) showPeople(() => problem(error));
  } finally {
    if (number === listed) byId("names").setAttribute("aria-busy", false);
  }
}

function drawPeople() {
  byId("names").replaceChildren(...people.names.map((name) => {
    const item = make("li", "", make("bdi", "name", shown(name)));
    if (about.writable) {
      const button = make("button", "", t("remove"));
      button.type = "button";
      button.setAttribute("aria-label", t("removeName", shown(name)));
      button.addEventListener("click", () => confirmRemoval(name));
      item.append(button);
    }
    return item;
  }));
  const empty = t(byId("find").value ? "notFound" : "emptyGallery");
  byId("range").textContent = people.count ? t("range", start + 1, start + people.names.length, people.count.toLocaleString(language)) : empty;
  const more = people.count > PAGE;
  byId("previous").hidden = byId("next").hidden = !more;
  byId("previous").disabled = start === 0;
  byId("next").disabled = start + people.names.length >= people.count;
}

function confirmRemoval(name) {
  const draw = () => { byId("confirm-title").textContent = t("removeTitle", shown(name)); };
  draw();
  byId("confirm-yes").onclick = () => { byId("confirm").close(); remove(name); };
  byId("confirm").showModal();
}

async function remove(name) {
  showPeople(() => [make("p", "faint", t("removing", shown(name)))], true);
  byId("people-result").focus(); // the button that had it goes
  try {
    const answer = await ask("DELETE", "people", { name });
    showPeople(() => [make("p", "good", t("removed", shown(name)))]);
    count(answer.count);
  } catch (error) {
    showPeople(() => problem(error));
  }
  await list(start);
}

// -- adding ----------------------------------------------------------------------------------------------------------------

const showEnrolment = results(byId("enrol-result"));
let chosen = []; // {file, remarks}

function choose(files) {
  chosen.push(...files.map((file) => ({ file, remarks: [] })));
  showEnrolment(() => []);
  drawChosen();
}

function drawChosen() {
  byId("chosen").replaceChildren(...chosen.map((picture) => {
    const button = make("button", "", t("leaveOut"));
    button.type = "button";
    button.setAttribute("aria-label", t("leaveOutName", shown(picture.file.name)));
    button.addEventListener("click", () => {
      chosen = chosen.filter((other) => other !== picture);
      drawChosen();
      byId("picture-4").focus();
    });
    const name = make("bdi", "name", shown(picture.file.name));
    return make("li", "", make("div", "thumb", preview(picture.file, "")), name, button, ...remarks(picture.remarks, "problem"));
  }));
}

async function enrol(event) {
  event.preventDefault();
  const name = byId("name").value.trim();
  const sent = chosen;
  if (!sent.length) return showEnrolment(() => [make("p", "problem", t("noPictures"))]);
  if (sent.length > about.max_pictures) return showEnrolment(() => [make("p", "problem", t("tooMany", about.max_pictures))]);
  const button = byId("enrol-form").querySelector(":scope > button");
  button.disabled = true;
  showEnrolment(() => [make("p", "faint", t("enrolling", shown(name)))], true);
  try {
    const answer = await ask("POST", "people", alignment(), formOf(sent.map(({ file }) => file), name));
    byId("enrol-form").reset();
    chosen = [];
    showEnrolment(() => [make("p", "good", t("enrolled", shown(answer.name), answer.pictures)), ...remarks(answer.warnings, "warning")]);
    count(answer.count);
    list(start);
  } catch (error) {
    for (const [place, picture] of sent.entries()) picture.remarks = (error.refused || []).filter((remark) => remark.picture === place + 1);
    showEnrolment(() => error.refused?.length ? [make("p", "problem", t("noneAdded", error.refused.length, sent.length))] : problem(error));
  } finally {
    button.disabled = false;
    drawChosen();
  }
}

// -- beginning -------------------------------------------------------------------------------------------------------------

const showAbout = results(byId("about"));

function count(number) {
  about.people = number;
  showAbout(describeAbout);
}

function describeAbout() {
  const number = about.people === null ? t("noGallery") : t("inGallery", about.people.toLocaleString(language));
  return [`${shown(about.described)} · ${number}`];
}

// Ask what the service is, and show what it can do. Returns the Problem, if there is one.
async function describe() {
  try {
    about = await ask("GET", "about");
  } catch (error) {
    return error;
  }
  showAbout(describeAbout);
  byId("align-line").hidden = !about.align || about.aligned === false;
  byId("align").checked = about.aligned === true;
  byId("search").hidden = byId("people").hidden = about.people === null;
  byId("enrol").hidden = !about.writable;
  if (about.writable && !token) byId("token-form").hidden = false;
  byId("main").hidden = false;
  redraw();
  if (about.people !== null) list(0);
  return null;
}

function redraw() {
  for (const draw of views) draw();
}

async function begin() {
  view(drawWords);
  showAbout(() => [t("asking")]);
  const [first, second, third, fourth] = document.querySelectorAll(".drop");
  const compare = asker(byId("compare-result"), "verify", showComparison);
  const search = asker(byId("search-result"), "search", showSearch);
  const pair = [null, null];
  let looked = null;
  const compareBoth = () => pair[0] && pair[1] && compare(pair);
  const lookUp = () => looked && search([looked]);
  [first, second].forEach((place, index) => makeDrop(place, index + 1, (file) => { pair[index] = file; compareBoth(); }));
  makeDrop(third, 3, (file) => { looked = file; lookUp(); });
  makeDrop(fourth, 4, choose);
  views.push(drawPeople, drawChosen);
  byId("align").addEventListener("change", () => { compareBoth(); lookUp(); });
  let typed;
  byId("find").addEventListener("input", () => {
    showPeople(() => []);
    clearTimeout(typed);
    typed = setTimeout(list, 200, 0);
  });
  byId("previous").addEventListener("click", () => list(start - PAGE));
  byId("next").addEventListener("click", () => list(start + PAGE));
  byId("enrol-form").addEventListener("submit", enrol);
  byId("token-form").addEventListener("submit", takeToken);
  byId("confirm-no").addEventListener("click", () => byId("confirm").close());
  byId("language").addEventListener("click", () => {
    language = language === "zh" ? "en" : "zh";
    localStorage.setItem("language", language);
    redraw();
  });
  // A picture that misses its place must not replace the page.
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
  let error = await describe();
  if (error?.key === "tokenWrong") error = await describe(); // a token of an earlier service; reading may need none
  // Where the token is needed its form says so.
  if (error) showAbout(() => error.status === 401 ? [] : problem(error));
}

begin();
