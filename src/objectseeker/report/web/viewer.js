// One image: which it is, which layers are drawn, which object is chosen; the grip of the patch, zoom and pan. The
// overview shows it, the image part, and its sequence.
//
// The grip is a separate element over the patch: only there a finger moves the patch. Elsewhere a finger scrolls the page,
// or moves the image if it is zoomed.

const LAYERS = [
  ["objects", data.labeled ? things : `output ${things}`, "box certified", true],
  ["labels", "signs, names and scores", "label-key", true],
  ["base", "base boxes (undefended detector)", "box base", false],
  ["recovered", "boxes recovered by masking", "box recovered", false],
  ["positions", "unproven patch positions of the chosen object", "positions", true],
  ["worst", "worst-case patch position", "worst", true],
  ["mask", "view that proves the chosen object: what it removes, its box", "removed", true],
];
const view = {
  image: -1,
  object: -1,
  x: 0,
  y: 0,
  zoom: { x: 0, y: 0, scale: 1 },
  layers: new Set(LAYERS.filter((layer) => layer[3]).map(([name]) => name)),
  details: null,
  joint: { count: 0, worst: null },
  jointKey: "", // image, patch and T of `joint`
};

// The boxes of the image that the chosen side is about.
const shownBoxes = (i = view.image) => objectsOf(i, side.certificates);

function fillQuestion() {
  byId("question").addEventListener("change", ({ target }) => ask(target.value));
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  ask("hide");
}

// Choose the side that the image shows.
function ask(name) {
  side = SIDES[name];
  byId("question").elements[name === "hide" ? 0 : 1].checked = true;
  byId("question-words").textContent = side.question;
  for (const words of document.querySelectorAll(".if-hide")) words.hidden = name !== "hide";
  byId("attack-meaning").textContent = meaningWords();
  fillLayers();
  if (view.image < 0) return;
  view.object = shownBoxes().find((n) => !side.certificates.ignore[n]) ?? -1;
  certifyShown();
  updateView();
}

function fillLayers() {
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
            : draw("rect", { x: 4, y: 3, width: 22, height: 10, class: name === "objects" ? `box ${side.styles.certified}` : style }),
        ),
        side.layers[name] ?? words,
      ),
    ),
  );
}

// Two questions on each side, each with its own signs: is a box certified for the chosen location, and is it proven or
// supported at the one position where the patch is drawn?
function updateLegend() {
  const styles = new Set(shownBoxes().map((n) => verdictIn(side, n)));
  const entry = (style, words) => {
    const box = draw("rect", { x: 4, y: 3, width: 22, height: 10, class: `box ${style}` });
    const swatch = draw("svg", { class: "swatch", viewBox: "0 0 30 16", "aria-hidden": "true" }, box);
    return make("span", {}, ...(style in VERDICTS ? [swatch, " "] : []), signOf(style, words));
  };
  const always = [side.styles.certified, side.styles.uncertified];
  const verdictEntries = Object.keys(VERDICTS).filter((style) => always.includes(style) || styles.has(style));
  byId("legend").replaceChildren(
    make("dt", {}, attack.location === "anywhere" ? "Patch anywhere" : `Patch ${attack.location}, any such position`),
    make("dd", {}, ...verdictEntries.map((style) => entry(style, VERDICTS[style].words))),
    make("dt", {}, "Patch as drawn, this one position"),
    make("dd", {}, ...Object.values(side.positions).map((style) => entry(style, POSITION_SIGNS[style].words))),
  );
}

function toggleLayer({ target }) {
  if (target.checked) view.layers.add(target.dataset.layer);
  else view.layers.delete(target.dataset.layer);
  updateView();
}

function openImage(i, object) {
  const objects = shownBoxes(i).filter((n) => !side.certificates.ignore[n]);
  const preferred = (side === SIDES.hide ? objects.find((n) => gallery.matching.has(n)) : undefined) ?? objects[0] ?? -1;
  setImage(i, object ?? preferred);
  view.zoom = { x: 0, y: 0, scale: 1 };
  const { width, height } = imageSize();
  const size = patchSize(attack.area, attack.aspect, width, height);
  const [x1, y1, x2, y2] = view.object >= 0 ? boxOf(view.object, side.certificates) : [0, 0, width, height];
  placePatch(Math.round((x1 + x2 - size[0]) / 2), Math.round((y1 + y2 - size[1]) / 2));
  applyZoom();
  loadImage();
  updateView();
}

// The visible image is certified first, and at once.
function certifyShown() {
  const unknown = shownBoxes().filter((n) => !side.verdicts.known[n]);
  for (const _ of certifyObjects(attack, unknown, side.verdicts, side.certificates));
}

