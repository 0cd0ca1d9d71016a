// Files for the reader: the filtered list as CSV, the picture as PNG. Both are made in the page.

// Escape against CSV injection, as text.escape_csv_cell: a spreadsheet must not take a name for a formula.
function csvCell(value) {
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
  for (const where of wheres) row[`certified_${where}`] = Boolean(verdicts[where].certified[n]);
  row.vacuous_far = Boolean(verdicts.far.vacuous[n]);
  row.largest_square = squares.side[n];
  if (before) for (const where of wheres) row[`before_${where}`] = Boolean(verdictsBefore[where].certified[n]);
  return { ...row, patch_area: attack.area, aspect: attack.aspect, threshold: attack.threshold };
}

function listAsCsv() {
  const rows = gallery.images.flatMap((i) => objectsOf(i).filter((n) => gallery.matching.has(n))).map(listRow);
  const head = Object.keys(rows[0] ?? listRow(0));
  return [head, ...rows.map(Object.values)].map((cells) => cells.map(csvCell).join(",") + "\n").join("");
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

// The picture as it is seen, with its styles in it and nothing to load.
function pictureAsSvg() {
  const picture = byId("photo").cloneNode(true);
  const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  const styled = [...byId("photo").querySelectorAll("rect, path, circle, text, tspan")];
  for (const [at, element] of [...picture.querySelectorAll("rect, path, circle, text, tspan")].entries()) {
    const style = getComputedStyle(styled[at]);
    element.setAttribute("style", STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  }
  picture.setAttribute("xmlns", SVG);
  picture.setAttribute("width", PNG_WIDTH);
  picture.setAttribute("height", Math.round((PNG_WIDTH * height) / width));
  return picture;
}

async function picturePng() {
  const picture = pictureAsSvg();
  const image = new Image();
  image.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(picture));
  await image.decode();
  const canvas = make("canvas", { width: picture.getAttribute("width"), height: picture.getAttribute("height") });
  canvas.getContext("2d").drawImage(image, 0, 0);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function fillSaving() {
  byId("save-list").addEventListener("click", () => save(new Blob([listAsCsv()], { type: "text/csv" }), "objects.csv"));
  byId("save-picture").addEventListener("click", async () => {
    // A photograph beside the file is another file: a picture inside a picture may not load it.
    const without = "Photographs beside the file cannot be saved: only boxes are.";
    byId("saving").textContent = data.photos === null ? "" : without;
    save(await picturePng(), `${data.image_ids[view.image].replace(/[^\p{L}\p{N}._-]+/gu, "-")}.png`);
  });
}
