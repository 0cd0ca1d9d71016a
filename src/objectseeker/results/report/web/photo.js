// One image: its boxes, the positions from which the patch may hide the chosen object, and the patch itself to drag.

const LAYERS = [
  ["truth", data.labelled ? things : `${things} it outputs`, "box certified", true],
  ["base", "boxes of the undefended detector", "box base", false],
  ["recovered", "boxes only masking found", "box recovered", false],
  ["positions", "where the patch may hide the chosen object", "positions", true],
  ["mask", "mask that defeats the patch, and what is seen then", "removed", true],
];
const view = {
  image: -1,
  object: -1,
  x: 0,
  y: 0,
  layers: new Set(LAYERS.filter((layer) => layer[3]).map(([name]) => name)),
  details: null,
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
          draw("rect", { x: 4, y: 3, width: 22, height: 10, class: style }),
        ),
        words,
      ),
    ),
  );
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("patch").addEventListener("keydown", movePatchByKey);
  byId("photo").addEventListener("pointerdown", grab);
}

function toggleLayer({ target }) {
  if (target.checked) view.layers.add(target.dataset.layer);
  else view.layers.delete(target.dataset.layer);
  updatePhoto();
}

function openImage(i, object) {
  const objects = objectsOf(i).filter((n) => !certificates.ignore[n]);
  const preferred = objects.find((n) => gallery.matching.has(n)) ?? objects[0] ?? -1;
  view.image = i;
  view.object = object ?? preferred;
  view.details = null;
  const { width, height } = data.masks[data.image_masks[i]];
  const file = data.image_files[i] === data.image_ids[i] ? [] : [" (", apart(data.image_files[i]), ")"];
  byId("image-title").replaceChildren(apart(data.image_ids[i]), ...file);
  byId("photo").setAttribute("viewBox", `0 0 ${width} ${height}`);
  for (const [name, value] of Object.entries({ width, height })) byId("pixels").setAttribute(name, value);
  const size = patchSize(attack.area, attack.aspect, width, height);
  const [x1, y1, x2, y2] = view.object >= 0 ? boxOf(view.object) : [0, 0, width, height];
  placePatch(Math.round((x1 + x2 - size[0]) / 2), Math.round((y1 + y2 - size[1]) / 2));
  loadPhoto();
  updatePhoto();
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

function step(by) {
  const list = gallery.images.includes(view.image) ? gallery.images : [...data.image_ids.keys()];
  const next = list[list.indexOf(view.image) + by];
  if (next === undefined) return;
  location.hash = `image/${next}`;
  showPart(); // at once: the next key may come before the browser says that the address changed
}

function currentSize() {
  const { width, height } = data.masks[data.image_masks[view.image]];
  return patchSize(attack.area, attack.aspect, width, height);
}

function placePatch(x, y) {
  const { width, height } = data.masks[data.image_masks[view.image]];
  const size = currentSize();
  view.x = Math.min(Math.max(x, 1 - size[0]), width - 1);
  view.y = Math.min(Math.max(y, 1 - size[1]), height - 1);
}

function movePatchByKey(event) {
  const far = event.shiftKey ? 10 : 1;
  const by = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far] }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  placePatch(view.x + by[0], view.y + by[1]);
  updatePhoto();
}

function pointAt(event) {
  const matrix = byId("photo").getScreenCTM();
  return [(event.clientX - matrix.e) / matrix.a, (event.clientY - matrix.f) / matrix.d];
}

// On the patch: drag it. Elsewhere: choose the smallest object there.
function grab(event) {
  const [x, y] = pointAt(event);
  if (!byId("patch").contains(event.target)) {
    const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);
    const here = objectsOf(view.image).filter((n) => {
      const [x1, y1, x2, y2] = boxOf(n);
      return x1 <= x && x < x2 && y1 <= y && y < y2;
    });
    here.sort((a, b) => area(boxOf(a)) - area(boxOf(b)));
    if (here.length) chooseObject(here[0]);
    return;
  }
  event.preventDefault();
  const patch = byId("patch");
  patch.focus({ preventScroll: true });
  patch.setPointerCapture(event.pointerId);
  const [dx, dy] = [view.x - x, view.y - y];
  const move = (moved) => {
    const [toX, toY] = pointAt(moved);
    placePatch(Math.round(toX + dx), Math.round(toY + dy));
    updatePhoto();
  };
  const stop = () => {
    patch.removeEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) patch.removeEventListener(name, stop);
  };
  patch.addEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) patch.addEventListener(name, stop);
}

function chooseObject(n) {
  view.object = n;
  updatePhoto();
}

function updatePhoto() {
  const size = currentSize();
  placePatch(view.x, view.y); // a larger or smaller patch has other outermost positions
  const shown = (n) => certificates.shownTarget(n, attack.where, size, attack.threshold);
  const proofs = new Map(
    objectsOf(view.image).map((n) => [n, certificates.proofAt(shown(n), view.x, view.y, size, attack.threshold)]),
  );
  const target = view.object < 0 ? -1 : shown(view.object);
  drawBoxes();
  drawPositions(target, size);
  drawProof(proofs.get(view.object) ?? null);
  drawPatch(size);
  listObjects(size, proofs);
  describeChosen(target, size);
  const list = gallery.images.includes(view.image) ? gallery.images : [...data.image_ids.keys()];
  byId("previous").disabled = list[0] === view.image;
  byId("next").disabled = list[list.length - 1] === view.image;
}