function setImage(i, object) {
  view.image = i;
  view.object = object;
  view.details = null;
  certifyShown();
  const { width, height } = imageSize();
  const file = data.image_files[i] === data.image_ids[i] ? [] : [" (", isolate(data.image_files[i]), ")"];
  byId("image-title").replaceChildren(isolate(data.image_ids[i]), ...file);
  byId("save-status").textContent = "";
  byId("hero-link").href = `#image/${i}`;
  for (const [name, value] of Object.entries({ width, height })) byId("pixels").setAttribute(name, value);
}

function loadImage() {
  const i = view.image;
  const address = imageAddress("view", i);
  const details = stored(`details-${i}`);
  if ((details === null || (address === null && !missing.has(i))) && document.readyState === "loading") {
    whenRead(() => {
      if (view.image === i) {
        loadImage();
        updateView();
      }
    });
  }
  view.details = details === null ? null : JSON.parse(details);
  for (const kind of view.details ? ["single_view", "multi_view", "support"] : [])
    view.details[kind] = decodeColumn("f4", view.details[kind]);
  byId("no-image").hidden = !missing.has(i);
  byId("no-image").textContent =
    "The image could not be read when this report was written, or had another size; " +
    "boxes and certificates are those of the run.";
  if (address === null) byId("pixels").removeAttribute("href");
  else byId("pixels").setAttribute("href", address);
}

// The images that Previous and Next step through.
function neighbors() {
  return gallery.images.includes(view.image) ? gallery.images : [...data.image_ids.keys()];
}

function step(by) {
  const list = neighbors();
  const next = list[list.indexOf(view.image) + by];
  if (next === undefined) return;
  location.hash = `image/${next}`;
  showPart(); // at once: the next key may come before the browser reports the new address
}

function stepObject(by) {
  const objects = shownBoxes().filter((n) => !side.certificates.ignore[n]);
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

// The address then links to this object.
function chooseObject(n) {
  view.object = n;
  if (!byId("part-image").hidden) history.replaceState(null, "", `#${addressOf(n)}`);
  if (!byId("part-sequences").hidden) chooseRow(rowOf(n)); // followed from frame to frame
  updateView();
}
// Addresses name objects: under the other side that of the image stands.
function addressOf(n) {
  const i = side.certificates.image[n];
  return side === SIDES.hide ? `image/${i}/${n - certificates.object_first[i]}` : `image/${i}`;
}

function measureJoint(size) {
  const key = `${side.question} ${view.image} ${size} ${attack.threshold}`;
  if (view.jointKey === key) return;
  const objects = shownBoxes().filter((n) => !side.certificates.ignore[n]);
  view.joint = jointCertificate(side.certificates, objects, size, attack.threshold);
  view.jointKey = key;
}

function updateView() {
  const size = currentSize();
  placePatch(view.x, view.y); // a patch of another size has other outermost positions
  measureJoint(size);
  const shown = (n) => side.certificates.shownTarget(n, attack.location, size, attack.threshold);
  const proofs = new Map(
    shownBoxes().map((n) => [n, side.certificates.proofAt(shown(n), view.x, view.y, size, attack.threshold)]),
  );
  const target = view.object < 0 ? -1 : shown(view.object);
  drawBoxes();
  drawPositions(target, size);
  drawWorst(size);
  drawProof(proofs.get(view.object) ?? null);
  drawLabels(proofs);
  drawPatch(size);
  listObjects(size, proofs);
  describeChosen(target, size);
  updateLegend();
  describeFrame();
  const list = neighbors();
  byId("previous").disabled = list[0] === view.image;
  byId("next").disabled = list[list.length - 1] === view.image;
  byId("to-worst").disabled = view.joint.worst === null;
}


const MAX_ZOOM = 16;
const MIN_GRIP = 44; // CSS pixels, for a finger
const MAX_TAP = 4; // CSS pixels that a finger or mouse may move in a tap

function imageSize() {
  return data.masks[data.image_masks[view.image]];
}

// User units that one CSS pixel covers.
function unit() {
  const matrix = byId("image-view").getScreenCTM();
  return matrix && matrix.a ? 1 / matrix.a : 1;
}

function pointAt({ clientX, clientY }) {
  const matrix = byId("image-view").getScreenCTM();
  return [(clientX - matrix.e) / matrix.a, (clientY - matrix.f) / matrix.d];
}

// Zoom around a point, which keeps its position on the screen.
function zoomTo(scale, [x, y]) {
  const { width, height } = imageSize();
  const { zoom } = view;
  scale = Math.min(Math.max(scale, 1), MAX_ZOOM);
  zoom.x = x - ((x - zoom.x) * zoom.scale) / scale;
  zoom.y = y - ((y - zoom.y) * zoom.scale) / scale;
  zoom.scale = scale;
  zoom.x = Math.min(Math.max(zoom.x, 0), width - width / scale);
  zoom.y = Math.min(Math.max(zoom.y, 0), height - height / scale);
  applyZoom();
  updateView();
}

function applyZoom() {
  const { width, height } = imageSize();
  const { x, y, scale } = view.zoom;
  byId("image-view").setAttribute("viewBox", `${x} ${y} ${width / scale} ${height / scale}`);
  byId("frame").classList.toggle("zoomed", scale > 1);
  byId("zoom-out").disabled = byId("zoom-all").disabled = scale === 1;
  byId("zoom-in").disabled = scale === MAX_ZOOM;
}

function zoomBy(factor) {
  const size = currentSize();
  zoomTo(view.zoom.scale * factor, [view.x + size[0] / 2, view.y + size[1] / 2]);
}

function panBy(dx, dy) {
  view.zoom.x -= dx;
  view.zoom.y -= dy;
  zoomTo(view.zoom.scale, [view.zoom.x, view.zoom.y]);
}

// Place the grip over the patch, as large as a finger needs it.
function placeGrip(size) {
  const matrix = byId("image-view").getScreenCTM();
  const frame = byId("frame").getBoundingClientRect();
  if (!matrix || !frame.width) return;
  const long = size.map((side) => Math.max(side * matrix.a, MIN_GRIP));
  const middle = [view.x + size[0] / 2, view.y + size[1] / 2];
  const { style } = byId("grip");
  style.left = `${middle[0] * matrix.a + matrix.e - frame.left - long[0] / 2}px`;
  style.top = `${middle[1] * matrix.d + matrix.f - frame.top - long[1] / 2}px`;
  [style.width, style.height] = long.map((side) => `${side}px`);
}

// Call `move` for every movement of a pointer that went down on an element, and `tap` if it hardly moved.
function trackPointer(element, { begin, move, tap }) {
  const down = new Map();
  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    down.set(event.pointerId, { at: event, first: event, moved: false, begun: begin?.(event) });
    if (element !== byId("image-view") || view.zoom.scale > 1) element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    const pointer = down.get(event.pointerId);
    if (!pointer) return;
    pointer.moved ||= Math.hypot(event.clientX - pointer.first.clientX, event.clientY - pointer.first.clientY) > MAX_TAP;
    if (pointer.moved) move(event, pointer, [...down.values()]);
    pointer.at = event;
  });
  element.addEventListener("pointerup", (event) => {
    const pointer = down.get(event.pointerId);
    if (pointer && !pointer.moved) tap(event);
    down.delete(event.pointerId);
  });
  element.addEventListener("pointercancel", (event) => down.delete(event.pointerId));
}

