// Files for the reader: the filtered list as CSV, the annotated image as PNG. Both are made in the page.

// Escape a cell against CSV injection, as text.escape_csv_cell: a spreadsheet must not evaluate a name as a formula.
function escapeCsvCell(value) {
  let text = String(value ?? "");
  if (/^[=+\-@\t\r]/.test(text) && !/^-(\d+(\.\d+)?(e[+-]?\d+)?)?$/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function listRow(n) {
  const i = certificates.image[n];
  const [x1, y1, x2, y2] = boxOf(n);
  const row = {
    image: data.image_ids[i],
    object: n - certificates.object_first[i],
    class: data.names[certificates.label[n]],
    x1,
    y1,
    x2,
    y2,
    share_of_image: certificates.size[n],
    found_undefended: Boolean(certificates.found[n] & 1),
    found_defended: Boolean(certificates.found[n] & 2),
    score: certificates.found[n] ? +certificates.score[n].toPrecision(6) : "",
  };
  for (const location of locations) row[`certified_${location}`] = Boolean(verdicts[location].certified[n]);
  row.vacuous_far = Boolean(verdicts.far.vacuous[n]);
  row.largest_square = squares.side[n];
  if (baseline) for (const location of locations) row[`baseline_${location}`] = Boolean(baselineVerdicts[location].certified[n]);
  return { ...row, patch_area: attack.area, patch_aspect: attack.aspect, certification_threshold: attack.threshold };
}

function listAsCsv() {
  const rows = gallery.images.flatMap((i) => objectsOf(i).filter((n) => gallery.matching.has(n))).map(listRow);
  const head = Object.keys(rows[0] ?? listRow(0));
  return [head, ...rows.map(Object.values)].map((cells) => cells.map(escapeCsvCell).join(",") + "\n").join("");
}

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray"];
STYLES.push("stroke-linecap", "vector-effect", "paint-order", "font-size", "font-family", "font-weight");
STYLES.push("unicode-bidi");
const PNG_WIDTH = 1600;

// The annotated image exactly as on the screen, with its styles inside and nothing to load.
function imageAsSvg() {
  const annotated = byId("image-view").cloneNode(true);
  const [, , width, height] = annotated.getAttribute("viewBox").split(" ").map(Number);
  const styled = [...byId("image-view").querySelectorAll("rect, path, circle, text, tspan")];
  for (const [at, element] of [...annotated.querySelectorAll("rect, path, circle, text, tspan")].entries()) {
    const style = getComputedStyle(styled[at]);
    element.setAttribute("style", STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  }
  annotated.setAttribute("xmlns", SVG);
  annotated.setAttribute("width", PNG_WIDTH);
  annotated.setAttribute("height", Math.round((PNG_WIDTH * height) / width));
  return annotated;
}

async function imagePng() {
  const annotated = imageAsSvg();
  const image = new Image();
  image.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(annotated));
  await image.decode();
  const canvas = make("canvas", { width: annotated.getAttribute("width"), height: annotated.getAttribute("height") });
  canvas.getContext("2d").drawImage(image, 0, 0);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function fillSaving() {
  byId("save-list").addEventListener("click", () => save(new Blob([listAsCsv()], { type: "text/csv" }), "objects.csv"));
  byId("save-image").addEventListener("click", async () => {
    // An image in a folder is another file: an image inside an image may not load it.
    const without = "The image is in another file and cannot be saved with its boxes: only the boxes are.";
    byId("save-status").textContent = data.image_folder === null ? "" : without;
    save(await imagePng(), `${data.image_ids[view.image].replace(/[^\p{L}\p{N}._-]+/gu, "-")}.png`);
  });
}
