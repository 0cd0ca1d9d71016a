// The joint certificate of one image: of its objects, how many surely remain wherever the one patch lies (core.joint).

// The positions at which none of an object's labels proves it, as rectangles that do not overlap.
function hiddenAt(certificates, n, size, threshold) {
  let hidden = [certificates.everywhere(n, size)];
  for (const t of certificates.targets[n]) {
    const open = certificates.unproven(t, size, threshold);
    hidden = hidden.flatMap((a) => open.map((b) => intersect(a, b))).filter((both) => !isEmpty(both));
  }
  return hidden;
}

// How many of some objects of one image remain at the worst place of the patch, and a worst place. Between the edges of
// all rectangles nothing changes, so one position of each cell stands for all of it.
function remainingOf(certificates, objects, size, threshold) {
  const rectangles = objects.flatMap((n) => hiddenAt(certificates, n, size, threshold));
  if (!rectangles.length) return { count: objects.length, place: null };
  const edges = [0, 1].map((axis) =>
    Int32Array.from(new Set(rectangles.flatMap((one) => [one[axis], one[axis + 2] + 1]))).sort(),
  );
  const rows = edges[1].length;
  const change = new Int32Array((edges[0].length + 1) * (rows + 1));
  for (const one of rectangles) {
    const [x1, x2] = [one[0], one[2] + 1].map((at) => countBelow(edges[0], at));
    const [y1, y2] = [one[1], one[3] + 1].map((at) => countBelow(edges[1], at));
    for (const [x, y, by] of [
      [x1, y1, 1],
      [x2, y1, -1],
      [x1, y2, -1],
      [x2, y2, 1],
    ])
      change[x * (rows + 1) + y] += by;
  }
  let most = -1,
    worst = null;
  for (let x = 0; x < edges[0].length; x++) {
    for (let y = 0, sum = 0; y < rows; y++) {
      const at = x * (rows + 1) + y;
      sum += change[at];
      change[at] = sum + (x ? change[at - rows - 1] : 0);
      if (change[at] > most) [most, worst] = [change[at], [x, y]];
    }
  }
  const place = worst.map((at, axis) => (edges[axis][at] + edges[axis][at + 1] - 1) >> 1);
  return { count: objects.length - most, place };
}