function fillStage() {
  trackPointer(byId("grip"), {
    begin(event) {
      const [x, y] = pointAt(event);
      return [view.x - x, view.y - y];
    },
    move(event, { begun: [dx, dy] }) {
      const [x, y] = pointAt(event);
      placePatch(Math.round(x + dx), Math.round(y + dy));
      updateView();
    },
    tap: chooseAt,
  });
  trackPointer(byId("image-view"), { move: moveView, tap: chooseAt });
  byId("image-view").addEventListener("dblclick", (event) => zoomTo(view.zoom.scale * 2, pointAt(event)));
  byId("frame").addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return; // a wheel without Ctrl scrolls the page
      event.preventDefault();
      zoomTo(view.zoom.scale * 2 ** (-event.deltaY / 200), pointAt(event));
    },
    { passive: false },
  );
  byId("zoom-in").addEventListener("click", () => zoomBy(2));
  byId("zoom-out").addEventListener("click", () => zoomBy(1 / 2));
  byId("zoom-all").addEventListener("click", () => zoomTo(1, [0, 0]));
  byId("to-worst").addEventListener("click", toWorst);
  byId("grip").addEventListener("keydown", movePatchByKey);
}

// One finger or the mouse moves a zoomed image, two fingers zoom it.
function moveView(event, pointer, all) {
  if (view.zoom.scale === 1 && all.length < 2) return;
  const other = all.find((one) => one !== pointer)?.at;
  if (other === undefined) {
    const per = unit();
    panBy((event.clientX - pointer.at.clientX) * per, (event.clientY - pointer.at.clientY) * per);
    return;
  }
  const distance = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  zoomTo((view.zoom.scale * distance(event)) / Math.max(distance(pointer.at), 1), pointAt(other));
}

function movePatchByKey(event) {
  const far = event.shiftKey ? 10 : 1;
  const by = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far] }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  placePatch(view.x + by[0], view.y + by[1]);
  updateView();
}

// Choose the smallest object at a point.
function chooseAt(event) {
  const [x, y] = pointAt(event);
  const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);
  const here = shownBoxes().filter((n) => {
    const [x1, y1, x2, y2] = boxOf(n, side.certificates);
    return x1 <= x && x < x2 && y1 <= y && y < y2;
  });
  here.sort((a, b) => area(boxOf(a, side.certificates)) - area(boxOf(b, side.certificates)));
  if (here.length) chooseObject(here[0]);
}

function toWorst() {
  const { worst } = view.joint;
  if (worst === null) return;
  placePatch(...worst);
  updateView();
}
