// Certification in the page: what certification.py, evidence.py, joint.py and threats.py do, on the same integers and the
// same doubles, so that every verdict equals Python's. Nothing here touches the document.
//
// A rectangle of patch positions is [x first, y first, x last, y last], inclusive. A mask removes strips: a band one, a mask
// that keeps a rectangle up to four around it, and it removes a patch iff one of its strips does. Along its axis (0
// columns, 1 rows) a strip removes a patch that starts at `first` iff first >= from and first + length <= to. A strip
// that reaches a border also removes what hangs over it: there `from` is -Infinity, or `to` Infinity.
//
// A target is an object as one of the detector's labels that map to its class. Each has its own masked boxes, and an
// object is certified if one of its targets is.

const COLUMN_TYPES = {
  u1: Uint8Array,
  u2: Uint16Array,
  u4: Uint32Array,
  i4: Int32Array,
  f4: Float32Array,
  f8: Float64Array,
};

function decodeColumn(type, data) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new COLUMN_TYPES[type](bytes.buffer);
}

// threats.Patch.size: the same operations in the same order; multiplication and square root round alike everywhere.
function patchSize(area, aspect, width, height) {
  const pixels = area * width * height;
  return [Math.ceil(Math.sqrt(pixels * aspect)), Math.ceil(Math.sqrt(pixels / aspect))];
}

function isEmpty(rectangle) {
  return rectangle[0] > rectangle[2] || rectangle[1] > rectangle[3];
}

