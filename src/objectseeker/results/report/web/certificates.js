// Certification in the page: what certification.py, evidence.py and threats.py do, on the same integers and the same
// doubles, so that every verdict is the one Python gives. Nothing here touches the document.
//
// A rectangle of patch positions is [x first, y first, x last, y last], inclusive. A mask is a strip: along its axis (0
// columns, 1 rows) it removes a patch that starts at `first` iff first >= from and first + length <= to. A strip that
// reaches a border also removes what hangs over it: there `from` is -Infinity, or `to` Infinity.
//
// A target is an object as one of the detector's labels that stand for its class. Each has masked boxes of its own, and
// an object is certified if one of its targets is.

const COLUMN_TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f8: Float64Array };

function decodeColumn({ type, data }) {
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

function smallest(values) {
  let least = Infinity;
  for (const value of values) if (value < least) least = value;
  return least;
}

// How many of some ascending numbers lie below a limit.
function countBelow(ascending, limit) {
  let low = 0;
  for (let high = ascending.length; low < high;) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

function withReach({ width, height, axis, start, end }) {
  const limit = [width, height];
  const from = start.map((at) => (at === 0 ? -Infinity : at));
  const to = end.map((at, mask) => (at === limit[axis[mask]] ? Infinity : at));
  const along = [0, 1].map((one) => [...axis.keys()].filter((mask) => axis[mask] === one));
  return { width, height, axis, start, end, from, to, along };
}

// The strips of some masks, axis by axis and ascending, less those that another contains: they remove no more. Of half
// masks that leaves the furthest of each side, the four lines of a certificate.
function widest({ axis, from, to }, masks) {
  return [0, 1].map((along) => {
    const strips = masks.filter((mask) => axis[mask] === along).map((mask) => [from[mask], to[mask]]);
    strips.sort((a, b) => (a[0] === b[0] ? (a[1] < b[1] ? 1 : -1) : a[0] - b[0]));
    const kept = [];
    for (const strip of strips) if (!kept.length || strip[1] > kept[kept.length - 1][1]) kept.push(strip);
    return kept;
  });
}

// The first position from `first` on that none of the strips removes.
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

// The positions from `first` to `last` that none of the strips removes, as intervals.
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
  constructor(data) {
    for (const [name, packed] of Object.entries(data.columns)) this[name] = decodeColumn(packed);
    this.count = this.label.length;
    this.masks = data.masks.map(withReach);
    this.margin = data.margin;
    this.needed = data.needed;
    this.image = this.owners(this.object_first);
    this.masksOf = Array.from(this.image, (i) => this.masks[data.image_masks[i]]);
    this.object = this.owners(this.target_first); // of each target
    // An object outside its image has none here, like one that no label stands for: nothing is certified of it.
    this.targets = Array.from(this.visible, () => []);
    this.object.forEach((n, t) => {
      if (this.visible[n]) this.targets[n].push(t);
    });
    this.forget(undefined);
  }

  // Whose each entry is, where entries lie owner by owner.
  owners(first) {
    const owner = new Uint32Array(first[first.length - 1]);
    for (let i = 0; i + 1 < first.length; i++) owner.fill(i, first[i], first[i + 1]);
    return owner;
  }

  forget(threshold) {
    this.threshold = threshold;
    this.known = new Array(this.object.length);
  }

  // What one target's certificate comes to at one T: the strips of the masks that decide alone, those of all masks
  // that play any part, and the stars.
  at(t, threshold) {
    if (threshold !== this.threshold) this.forget(threshold);
    if (this.known[t] === undefined) {
      const masks = this.masksOf[this.object[t]];
      const alone = this.rows("alone", t, threshold).map((row) => this.alone_mask[row]);
      const stars = this.starsOf(t, this.rows("together", t, threshold));
      const parts = stars.flatMap((star) => star.rows.map((row) => this.together_mask[row]));
      const possible = stars.length ? widest(masks, [...new Set([...alone, ...parts])]) : null;
      this.known[t] = { alone, safe: widest(masks, alone), possible, stars };
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

  // evidence.stars_of: the neighbours of each box and the box itself; per mask the largest weight counts. Stars that
  // would not be enough even if all their views were left are not kept.
  starsOf(t, rows) {
    const { axis } = this.masksOf[this.object[t]];
    const begin = this.together_first[t];
    const bytes = Math.ceil((this.together_first[t + 1] - begin) / 8);
    const stars = new Map();
    for (const centre of rows) {
      const bits = this.link_first[t] + (centre - begin) * bytes;
      const best = new Map();
      for (const row of rows) {
        const at = row - begin;
        if (row !== centre && !((this.link_bits[bits + (at >> 3)] >> (at & 7)) & 1)) continue;
        const other = best.get(this.together_mask[row]);
        if (other === undefined || this.together_weight[row] > this.together_weight[other])
          best.set(this.together_mask[row], row);
      }
      const members = [...best.values()];
      const total = members.reduce((sum, row) => sum + this.together_weight[row], 0);
      const mask = this.together_mask[centre],
        key = `${mask}:${members}`;
      if (total < this.needed || stars.has(key)) continue;
      const along = [0, 1].map((a) => members.filter((row) => axis[this.together_mask[row]] === a));
      stars.set(key, { mask, rows: members, along, total });
    }
    return [...stars.values()].sort((a, b) => b.total - a.total);
  }

  everywhere(n, size) {
    const { width, height } = this.masksOf[n];
    return [1 - size[0], 1 - size[1], width - 1, height - 1];
  }

  // threats.Surroundings.allowed: a union of rectangles, some of them perhaps empty.
  allowed(n, where, size) {
    const all = this.everywhere(n, size);
    if (where === "anywhere") return [all];
    const a = this.around,
      at = 8 * n;
    const over = [a[at] - size[0], a[at + 1] - size[1], a[at + 2], a[at + 3]];
    if (where === "over") return [intersect(over, all)];
    const near = [a[at + 4] - size[0], a[at + 5] - size[1], a[at + 6], a[at + 7]];
    const [outer, inner] = where === "far" ? [all, near] : [near, over];
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

  // Which of far, close and over a patch at (x, y) is.
  whereIs(n, x, y, size) {
    const a = this.around,
      at = 8 * n;
    const within = (k) =>
      x + size[0] >= a[at + k] && y + size[1] >= a[at + k + 1] && x <= a[at + k + 2] && y <= a[at + k + 3];
    return within(0) ? "over" : within(4) ? "close" : "far";
  }

  certified(n, where, size, threshold) {
    const rectangles = this.allowed(n, where, size);
    return this.targets[n].some((t) => this.provesAll(t, rectangles, size, threshold));
  }

  vacuous(n, where, size) {
    return this.targets[n].length > 0 && this.allowed(n, where, size).every(isEmpty);
  }

  // Certificates.largest_square, of the target that has the largest.
  largestSquare(n, threshold) {
    return Math.max(0, ...this.targets[n].map((t) => this.squareOf(t, threshold)));
  }

  // The target to show of an object, -1 if it has none: the one with the largest certified square, but one that
  // certifies the object against this patch if any does, so that what is drawn agrees with the verdict.
  shownTarget(n, where, size, threshold) {
    const targets = this.targets[n];
    if (targets.length < 2) return targets[0] ?? -1;
    const rectangles = this.allowed(n, where, size);
    const certified = targets.filter((t) => this.provesAll(t, rectangles, size, threshold));
    const choice = certified.length ? certified : targets;
    const sides = choice.map((t) => this.squareOf(t, threshold));
    return choice[sides.indexOf(Math.max(...sides))];
  }

  // ObjectProof.certifies. Positions that no mask of any star removes are proven by none: most targets that are not
  // certified end there.
  provesAll(t, rectangles, size, threshold) {
    const { safe, possible, stars } = this.at(t, threshold);
    for (const rectangle of rectangles) {
      if (!escapes(safe, rectangle, size)) continue;
      if (!stars.length || escapes(possible, rectangle, size)) return false;
      if (!this.provesTogether(stars, this.classes(t, safe, rectangle, size))) return false;
    }
    return true;
  }

  // The positions of a rectangle that escape the safe masks, axis by axis in classes: from first[i] to last[i] the same
  // masks remove the patch, and mask m does so from class begin[m] to the one before end[m].
  classes(t, safe, rectangle, size) {
    const masks = this.masksOf[this.object[t]];
    return [0, 1].map((axis) => {
      const length = size[axis],
        first = [],
        last = [];
      const changes = masks.along[axis].flatMap((m) => [masks.from[m], masks.to[m] - length + 1]);
      changes.sort((a, b) => (a < b ? -1 : 1));
      for (const [from, to] of gaps(safe[axis], length, rectangle[axis], rectangle[axis + 2])) {
        first.push(from);
        for (let i = countBelow(changes, from + 1); i < changes.length && changes[i] <= to; i++) {
          if (changes[i] === changes[i - 1]) continue;
          last.push(changes[i] - 1);
          first.push(changes[i]);
        }
        last.push(to);
      }
      const begin = [],
        end = [];
      for (const m of masks.along[axis]) {
        begin[m] = countBelow(first, masks.from[m]);
        end[m] = Math.max(countBelow(first, masks.to[m] - length + 1), begin[m]);
      }
      return { first, last, begin, end };
    });
  }

  // One star's evidence along one axis; -Infinity where the star's centre is not among the views that are left. (Weights
  // are whole multiples of a power of two: all sums and differences are exact.)
  sumsAlong(star, axis, { first, begin, end }) {
    const sums = new Float64Array(first.length + 1);
    for (const row of star.along[axis]) {
      const mask = this.together_mask[row];
      sums[begin[mask]] += this.together_weight[row];
      sums[end[mask]] -= this.together_weight[row];
    }
    for (let i = 1; i < sums.length; i++) sums[i] += sums[i - 1];
    if (begin[star.mask] !== undefined) sums.fill(-Infinity, 0, begin[star.mask]).fill(-Infinity, end[star.mask]);
    return sums.subarray(0, first.length);
  }

  // evidence.Stars.prove for classes that are not empty. First one star at a time: often one proves all of it.
  provesTogether(stars, classes) {
    const sums = [];
    for (const star of stars) {
      const [across, down] = classes.map((along, axis) => this.sumsAlong(star, axis, along));
      if (smallest(across) + smallest(down) >= this.needed) return true;
      sums.push([across, down]);
    }
    for (let i = 0; i < classes[0].first.length; i++) {
      for (let j = 0; j < classes[1].first.length; j++) if (!this.proven(sums, i, j)) return false;
    }
    return true;
  }

  proven(sums, i, j) {
    for (const [across, down] of sums) if (across[i] + down[j] >= this.needed) return true;
    return false;
  }

  // The positions at which a target is not proven, as rectangles that do not overlap.
  unproven(t, size, threshold) {
    const { safe, stars } = this.at(t, threshold);
    const all = this.everywhere(this.object[t], size);
    const classes = this.classes(t, safe, all, size);
    const sums = stars.map((star) => classes.map((along, axis) => this.sumsAlong(star, axis, along)));
    const [xs, ys] = classes;
    const found = [];
    let before = new Map(); // the rectangles that end where this column begins, by their rows
    for (let i = 0; i < xs.first.length; i++) {
      const here = new Map();
      if (i && xs.last[i - 1] + 1 !== xs.first[i]) before.clear();
      for (let j = 0; j < ys.first.length; j++) {
        if (this.proven(sums, i, j)) continue;
        const top = ys.first[j];
        while (j + 1 < ys.first.length && ys.last[j] + 1 === ys.first[j + 1] && !this.proven(sums, i, j + 1)) j++;
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

  // What proves a target against the patch at (x, y), if anything does: the best mask that decides alone, or the views
  // that do it together, strongest first.
  proofAt(t, x, y, size, threshold) {
    if (t < 0) return null;
    const { axis, from, to } = this.masksOf[this.object[t]];
    const removed = (mask) => {
      const first = axis[mask] ? y : x;
      return first >= from[mask] && first + size[axis[mask]] <= to[mask];
    };
    let best = -1;
    for (const row of this.rows("alone", t, threshold)) {
      if (removed(this.alone_mask[row]) && (best < 0 || this.alone_share[row] > this.alone_share[best])) best = row;
    }
    if (best >= 0) return { kind: "alone", views: [{ row: best, mask: this.alone_mask[best] }] };
    let proof = null,
      most = 0;
    for (const star of this.at(t, threshold).stars) {
      if (!removed(star.mask)) continue;
      const left = star.rows.filter((row) => removed(this.together_mask[row]));
      const sum = left.reduce((total, row) => total + this.together_weight[row], 0);
      if (sum >= this.needed && sum > most) {
        most = sum;
        left.sort((a, b) => this.together_weight[b] - this.together_weight[a]);
        proof = { kind: "together", views: left.map((row) => ({ row, mask: this.together_mask[row] })) };
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
      if (this.provesAll(t, [this.everywhere(n, size)], size, threshold)) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  sizeFor(n, { area, aspect }) {
    const { width, height } = this.masksOf[n];
    return patchSize(area, aspect, width, height);
  }
}
