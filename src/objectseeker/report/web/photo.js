// One image: which it is, what of it is drawn, which object is chosen. It is shown by the overview, by itself, and as a
// frame of its sequence.

const LAYERS = [
  ["truth", data.labeled ? things : `${things} it outputs`, "box certified", true],
  ["labels", "names and scores", "label-key", true],
  ["base", "boxes of the undefended detector", "box base", false],
  ["recovered", "boxes only masking found", "box recovered", false],
  ["positions", "where the patch may hide the chosen object", "positions", true],
  ["worst", "worst place for the patch", "worst", true],
  ["mask", "mask that defeats the patch, and what is seen then", "removed", true],
];
const view = {
  image: -1,
  object: -1,
  x: 0,
  y: 0,
  zoom: { x: 0, y: 0, scale: 1 },
  layers: new Set(LAYERS.filter((layer) => layer[3]).map(([name]) => name)),
  details: null,
  joint: { count: 0, place: null },
  jointOf: "", // what it was computed for
};

function fillPhoto() {
  byId("layers").replaceChildren(
    ...LAYERS.map(([name, words, style]) =>
      make(
        "label",
        {},
        make("input", { type: "checkbox", checked: view.layers.has(name), "data-layer": name, change: toggleLayer }),
        draw(
          "svg",
          { class: "swatch", viewBox: "0 0 30 16", "aria-hidden": "true" },
          name === "labels"
            ? draw("text", { x: 15, y: 12, class: "label", "text-anchor": "middle", "font-size": 11 }, "0.9")
            : draw("rect", { x: 4, y: 3, width: 22, height: 10, class: style }),
        ),
        words,
      ),
    ),
  );
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
}

function toggleLayer({ target }) {
  if (target.checked) view.layers.add(target.dataset.layer);
  else view.layers.delete(target.dataset.layer);
  updatePhoto();
}

function openImage(i, object) {
  const objects = objectsOf(i).filter((n) => !certificates.ignore[n]);
  const preferred = objects.find((n) => gallery.matching.has(n)) ?? objects[0] ?? -1;
  setImage(i, object ?? preferred);
  view.zoom = { x: 0, y: 0, scale: 1 };
  const { width, height } = imageSize();
  const size = patchSize(attack.area, attack.aspect, width, height);
  const [x1, y1, x2, y2] = view.object >= 0 ? boxOf(view.object) : [0, 0, width, height];
  placePatch(Math.round((x1 + x2 - size[0]) / 2), Math.round((y1 + y2 - size[1]) / 2));
  applyZoom();
  loadPhoto();
  updatePhoto();
}

function setImage(i, object) {
  view.image = i;
  view.object = object;
  view.details = null;
  const { width, height } = imageSize();
  const file = data.image_files[i] === data.image_ids[i] ? [] : [" (", apart(data.image_files[i]), ")"];
  byId("image-title").replaceChildren(apart(data.image_ids[i]), ...file);
  byId("saving").textContent = "";
  byId("hero-link").href = `#image/${i}`;
  for (const [name, value] of Object.entries({ width, height })) byId("pixels").setAttribute(name, value);
}

function loadPhoto() {
  const i = view.image;
  const address = photoAddress("view", i);
  const details = stored(`details-${i}`);
  if ((details === null || (address === null && !missing.has(i))) && document.readyState === "loading") {
    whenRead(() => {
      if (view.image === i) {
        loadPhoto();
        updatePhoto();
      }
    });
  }
  view.details = details === null ? null : JSON.parse(details);
  for (const kind of view.details ? ["alone", "together"] : [])
    view.details[kind] = decodeColumn("f4", view.details[kind]);
  byId("no-photo").hidden = !missing.has(i);
  byId("no-photo").textContent =
    "The photograph could not be read when this report was written, or had changed; " +
    "boxes and certificates are those of the run.";
  if (address === null) byId("pixels").removeAttribute("href");
  else byId("pixels").setAttribute("href", address);
}

// The images that Previous and Next go through.
function neighbors() {
  return gallery.images.includes(view.image) ? gallery.images : [...data.image_ids.keys()];
}

function step(by) {
  const list = neighbors();
  const next = list[list.indexOf(view.image) + by];
  if (next === undefined) return;
  location.hash = `image/${next}`;
  showPart(); // at once: the next key may come before the browser says that the address changed
}

function stepObject(by) {
  const objects = objectsOf(view.image).filter((n) => !certificates.ignore[n]);
  const next = objects[objects.indexOf(view.object) + by];
  if (next !== undefined) chooseObject(next);
}

function currentSize() {
  const { width, height } = imageSize();
  return patchSize(attack.area, attack.aspect, width, height);
}

function placePatch(x, y) {
  const { width, height } = imageSize();
  const size = currentSize();
  view.x = Math.min(Math.max(x, 1 - size[0]), width - 1);
  view.y = Math.min(Math.max(y, 1 - size[1]), height - 1);
}

// The address then leads to this object.
function chooseObject(n) {
  view.object = n;
  if (!byId("part-image").hidden) history.replaceState(null, "", `#${addressOf(n)}`);
  if (!byId("part-sequences").hidden) chooseRow(rowOf(n)); // followed from frame to frame
  updatePhoto();
}
const addressOf = (n) => `image/${certificates.image[n]}/${n - certificates.object_first[certificates.image[n]]}`;

function measureJoint(size) {
  const key = `${view.image} ${size} ${attack.threshold}`;
  if (view.jointOf === key) return;
  const objects = objectsOf(view.image).filter((n) => !certificates.ignore[n]);
  view.joint = remainingOf(certificates, objects, size, attack.threshold);
  view.jointOf = key;
}

function updatePhoto() {
  const size = currentSize();
  placePatch(view.x, view.y); // a larger or smaller patch has other outermost positions
  measureJoint(size);
  const shown = (n) => certificates.shownTarget(n, attack.where, size, attack.threshold);
  const proofs = new Map(
    objectsOf(view.image).map((n) => [n, certificates.proofAt(shown(n), view.x, view.y, size, attack.threshold)]),
  );
  const target = view.object < 0 ? -1 : shown(view.object);
  drawBoxes();
  drawPositions(target, size);
  drawWorst(size);
  drawProof(proofs.get(view.object) ?? null);
  drawLabels();
  drawPatch(size);
  listObjects(size, proofs);
  describeChosen(target, size);
  describeFrame();
  const list = neighbors();
  byId("previous").disabled = list[0] === view.image;
  byId("next").disabled = list[list.length - 1] === view.image;
  byId("to-worst").disabled = view.joint.place === null;
}
