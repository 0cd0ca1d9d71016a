// What is drawn on the image.

function drawBoxes() {
  const layer = (name, boxes) => byId(`layer-${name}`).replaceChildren(...(view.layers.has(name) ? boxes : []));
  layer(
    "objects",
    shownBoxes().flatMap((n) => [
      drawBox(boxOf(n, side.certificates), "box-back"),
      drawBox(boxOf(n, side.certificates), `box ${verdictIn(side, n)}${n === view.object ? " chosen" : ""}`),
    ]),
  );
  for (const name of ["base", "recovered"]) {
    layer(
      name,
      (view.details?.[name] ?? []).map(([x1, y1, x2, y2, score, label]) => {
        const box = drawBox([x1, y1, x2, y2], `box ${name}`);
        box.append(draw("title", {}, `\u2068${detectorName(label)}\u2069 ${score}`)); // a title holds no elements
        return box;
      }),
    );
  }
}

// The positions of the patch's center at which no proof holds: dotted all of them, hatched those of the chosen location.
function drawPositions(target, size) {
  const parts = [];
  if (target >= 0 && view.layers.has("positions")) {
    const drawCenters = ([x1, y1, x2, y2], style) =>
      drawBox([x1 + size[0] / 2 - 0.5, y1 + size[1] / 2 - 0.5, x2 + size[0] / 2 + 0.5, y2 + size[1] / 2 + 0.5], style);
    const unproven = side.certificates.unproven(target, size, attack.threshold);
    const allowed = side.certificates.allowed(view.object, attack.location, size);
    for (const rectangle of unproven) {
      for (const positions of allowed) {
        const both = intersect(rectangle, positions);
        if (!isEmpty(both)) parts.push(drawCenters(both, "positions"));
      }
    }
    for (const rectangle of unproven) parts.push(drawCenters(rectangle, "escape"));
  }
  byId("layer-positions").replaceChildren(...parts);
}

function drawProof(proof) {
  const removed = [],
    boxes = [];
  if (proof !== null && view.layers.has("mask")) {
    const { width, height } = side.certificates.masksOf[view.object];
    const [{ mask }] = proof.views;
    for (const { axis, from, to } of stripsOfMask(view.object, mask)) {
      const [start, end] = [Math.max(from, 0), Math.min(to, axis ? height : width)];
      removed.push(drawBox(axis ? [0, start, width, end] : [start, 0, end, height], "removed"));
      for (const at of [from, to].filter(Number.isFinite)) {
        const line = axis ? `M0 ${at}H${width}` : `M${at} 0V${height}`;
        removed.push(draw("path", { class: "removed-line", d: line }));
      }
    }
    const { object_first: objectFirst, target_first: targetFirst, [`${proof.kind}_first`]: rowFirst } = side.certificates;
    const first = rowFirst[targetFirst[objectFirst[view.image]]];
    proof.views.forEach(({ row }, k) => {
      const box = view.details?.[side === SIDES.hide ? proof.kind : "support"].subarray(4 * (row - first), 4 * (row - first) + 4);
      if (box) boxes.push(drawBox(box, k === 0 ? "proving" : "proving weak"));
    });
  }
  byId("layer-mask").replaceChildren(...removed);
  byId("layer-proving").replaceChildren(...boxes);
}

// The worst-case position: the patch at which fewest objects are proven, all of them counted together.
function drawWorst(size) {
  const { worst } = view.joint;
  const box = worst && [worst[0], worst[1], worst[0] + size[0], worst[1] + size[1]];
  byId("layer-worst").replaceChildren(...(worst && view.layers.has("worst") ? [drawBox(box, "worst")] : []));
}

const LETTER = 12; // CSS pixels
const MIN_LABELED_WIDTH = 24; // CSS pixels of a box that gets a label

// Signs, names and scores, always as large as text: the chosen object first, then large ones, as long as there is room.
function drawLabels(proofs) {
  const per = unit(),
    parts = [],
    taken = [];
  for (const [box, signs, name, score, chosen] of view.layers.has("labels") ? labels(proofs) : []) {
    if (box[2] - box[0] < MIN_LABELED_WIDTH * per && !chosen) continue;
    if (box[2] < view.zoom.x) continue; // left of the visible part
    const text = `${signs}${name}${score === null ? "" : " " + score.toFixed(2)}`;
    const long = 0.62 * LETTER * per * text.length,
      high = 1.25 * LETTER * per;
    const right = view.zoom.x + imageSize().width / view.zoom.scale;
    const x = Math.max(Math.min(box[0], right - long), view.zoom.x) + 2 * per;
    const lines = [box[1] - 4 * per, box[1] + high, box[3] + high, box[3] - 4 * per];
    const room = (y) => [x, y - high, x + long, y];
    const free = lines.find((y) => y > view.zoom.y + high && taken.every((one) => isEmpty(intersect(one, room(y)))));
    if (free === undefined && !chosen) continue;
    const y = free ?? lines[1];
    taken.push(room(y));
    const end = score === null ? "" : ` ${score.toFixed(2)}`;
    const attributes = { x, y, class: "label", "font-size": LETTER * per, "stroke-width": 3 * per };
    parts.push(draw("text", attributes, signs, draw("tspan", { class: "name" }, name), end));
  }
  byId("layer-labels").replaceChildren(...parts);
}

// The labels of the layers that are shown: box, signs, name, score, whether it is chosen; best first.
function labels(proofs) {
  const found = [];
  if (view.layers.has("objects")) {
    for (const n of shownBoxes().filter((one) => !side.certificates.ignore[one])) {
      const score = side.certificates.found[n] ? side.certificates.score[n] : null;
      const signs = VERDICTS[verdictIn(side, n)].sign + POSITION_SIGNS[positionOf(proofs.get(n))].sign;
      found.push([boxOf(n, side.certificates), `${signs} `, side.nameOf(n), score, n === view.object]);
    }
  }
  for (const layer of ["base", "recovered"]) {
    for (const [x1, y1, x2, y2, score, label] of view.layers.has(layer) ? (view.details?.[layer] ?? []) : [])
      found.push([[x1, y1, x2, y2], "", detectorName(label), score, false]);
  }
  const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);
  return found.sort((a, b) => b[4] - a[4] || area(b[0]) - area(a[0]));
}

function drawPatch(size) {
  const [rect, dot] = byId("patch").children;
  for (const [name, value] of Object.entries({ x: view.x, y: view.y, width: size[0], height: size[1] }))
    rect.setAttribute(name, value);
  for (const [name, value] of Object.entries({ cx: view.x + size[0] / 2, cy: view.y + size[1] / 2, r: 4 * unit() }))
    dot.setAttribute(name, value);
  byId("grip").setAttribute(
    "aria-label",
    `Patch of ${size[0]} by ${size[1]} pixels at ${view.x}, ${view.y}; arrow keys move it`,
  );
  placeGrip(size);
}
