"use strict";
// Everything from the server or a file is set as text or as a number, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const LOCATIONS = ["far", "close", "over", "anywhere"];
const byId = (id) => document.getElementById(id);
let latest = 0; // responses to replaced images are ignored
let imageUrl = null; // of the image on the screen
let imageFile = null;

byId("certify").checked = new URLSearchParams(location.search).get("certify") === "1";

function setStatus(message, isError = false) {
  byId("status").textContent = message;
  byId("status").classList.toggle("error", isError);
}

function element(name, attributes, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

async function send(file) {
  if (!file) return;
  imageFile = file;
  const turn = ++latest;
  const certify = byId("certify").checked;
  byId("result").hidden = true;
  setStatus(certify ? "Detecting and certifying ..." : "Detecting ...");
  try {
    const response = await fetch(certify ? "detect?certify=1" : "detect", { method: "POST", body: file });
    const answer = await response.json();
    if (turn !== latest) return;
    if (!response.ok) return setStatus(String(answer.error), true);
    show(file, answer);
  } catch (error) {
    if (turn === latest) setStatus("No response from the server: " + error.message, true);
  }
}

function show(file, answer) {
  const recovered = answer.recovered_boxes;
  const count = answer.detections.length;
  setStatus(`${count} ${count === 1 ? "box" : "boxes"}, ${recovered} recovered by masking.`);
  byId("alert").hidden = !answer.alert;
  byId("result").hidden = false;
  showImage(file, answer);
  showTable(answer);
  byId("defense").textContent = "Defense " + answer.defense_sha256;
}

function showImage(file, answer) {
  const image = byId("image");
  if (imageUrl) URL.revokeObjectURL(imageUrl);
  imageUrl = URL.createObjectURL(file);
  image.parentElement.classList.remove("no-preview");
  image.onerror = () => image.parentElement.classList.add("no-preview"); // a format that browsers cannot show
  image.width = answer.width;
  image.height = answer.height;
  image.src = imageUrl;
  const drawing = byId("boxes");
  drawing.setAttribute("viewBox", `0 0 ${answer.width} ${answer.height}`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.replaceChildren(...answer.detections.map((row) => {
    const group = document.createElementNS(SVG, "g");
    for (const kind of ["box-back", row.origin === "recovered" ? "box recovered" : "box base"]) {
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
  const side = [...LOCATIONS, "largest square"];
  const columns = ["class", "score", ...(certified ? ["certified score"] : []), "origin", ...(certified ? [...side, ...side] : [])];
  const head = element("tr", {});
  head.append(...columns.map((name) => element("th", { scope: "col" }, name)));
  const sides = element("tr", {});
  sides.append(element("td", { colspan: columns.length - 2 * side.length }), ...["cannot hide", "cannot have made"].map((name) =>
    element("th", { scope: "colgroup", colspan: side.length }, "a patch " + name + " the box")));
  byId("table").tHead.replaceChildren(...(certified ? [sides] : []), head);
  const groups = byId("boxes").children;
  byId("table").tBodies[0].replaceChildren(...answer.detections.map((row, number) => {
    const line = element("tr", {});
    line.append(element("td", {}, row.category_name), element("td", {}, row.score.toFixed(2)));
    if (certified) line.append(element("td", {}, row.certified_score.toFixed(2)));
    line.append(element("td", {}, row.origin));
    if (certified) line.append(...verdicts(row, "", ""), ...verdicts(row, "certified_not_fabricated_", "_not_fabricated"));
    line.addEventListener("mouseenter", () => groups[number].classList.add("selected"));
    line.addEventListener("mouseleave", () => groups[number].classList.remove("selected"));
    return line;
  }));
  byId("threat").textContent = certified ? describeThreat(certified) : "";
}

function verdicts(row, prefix, suffix) {
  const square = row["largest_square" + suffix];
  return [...LOCATIONS.map((patchLocation) => verdict(row, patchLocation, row[prefix + patchLocation])), element("td", {}, square ? square + " px" : "none")];
}

function verdict(row, patchLocation, certified) {
  if (patchLocation === "far" && row.vacuous_far) return element("td", { class: "soft" }, "no far position");
  return element("td", { class: certified ? "yes" : "no" }, certified ? "yes" : "no");
}

function describeThreat(certified) {
  const patches = certified.patch_count === 1 ? "a patch" : `${certified.patch_count} patches`;
  const shape = certified.patch_aspect === 1 ? "" : `, ${certified.patch_aspect} times as wide as high`;
  return `Yes: ${patches} of ${100 * certified.patch_area} % of the image${shape} cannot hide the box, or cannot have made it or its class, from any such position: ` +
    `far from it, close to it, over it, or anywhere (T = ${certified.certification_threshold}). Largest square: no patch up to that side can at any position. ` +
    `Certified score: no such patch anywhere can have made a higher one than the views without it show; from ${certified.support_threshold} on the box is certified not fabricated.`;
}

const drop = byId("drop");
for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => event.preventDefault());
document.addEventListener("dragover", () => drop.classList.add("over"));
for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => drop.classList.remove("over"));
document.addEventListener("drop", (event) => send(event.dataTransfer.files[0]));
document.addEventListener("paste", (event) => send(event.clipboardData.files[0]));
byId("file").addEventListener("change", (event) => send(event.target.files[0]));
byId("certify").addEventListener("change", () => send(imageFile));