function intersect(a, b) {
  return [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
}

function minimum(values, begin, end) {
  let found = Infinity;
  for (let i = begin; i < end; i++) if (values[i] < found) found = values[i];
  return found;
}

// The number of ascending values below a limit.
function countBelow(ascending, limit) {
  let low = 0;
  for (let high = ascending.length; low < high;) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The strips of all masks of one image size, numbered: `stripsOf[mask]` are the numbers of a mask's.
function withStrips({ width, height, rectangle, is_band }) {
  const extent = [width, height];
  const axis = [],
    from = [],
    to = [];
  const stripsOf = rectangle.map((edges, mask) => {
    const first = axis.length;
    for (const along of [0, 1]) {
      const start = edges[along],
        end = edges[along + 2];
      const ends = [start > 0 && [-Infinity, start], end < extent[along] && [end, Infinity]].filter(Boolean);
      for (const [low, high] of is_band[mask] ? (ends.length ? [[start, end]] : []) : ends) {
        axis.push(along);
        from.push(low);
        to.push(high);
      }
    }
    return Array.from({ length: axis.length - first }, (_, i) => first + i);
  });
  // Where the set of removing masks changes along each axis: at `from`, and for a patch of a length before `to`.
  const sorted = (ends, along) =>
    Float64Array.from(new Set(ends.filter((at, strip) => axis[strip] === along && Number.isFinite(at)))).sort();
  const breakpoints = [0, 1].map((along) => [sorted(from, along), sorted(to, along)]);
  return { width, height, axis, from, to, stripsOf, breakpoints };
}

// The strips of the given masks, per axis and ascending, without those that another contains: they remove nothing more.
// Of masks that keep a rectangle that leaves the furthest on each side, the four safe lines of a certificate.
function maximalStrips({ axis, from, to, stripsOf }, masks) {
  const all = masks.flatMap((mask) => stripsOf[mask]);
  return [0, 1].map((along) => {
    const strips = all.filter((strip) => axis[strip] === along).map((strip) => [from[strip], to[strip]]);
    strips.sort((a, b) => (a[0] === b[0] ? (a[1] < b[1] ? 1 : -1) : a[0] - b[0]));
    const kept = [];
    for (const strip of strips) if (!kept.length || strip[1] > kept[kept.length - 1][1]) kept.push(strip);
    return kept;
  });
}

// The first position at or after `first` that none of the strips removes.
function uncovered(strips, length, first, last) {
  for (const [from, to] of strips) {
    if (from > first || first > last) break;
    if (to - length >= first) first = to - length + 1;
  }
  return first;
}

// Whether some position of a rectangle escapes all strips: by x all of columns, and by y all of rows.
function escapes(strips, rectangle, size) {
  for (let axis = 0; axis < 2; axis++) {
    const last = rectangle[axis + 2];
    if (uncovered(strips[axis], size[axis], rectangle[axis], last) > last) return false;
  }
  return true;
}

// The positions from `first` to `last`, inclusive, that none of the strips removes, as intervals.
function gaps(strips, length, first, last) {
  const found = [];
  for (const [from, to] of strips) {
    if (to - length < Math.max(from, first)) continue;
    if (from > last) break;
    if (from > first) found.push([first, from - 1]);
    first = to - length + 1;
  }
  if (first <= last) found.push([first, last]);
  return found;
}

class Certificates {
  // `read` returns the text of a column by its name.
  constructor(data, read) {
    for (const [name, type] of Object.entries(data.columns)) this[name] = decodeColumn(type, read(name));
    this.count = this.label.length;
    this.masks = data.masks.map(withStrips);
    this.margin = data.margin;
    this.needed = data.needed;
    this.image = this.owners(this.object_first);
    this.masksOf = Array.from(this.image, (i) => this.masks[data.image_masks[i]]);
    this.object = this.owners(this.target_first); // of each target
    // An object outside its image has no target here, nor has one that no label maps to: neither is ever certified.
    this.targets = Array.from(this.visible, () => []);
    this.object.forEach((n, t) => {
      if (this.visible[n]) this.targets[n].push(t);
    });
    this.forget(undefined);
  }

  // The owner of each entry, where entries are stored owner by owner.
  owners(first) {
    const owner = new Uint32Array(first[first.length - 1]);
    for (let i = 0; i + 1 < first.length; i++) owner.fill(i, first[i], first[i + 1]);
    return owner;
  }

  forget(threshold) {
    this.threshold = threshold;
    this.known = new Array(this.object.length);
    this.last = { certificate: null };
  }

  // One target's certificate at one T: the strips of its safe masks (sufficient on their own), those of all masks that
  // are used, and the stars.
  at(t, threshold) {
    if (threshold !== this.threshold) this.forget(threshold);
    if (this.known[t] === undefined) {
      const masks = this.masksOf[this.object[t]];
      const single = this.rows("single_view", t, threshold).map((row) => this.single_view_mask[row]);
      const stars = this.starsOf(t, this.rows("multi_view", t, threshold));
      const starMasks = [...new Set(stars.flatMap((star) => star.rows.map((row) => this.multi_view_mask[row])))];
      const possible = maximalStrips(masks, [...new Set([...single, ...starMasks])]);
      this.known[t] = { single, safe: maximalStrips(masks, single), starMasks, possible, stars };
    }
    return this.known[t];
  }

  rows(kind, t, threshold) {
    const first = this[kind + "_first"],
      share = this[kind + "_share"],
      found = [];
    for (let row = first[t]; row < first[t + 1]; row++) if (share[row] > threshold + this.margin) found.push(row);
    return found;
  }

  // evidence.build_stars: the neighbors of each box and the box itself; per mask the largest weight counts. Stars that
  // would not be sufficient even if all their views remained are dropped.
  starsOf(t, rows) {
    const { axis, stripsOf } = this.masksOf[this.object[t]];
    const begin = this.multi_view_first[t];
    const bytes = Math.ceil((this.multi_view_first[t + 1] - begin) / 8);
    const stars = new Map();
    for (const center of rows) {
      const bits = this.link_first[t] + (center - begin) * bytes;
      const best = new Map();
      for (const row of rows) {
        const at = row - begin;
        if (row !== center && !((this.link_bits[bits + (at >> 3)] >> (at & 7)) & 1)) continue;
        const other = best.get(this.multi_view_mask[row]);
        if (other === undefined || this.multi_view_weight[row] > this.multi_view_weight[other])
          best.set(this.multi_view_mask[row], row);
      }
      const members = [...best.values()];
      const total = members.reduce((sum, row) => sum + this.multi_view_weight[row], 0);
      const mask = this.multi_view_mask[center],
        key = `${mask}:${members}`;
      if (total < this.needed || stars.has(key)) continue;
      const strips = members.map((row) => stripsOf[this.multi_view_mask[row]]);
      const weights = members.map((row) => this.multi_view_weight[row]);
      // By x or by y alone, one strip per view: then evidence adds up along each axis. Else that is an upper bound.
      const separates = strips.every((some) => some.length === 1);
      const views = [0, 1].map((along) => {
        const own = strips.flatMap((some, i) => some.filter((one) => axis[one] === along).map((one) => [one, weights[i]]));
        return [own.map(([strip]) => strip), own.map(([, weight]) => weight)];
      });
      stars.set(key, { mask, center: stripsOf[mask], axis, strips, weights, rows: members, views, total, separates });
    }
    return [...stars.values()].sort((a, b) => b.total - a.total);
  }

  // threats.PatchPositions: every position that overlaps the image.
  allPositions(n, size) {
    const { width, height } = this.masksOf[n];
    return [1 - size[0], 1 - size[1], width - 1, height - 1];
  }

  // threats.PatchPositions.allowed: a union of rectangles, some of them possibly empty.
  allowed(n, location, size) {
    const all = this.allPositions(n, size);
    if (location === "anywhere") return [all];
    const a = this.around,
      at = 8 * n;
    const over = [a[at] - size[0], a[at + 1] - size[1], a[at + 2], a[at + 3]];
    if (location === "over") return [intersect(over, all)];
    const near = [a[at + 4] - size[0], a[at + 5] - size[1], a[at + 6], a[at + 7]];
    const [outer, inner] = location === "far" ? [all, near] : [near, over];
    const rectangles = [];
    for (const axis of [0, 1]) {
      const before = outer.slice(),
        after = outer.slice();
      before[axis + 2] = Math.min(outer[axis + 2], inner[axis] - 1);
      after[axis] = Math.max(outer[axis], inner[axis + 2] + 1);
      rectangles.push(intersect(before, all), intersect(after, all));
    }
    return rectangles;
  }

  // The location of a patch at (x, y): far, close or over.
  locationOf(n, x, y, size) {
    const a = this.around,
      at = 8 * n;
    const within = (k) =>
      x + size[0] >= a[at + k] && y + size[1] >= a[at + k + 1] && x <= a[at + k + 2] && y <= a[at + k + 3];
    return within(0) ? "over" : within(4) ? "close" : "far";
  }

  certified(n, location, size, threshold) {
    const rectangles = this.allowed(n, location, size);
    return this.targets[n].some((t) => this.provesAll(t, rectangles, size, threshold));
  }

  vacuous(n, location, size) {
    return this.targets[n].length > 0 && this.allowed(n, location, size).every(isEmpty);
  }

  // Certificates.largest_square: the largest among the targets.
  largestSquare(n, threshold) {
    return Math.max(0, ...this.targets[n].map((t) => this.squareOf(t, threshold)));
  }

  // The target to show of an object, -1 if it has none: among those that certify the object against this patch, if any
  // does, the one with the largest certified square. So what is drawn agrees with the verdict.
  shownTarget(n, location, size, threshold) {
    const targets = this.targets[n];
    if (targets.length < 2) return targets[0] ?? -1;
    const rectangles = this.allowed(n, location, size);
    const certified = targets.filter((t) => this.provesAll(t, rectangles, size, threshold));
    const choice = certified.length ? certified : targets;
    const sides = choice.map((t) => this.squareOf(t, threshold));
    return choice[sides.indexOf(Math.max(...sides))];
  }

  // ObjectProof.certifies. Positions that no mask of any star removes are proven by none: most uncertified targets end
  // there.
  provesAll(t, rectangles, size, threshold) {
    const { safe, possible, stars } = this.at(t, threshold);
    for (const rectangle of rectangles) {
      if (!escapes(safe, rectangle, size)) continue;
      if (!stars.length || escapes(possible, rectangle, size)) return false;
      if (!this.multiViewProves(this.grid(t, size, threshold), rectangle)) return false;
    }
    return true;
  }

  // The positions that escape the safe masks, in classes along each axis, and each star's evidence there, computed on
  // demand. The last result is cached: every location uses the same patch.
  grid(t, size, threshold) {
    const certificate = this.at(t, threshold);
    if (this.last.certificate !== certificate || this.last.size.join() !== size.join()) {
      const axes = [0, 1].map((along) => this.classes(t, along, certificate, size[along]));
      this.last = { certificate, size, axes, sums: certificate.stars.map(() => null) };
    }
    return this.last;
  }

  // Along one axis: from first[i] to last[i] the same masks remove the patch; a strip s of a star's mask removes it from
  // class begin[s] to the one before end[s].
  classes(t, along, { safe, starMasks }, length) {
    const { width, height, axis, from, to, stripsOf, breakpoints } = this.masksOf[this.object[t]];
    const [starts, ends] = breakpoints[along];
    const first = [],
      last = [];
    for (const [low, high] of gaps(safe[along], length, 1 - length, [width, height][along] - 1)) {
      let i = countBelow(starts, low + 1),
        j = countBelow(ends, low + length);
      first.push(low);
      for (;;) {
        const start = i < starts.length ? starts[i] : Infinity,
          end = j < ends.length ? ends[j] - length + 1 : Infinity;
        const next = Math.min(start, end);
        if (next > high) break;
        if (start === next) i++;
        if (end === next) j++;
        last.push(next - 1);
        first.push(next);
      }
      last.push(high);
    }
    const begin = new Int32Array(axis.length),
      end = new Int32Array(axis.length);
    for (const s of starMasks.flatMap((mask) => stripsOf[mask])) {
      if (axis[s] !== along) continue;
      begin[s] = countBelow(first, from[s]);
      end[s] = Math.max(countBelow(first, to[s] - length + 1), begin[s]);
    }
    return { first, last, begin, end };
  }

  // A star's evidence along both axes; -Infinity where the star's center is not among the remaining views, if its views
  // separate by axis.
  // (Weights are whole multiples of a power of two: all sums and differences are exact.)
  sumsOf({ certificate, axes, sums }, k) {
    const star = certificate.stars[k];
    sums[k] ??= axes.map(({ first, begin, end }, along) => {
      const found = new Float64Array(first.length + 1);
      const [strips, weights] = star.views[along];
      for (let i = 0; i < strips.length; i++) {
        found[begin[strips[i]]] += weights[i];
        found[end[strips[i]]] -= weights[i];
      }
      for (let i = 1; i < found.length; i++) found[i] += found[i - 1];
      const [center] = star.center;
      if (star.separates && star.axis[center] === along) found.fill(-Infinity, 0, begin[center]).fill(-Infinity, end[center]);
      return found;
    });
    return sums[k];
  }

  // evidence.Stars.prove for the classes that overlap a rectangle. First one star at a time: often one proves all.
  multiViewProves(grid, rectangle) {
    const [x, y] = grid.axes.map(({ first, last }, along) => [
      countBelow(last, rectangle[along]),
      countBelow(first, rectangle[along + 2] + 1),
    ]);
    for (let k = 0; k < grid.sums.length; k++) {
      if (!grid.certificate.stars[k].separates) continue;
      const [across, down] = this.sumsOf(grid, k);
      if (minimum(across, ...x) + minimum(down, ...y) >= this.needed) return true;
    }
    for (let i = x[0]; i < x[1]; i++) {
      for (let j = y[0]; j < y[1]; j++) if (!this.isProven(grid, i, j)) return false;
    }
    return true;
  }

  isProven(grid, i, j) {
    for (let k = 0; k < grid.sums.length; k++) {
      const [across, down] = this.sumsOf(grid, k);
      if (across[i] + down[j] < this.needed) continue;
      if (grid.certificate.stars[k].separates || this.evidenceAt(grid, k, i, j) >= this.needed) return true;
    }
    return false;
  }

  // A star's evidence at one position, each view once; -Infinity if the star's center does not remain.
  evidenceAt({ certificate, axes }, k, i, j) {
    const { center, axis, strips, weights } = certificate.stars[k];
    const removes = (strip) => {
      const { begin, end } = axes[axis[strip]];
      const at = axis[strip] ? j : i;
      return begin[strip] <= at && at < end[strip];
    };
    if (!center.some(removes)) return -Infinity;
    return strips.reduce((sum, some, n) => (some.some(removes) ? sum + weights[n] : sum), 0);
  }

  // The positions at which a target is not proven, as rectangles that do not overlap.
  unproven(t, size, threshold) {
    const grid = this.grid(t, size, threshold);
    const [xs, ys] = grid.axes;
    const found = [];
    let before = new Map(); // the rectangles that end where this column begins, by their rows
    for (let i = 0; i < xs.first.length; i++) {
      const here = new Map();
      if (i && xs.last[i - 1] + 1 !== xs.first[i]) before.clear();
      for (let j = 0; j < ys.first.length; j++) {
        if (this.isProven(grid, i, j)) continue;
        const top = ys.first[j];
        while (j + 1 < ys.first.length && ys.last[j] + 1 === ys.first[j + 1] && !this.isProven(grid, i, j + 1)) j++;
        const key = `${top} ${ys.last[j]}`;
        const wide = before.get(key) ?? [xs.first[i], top, xs.last[i], ys.last[j]];
        if (!before.has(key)) found.push(wide);
        wide[2] = xs.last[i];
        here.set(key, wide);
      }
      before = here;
    }
    return found;
  }

  // What proves a target against the patch at (x, y), if anything does: the best view that is sufficient on its own, or
  // the views that prove it combined, strongest first.
  proofAt(t, x, y, size, threshold) {
    if (t < 0) return null;
    const { axis, from, to, stripsOf } = this.masksOf[this.object[t]];
    const removed = (mask) =>
      stripsOf[mask].some((strip) => {
        const first = axis[strip] ? y : x;
        return first >= from[strip] && first + size[axis[strip]] <= to[strip];
      });
    let best = -1;
    for (const row of this.rows("single_view", t, threshold)) {
      if (removed(this.single_view_mask[row]) && (best < 0 || this.single_view_share[row] > this.single_view_share[best])) best = row;
    }
    if (best >= 0) return { kind: "single_view", views: [{ row: best, mask: this.single_view_mask[best] }] };
    let proof = null,
      largest = 0;
    for (const star of this.at(t, threshold).stars) {
      if (!removed(star.mask)) continue;
      const left = star.rows.filter((row) => removed(this.multi_view_mask[row]));
      const sum = left.reduce((total, row) => total + this.multi_view_weight[row], 0);
      if (sum >= this.needed && sum > largest) {
        largest = sum;
        left.sort((a, b) => this.multi_view_weight[b] - this.multi_view_weight[a]);
        proof = { kind: "multi_view", views: left.map((row) => ({ row, mask: this.multi_view_mask[row] })) };
      }
    }
    return proof;
  }

  // Certificates.largest_square of one target.
  squareOf(t, threshold) {
    const n = this.object[t];
    const { width, height } = this.masksOf[n];
    let low = 0;
    for (let high = Math.max(width, height); low < high;) {
      const middle = Math.floor((low + high + 1) / 2),
        size = [middle, middle];
      if (this.provesAll(t, [this.allPositions(n, size)], size, threshold)) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  sizeFor(n, { area, aspect }) {
    const { width, height } = this.masksOf[n];
    return patchSize(area, aspect, width, height);
  }
}

// The joint certificate of one image (core.joint): the number of its objects that are guaranteed to remain under one
// patch at any position.

// The positions at which none of an object's labels proves it, as rectangles that do not overlap.
function unprovenPositions(certificates, n, size, threshold) {
  let unproven = [certificates.allPositions(n, size)];
  for (const t of certificates.targets[n]) {
    const open = certificates.unproven(t, size, threshold);
    unproven = unproven.flatMap((a) => open.map((b) => intersect(a, b))).filter((both) => !isEmpty(both));
  }
  return unproven;
}

// The number of the given objects of one image that are proven at the worst-case position, and such a position (null if
// all are proven everywhere). Nothing changes between the edges of the rectangles, so one position of each cell is enough.
function jointCertificate(certificates, objects, size, threshold) {
  const rectangles = objects.flatMap((n) => unprovenPositions(certificates, n, size, threshold));
  if (!rectangles.length) return { count: objects.length, worst: null };
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
  let largest = -1,
    cell = null;
  for (let x = 0; x < edges[0].length; x++) {
    for (let y = 0, sum = 0; y < rows; y++) {
      const at = x * (rows + 1) + y;
      sum += change[at];
      change[at] = sum + (x ? change[at - rows - 1] : 0);
      if (change[at] > largest) [largest, cell] = [change[at], [x, y]];
    }
  }
  const worst = cell.map((at, axis) => (edges[axis][at] + edges[axis][at + 1] - 1) >> 1);
  return { count: objects.length - largest, worst };
}
