// What is drawn on the photograph and said beside it.

function drawBoxes() {
  const layer = (name, boxes) => byId(`layer-${name}`).replaceChildren(...(view.layers.has(name) ? boxes : []));
  layer(
    "truth",
    objectsOf(view.image).flatMap((n) => [
      drawBox(boxOf(n), "box-back"),
      drawBox(boxOf(n), `box ${kindOf(n)}${n === view.object ? " chosen" : ""}`),
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

// The positions of the patch's centre from which it escapes every proof: dotted all of them, hatched the allowed ones.
function drawPositions(target, size) {
  const parts = [];
  if (target >= 0 && view.layers.has("positions")) {
    const centred = ([x1, y1, x2, y2], style) =>
      drawBox([x1 + size[0] / 2 - 0.5, y1 + size[1] / 2 - 0.5, x2 + size[0] / 2 + 0.5, y2 + size[1] / 2 + 0.5], style);
    const open = certificates.unproven(target, size, attack.threshold);
    const allowed = certificates.allowed(view.object, attack.where, size);
    for (const rectangle of open) {
      for (const positions of allowed) {
        const both = intersect(rectangle, positions);
        if (!isEmpty(both)) parts.push(centred(both, "positions"));
      }
    }
    for (const rectangle of open) parts.push(centred(rectangle, "escape"));
  }
  byId("layer-positions").replaceChildren(...parts);
}

function drawProof(proof) {
  const removed = [],
    boxes = [];
  if (proof !== null && view.layers.has("mask")) {
    const { width, height, axis, start, end } = certificates.masksOf[view.object];
    const [{ mask }] = proof.views;
    const strip = axis[mask] ? [0, start[mask], width, end[mask]] : [start[mask], 0, end[mask], height];
    removed.push(drawBox(strip, "removed"));
    for (const at of linesOf(view.object, mask)) {
      const line = axis[mask] ? `M0 ${at}H${width}` : `M${at} 0V${height}`;
      removed.push(draw("path", { class: "removed-line", d: line }));
    }
    const first = certificates[proof.kind + "_first"][certificates.target_first[certificates.object_first[view.image]]];
    proof.views.forEach(({ row }, k) => {
      const box = view.details?.[proof.kind].subarray(4 * (row - first), 4 * (row - first) + 4);
      if (box) boxes.push(drawBox(box, k === 0 ? "seen" : "seen weak"));
    });
  }
  byId("layer-mask").replaceChildren(...removed);
  byId("layer-seen").replaceChildren(...boxes);
}

function drawPatch(size) {
  const patch = byId("patch");
  const [rect, dot] = patch.children;
  for (const [name, value] of Object.entries({ x: view.x, y: view.y, width: size[0], height: size[1] }))
    rect.setAttribute(name, value);
  const { width } = data.masks[data.image_masks[view.image]];
  for (const [name, value] of Object.entries({ cx: view.x + size[0] / 2, cy: view.y + size[1] / 2, r: width / 130 }))
    dot.setAttribute(name, value);
  patch.setAttribute(
    "aria-label",
    `Patch of ${size[0]} by ${size[1]} pixels at ${view.x}, ${view.y}; arrow keys move it`,
  );
}

// Where a strip ends inside the image.
function linesOf(n, mask) {
  const { from, to } = certificates.masksOf[n];
  return [from[mask], to[mask]].filter(Number.isFinite);
}

function maskWords(n, mask) {
  const { axis, from } = certificates.masksOf[n];
  const name = "xy"[axis[mask]],
    [first, second] = linesOf(n, mask);
  if (second !== undefined) return `everything from ${name} = ${first} to ${second}`;
  const words = Number.isFinite(from[mask]) ? ["right of", "below"] : ["left of", "above"];
  return `everything ${words[axis[mask]]} ${name} = ${first}`;
}

function proofWords(n, proof) {
  if (proof === null) return "this patch may hide it: no proof";
  const by = maskWords(n, proof.views[0].mask);
  return proof.kind === "alone"
    ? `this patch cannot hide it: seen with ${by} removed`
    : `this patch cannot hide it: ${proof.views.length} views together, the strongest with ${by} removed`;
}

function listObjects(size, proofs) {
  const objects = [...proofs.keys()].sort((a, b) => certificates.ignore[a] - certificates.ignore[b] || a - b);
  const real = objects.filter((n) => !certificates.ignore[n]);
  const hidden = real.filter((n) => proofs.get(n) === null).length;
  byId("patch-words").replaceChildren(
    `Patch of ${size[0]} × ${size[1]} pixels at (${view.x}, ${view.y}). `,
    make(
      "strong",
      { class: `mark ${hidden ? "open" : "certified"}` },
      !real.length
        ? `No ${things} here.`
        : hidden
          ? `✗ It may hide ${hidden} of ${countWords(real.length)}.`
          : `✓ It cannot hide ${real.length === 1 ? `the ${thing}` : `any of the ${countWords(real.length)}`}.`,
    ),
  );
  const focused = document.activeElement?.dataset?.object;
  byId("objects").replaceChildren(
    ...objects.map((n) => {
      const kind = kindOf(n),
        proof = proofs.get(n);
      const where = certificates.whereIs(n, view.x, view.y, size);
      return make(
        "li",
        {},
        make(
          "button",
          {
            type: "button",
            "aria-pressed": String(n === view.object),
            "data-object": n,
            "data-proven": String(proof !== null),
            click: () => chooseObject(n),
          },
          make("span", { class: `mark ${kind}` }, `${KINDS[kind].symbol} `, apart(data.names[certificates.label[n]])),
          make(
            "span",
            { class: "soft" },
            `${areaWords(certificates.size[n])} of the image; ${attack.where}: ${KINDS[kind].words}`,
          ),
          make(
            "span",
            { class: "soft" },
            make("span", { class: `mark ${proof === null ? "open" : "certified"}` }, proof === null ? "✗" : "✓"),
            ` ${where}: ${proofWords(n, proof)}`,
          ),
        ),
      );
    }),
  );
  if (focused !== undefined) byId("objects").querySelector(`[data-object="${focused}"]`)?.focus();
}

function describeChosen(target, size) {
  const n = view.object,
    rows = [];
  if (target >= 0) {
    const { alone, safe, stars } = certificates.at(target, attack.threshold);
    const side = certificates.largestSquare(n, attack.threshold);
    const { width, height } = certificates.masksOf[n];
    const open = certificates.unproven(target, size, attack.threshold);
    const labels = certificates.targets[n].length;
    const total = (width + size[0] - 1) * (height + size[1] - 1);
    const left = open.reduce((sum, [x1, y1, x2, y2]) => sum + (x2 - x1 + 1) * (y2 - y1 + 1), 0);
    rows.push(
      [
        "largest square that cannot hide it, anywhere",
        side ? `${side} px, ${areaWords((side * side) / (width * height))}` : "none",
      ],
      ["positions of this patch without a proof", `${percent((100 * left) / total)} %`],
      ["masks under which one box decides alone", String(alone.length)],
    );
    if (data.only_halves) rows.push(["four lines XL, YT, XR, YB", fourLines(safe, width, height).join(", ")]);
    if (data.evidence) rows.push(["groups of views that add up", String(stars.length)]);
    if (labels > 1) {
      const shown = detectorName(certificates.target_label[target]);
      const words = make("span", {}, apart(shown), `, of ${labels} labels that stand for it`);
      rows.push(["as the detector calls it", words]);
    }
    if (certificates.target_partly[target])
      rows.push(["views that add up", "more than this page can hold: only what one mask alone proves is shown"]);
  }
  byId("chosen").replaceChildren(
    ...(n >= 0 ? [make("h3", {}, "Chosen: ", apart(data.names[certificates.label[n]]))] : []),
    make("dl", {}, ...rows.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)])),
  );
}

// The furthest safe left and top mask, the nearest safe right and bottom one.
function fourLines(safe, width, height) {
  const before = safe.map((strips) => strips.find(([from]) => from === -Infinity)?.[1] ?? 0);
  const after = safe.map((strips, axis) => strips.find(([, to]) => to === Infinity)?.[0] ?? [width, height][axis]);
  return [...before, ...after];
}
