"use strict";
// Everything that comes from the server or from a file is set as text or as a number: there is no markup from outside.
const SVG = "http://www.w3.org/2000/svg";
const PLACES = ["far", "close", "over", "anywhere"];
const byId = (id) => document.getElementById(id);
let latest = 0; // answers to photographs that were replaced do not count
let shown = null; // the address of the photograph on the screen
let chosen = null; // the photograph itself

byId("certify").checked = new URLSearchParams(location.search).get("certify") === "1";

function say(sentence, wrong = false) {
  byId("status").textContent = sentence;
  byId("status").classList.toggle("wrong", wrong);
}

function element(name, attributes, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

async function send(file) {
  if (!file) return;
  chosen = file;
  const turn = ++latest;
  const certify = byId("certify").checked;
  byId("result").hidden = true;
  say(certify ? "Looking and certifying ..." : "Looking ...");
  try {
    const response = await fetch(certify ? "detect?certify=1" : "detect", { method: "POST", body: file });
    const answer = await response.json();
    if (turn !== latest) return;
    if (!response.ok) return say(String(answer.error), true);
    show(file, answer);
  } catch (error) {
    if (turn === latest) say("The server did not answer: " + error.message, true);
  }
}

function show(file, answer) {
  const recovered = answer.found_by_masks_only;
  const count = answer.detections.length;
  say(`${count} ${count === 1 ? "box" : "boxes"}, ${recovered} found by masking only.`);
  byId("alert").hidden = !answer.alert;
  byId("result").hidden = false;
  showPhoto(file, answer);
  showTable(answer);
  byId("defense").textContent = "Defense " + answer.defense;
}

function showPhoto(file, answer) {
  const photo = byId("photo");
  if (shown) URL.revokeObjectURL(shown);
  shown = URL.createObjectURL(file);
  photo.parentElement.classList.remove("unshown");
  photo.onerror = () => photo.parentElement.classList.add("unshown"); // a format that browsers do not show
  photo.width = answer.width;
  photo.height = answer.height;
  photo.src = shown;
  const drawing = byId("boxes");
  drawing.setAttribute("viewBox", `0 0 ${answer.width} ${answer.height}`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.replaceChildren(...answer.detections.map((row) => {
    const group = document.createElementNS(SVG, "g");
    for (const kind of ["box-back", row.found_by === "masks" ? "box masks" : "box base"]) {
      const rectangle = document.createElementNS(SVG, "rect");
      const [x, y, width, height] = row.bbox;
      for (const [key, value] of Object.entries({ x, y, width, height, class: kind })) rectangle.setAttribute(key, value);
      group.append(rectangle);
    }
    return group;
  }));
}

function showTable(answer) {
  const certified = answer.certificates;
  const columns = ["class", "score", "found by", ...(certified ? [...PLACES, "largest square"] : [])];
  const head = element("tr", {});
  head.append(...columns.map((name) => element("th", { scope: "col" }, name)));
  byId("table").tHead.replaceChildren(head);
  const groups = byId("boxes").children;
  byId("table").tBodies[0].replaceChildren(...answer.detections.map((row, number) => {
    const line = element("tr", {});
    line.append(element("td", {}, row.category_name), element("td", {}, row.score.toFixed(2)));
    line.append(element("td", {}, row.found_by === "masks" ? "masks" : "detector"));
    if (certified) line.append(...PLACES.map((place) => verdict(row, place)), element("td", {}, row.largest_square ? row.largest_square + " px" : "none"));
    line.addEventListener("mouseenter", () => groups[number].classList.add("chosen"));
    line.addEventListener("mouseleave", () => groups[number].classList.remove("chosen"));
    return line;
  }));
  byId("against").textContent = certified ? against(certified) : "";
}

function verdict(row, place) {
  if (place === "far" && row.vacuous_far) return element("td", { class: "soft" }, "no such place");
  return element("td", { class: row[place] ? "yes" : "no" }, row[place] ? "yes" : "no");
}

function against(certified) {
  const patches = certified.patch_count === 1 ? "a patch" : "two patches";
  const shape = certified.patch_aspect === 1 ? "" : `, ${certified.patch_aspect} times as wide as high`;
  return `Yes: ${patches} of ${100 * certified.patch_area} % of the photograph${shape}, far from the box, close to it, ` +
    `over it or anywhere, cannot hide it (T = ${certified.threshold}). Largest square: a patch up to that side cannot hide it anywhere.`;
}

const drop = byId("drop");
for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => event.preventDefault());
document.addEventListener("dragover", () => drop.classList.add("over"));
for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => send(event.dataTransfer.files[0]));
document.addEventListener("paste", (event) => send(event.clipboardData.files[0]));
byId("file").addEventListener("change", (event) => send(event.target.files[0]));
byId("certify").addEventListener("change", () => send(chosen));
