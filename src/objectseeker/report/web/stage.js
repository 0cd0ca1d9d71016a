// The photograph under the reader's hand: the grip of the patch, zoom and pan.
//
// The grip is an element of its own over the patch: only there a finger moves the patch. Elsewhere it scrolls the page,
// unless the picture is zoomed; then it moves the picture.

const MOST_ZOOM = 16;
const SMALLEST_GRIP = 44; // CSS pixels, for a finger
const TAP = 4; // CSS pixels that a finger or mouse may move and still only point

function imageSize() {
  return data.masks[data.image_masks[view.image]];
}

// User units that one CSS pixel covers.
function unit() {
  const matrix = byId("photo").getScreenCTM();
  return matrix && matrix.a ? 1 / matrix.a : 1;
}

function pointAt({ clientX, clientY }) {
  const matrix = byId("photo").getScreenCTM();
  return [(clientX - matrix.e) / matrix.a, (clientY - matrix.f) / matrix.d];
}

// Zoomed around a point, which keeps its place on the screen.
function zoomTo(scale, [x, y]) {
  const { width, height } = imageSize();
  const { zoom } = view;
  scale = Math.min(Math.max(scale, 1), MOST_ZOOM);
  zoom.x = x - ((x - zoom.x) * zoom.scale) / scale;
  zoom.y = y - ((y - zoom.y) * zoom.scale) / scale;
  zoom.scale = scale;
  zoom.x = Math.min(Math.max(zoom.x, 0), width - width / scale);
  zoom.y = Math.min(Math.max(zoom.y, 0), height - height / scale);
  applyZoom();
  updatePhoto();
}

function applyZoom() {
  const { width, height } = imageSize();
  const { x, y, scale } = view.zoom;
  byId("photo").setAttribute("viewBox", `${x} ${y} ${width / scale} ${height / scale}`);
  byId("frame").classList.toggle("zoomed", scale > 1);
  byId("zoom-out").disabled = byId("zoom-all").disabled = scale === 1;
  byId("zoom-in").disabled = scale === MOST_ZOOM;
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

// Lays the grip over the patch, as large as a finger needs it.
function placeGrip(size) {
  const matrix = byId("photo").getScreenCTM();
  const frame = byId("frame").getBoundingClientRect();
  if (!matrix || !frame.width) return;
  const long = size.map((side) => Math.max(side * matrix.a, SMALLEST_GRIP));
  const middle = [view.x + size[0] / 2, view.y + size[1] / 2];
  const { style } = byId("grip");
  style.left = `${middle[0] * matrix.a + matrix.e - frame.left - long[0] / 2}px`;
  style.top = `${middle[1] * matrix.d + matrix.f - frame.top - long[1] / 2}px`;
  [style.width, style.height] = long.map((side) => `${side}px`);
}

// Calls `move` for every movement of a pointer that went down on an element, and `tap` if it hardly moved at all.
function follow(element, { begin, move, tap }) {
  const down = new Map();
  element.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    down.set(event.pointerId, { at: event, first: event, moved: false, begun: begin?.(event) });
    if (element !== byId("photo") || view.zoom.scale > 1) element.setPointerCapture(event.pointerId);
  });
  element.addEventListener("pointermove", (event) => {
    const mine = down.get(event.pointerId);
    if (!mine) return;
    mine.moved ||= Math.hypot(event.clientX - mine.first.clientX, event.clientY - mine.first.clientY) > TAP;
    if (mine.moved) move(event, mine, [...down.values()]);
    mine.at = event;
  });
  element.addEventListener("pointerup", (event) => {
    const mine = down.get(event.pointerId);
    if (mine && !mine.moved) tap(event);
    down.delete(event.pointerId);
  });
  element.addEventListener("pointercancel", (event) => down.delete(event.pointerId));
}

function fillStage() {
  follow(byId("grip"), {
    begin(event) {
      const [x, y] = pointAt(event);
      return [view.x - x, view.y - y];
    },
    move(event, { begun: [dx, dy] }) {
      const [x, y] = pointAt(event);
      placePatch(Math.round(x + dx), Math.round(y + dy));
      updatePhoto();
    },
    tap: chooseAt,
  });
  follow(byId("photo"), { move: moveView, tap: chooseAt });
  byId("photo").addEventListener("dblclick", (event) => zoomTo(view.zoom.scale * 2, pointAt(event)));
  byId("frame").addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return; // a wheel alone scrolls the page
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

// One finger or the mouse moves a zoomed picture, two fingers zoom it.
function moveView(event, mine, all) {
  if (view.zoom.scale === 1 && all.length < 2) return;
  const other = all.find((one) => one !== mine)?.at;
  if (other === undefined) {
    const per = unit();
    panBy((event.clientX - mine.at.clientX) * per, (event.clientY - mine.at.clientY) * per);
    return;
  }
  const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  zoomTo((view.zoom.scale * apart(event)) / Math.max(apart(mine.at), 1), pointAt(other));
}

function movePatchByKey(event) {
  const far = event.shiftKey ? 10 : 1;
  const by = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far] }[event.key];
  if (by === undefined) return;
  event.preventDefault();
  placePatch(view.x + by[0], view.y + by[1]);
  updatePhoto();
}

// The smallest object at a point is chosen.
function chooseAt(event) {
  const [x, y] = pointAt(event);
  const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);
  const here = objectsOf(view.image).filter((n) => {
    const [x1, y1, x2, y2] = boxOf(n);
    return x1 <= x && x < x2 && y1 <= y && y < y2;
  });
  here.sort((a, b) => area(boxOf(a)) - area(boxOf(b)));
  if (here.length) chooseObject(here[0]);
}

function toWorst() {
  const { place } = view.joint;
  if (place === null) return;
  placePatch(...place);
  updatePhoto();
}
