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
        box.append(draw("title", {}, `${data.names[label]} ${score}`));
        return box;
      }),
    );
  }
}

// The positions of the patch's centre from which it escapes every proof: dotted all of them, hatched the allowed ones.
function drawPositions(size) {
  const parts = [];
  if (view.object >= 0 && view.layers.has("positions")) {
    const centred = ([x1, y1, x2, y2], style) =>
      drawBox([x1 + size[0] / 2 - 0.5, y1 + size[1] / 2 - 0.5, x2 + size[0] / 2 + 0.5, y2 + size[1] / 2 + 0.5], style);
    const open = certificates.unproven(view.object, size, attack.threshold);
    const allowed = certificates.allowed(view.object, attack.where, size);
    for (const rectangle of open) {
      for (const place of allowed) {
        const both = intersect(rectangle, place);
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
    const { width, height, side, line } = certificates.masksOf[view.object];
    const [{ mask }] = proof.views;
    const at = line[mask];
    removed.push(
      drawBox(
        [
          [0, 0, at, height],
          [0, 0, width, at],
          [at, 0, width, height],
          [0, at, width, height],
        ][side[mask]],
        "removed",
      ),
      draw("path", { class: "removed-line", d: side[mask] % 2 ? `M0 ${at}H${width}` : `M${at} 0V${height}` }),
    );
    const first = certificates[proof.kind + "_first"][certificates.object_first[view.image]];
    proof.views.forEach(({ row }, k) => {
      const box = view.details?.[proof.kind][row - first];
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

const maskWords = (n, mask) => {
  const { side, line } = certificates.masksOf[n];
  return (
    ["everything left of x = ", "everything above y = ", "everything right of x = ", "everything below y = "][
      side[mask]
    ] + line[mask]
  );
};

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
        ? "No objects here."
        : hidden
          ? `✗ It may hide ${hidden} of ${plural(real.length, "object")}.`
          : `✓ It cannot hide ${real.length === 1 ? "the object" : `any of the ${real.length} objects`}.`,
    ),
  );
  const focused = document.activeElement?.dataset?.object;
  byId("objects").replaceChildren(
    ...objects.map((n) => {
      const kind = kindOf(n),
        proof = proofs.get(n);
      const place = certificates.place(n, view.x, view.y, size);
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
          make("span", { class: `mark ${kind}` }, `${KINDS[kind].symbol} ${data.names[certificates.label[n]]}`),
          make(
            "span",
            { class: "soft" },
            `${areaWords(certificates.size[n])} of the image; ${attack.where}: ${KINDS[kind].words}`,
          ),
          make(
            "span",
            { class: "soft" },
            make("span", { class: `mark ${proof === null ? "open" : "certified"}` }, proof === null ? "✗" : "✓"),
            ` ${place}: ${proofWords(n, proof)}`,
          ),
        ),
      );
    }),
  );
  if (focused !== undefined) byId("objects").querySelector(`[data-object="${focused}"]`)?.focus();
  describeChosen(size);
}

function describeChosen(size) {
  const n = view.object,
    rows = [];
  if (n >= 0) {
    const { lines, stars } = certificates.at(n, attack.threshold);
    const side = certificates.largestSquare(n, attack.threshold);
    const { width, height } = certificates.masksOf[n];
    const open = certificates.unproven(n, size, attack.threshold);
    const total = (width + size[0] - 1) * (height + size[1] - 1);
    const left = open.reduce((sum, [x1, y1, x2, y2]) => sum + (x2 - x1 + 1) * (y2 - y1 + 1), 0);
    rows.push(
      [
        "largest square that cannot hide it, anywhere",
        side ? `${side} px, ${areaWords((side * side) / (width * height))}` : "none",
      ],
      ["positions of this patch without a proof", `${percent((100 * left) / total)} %`],
      ["four lines XL, YT, XR, YB", lines.join(", ")],
    );
    if (data.evidence) rows.push(["groups of views that add up", String(stars.length)]);
  }
  byId("chosen").replaceChildren(
    ...(rows.length ? [make("h3", {}, `Chosen: ${data.names[certificates.label[n]]}`)] : []),
    make("dl", {}, ...rows.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)])),
  );
}
