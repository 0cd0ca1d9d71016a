// Certification in the page: what certification.py, evidence.py and threats.py do, on the same integers and the same
// doubles, so that every verdict is the one Python gives. Nothing here touches the document.
//
// A rectangle of patch positions is [x first, y first, x last, y last], inclusive. A mask is a strip: along its axis (0
// columns, 1 rows) it removes a patch that starts at `first` iff first >= from and first + length <= to. A strip that
// reaches a border also removes what hangs over it: there `from` is -Infinity, or `to` Infinity.
//
// A target is an object as one of the detector's labels that stand for its class. Each has masked boxes of its own, and
// an object is certified if one of its targets is.

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

function smallest(values, begin, end) {
  let least = Infinity;
  for (let i = begin; i < end; i++) if (values[i] < least) least = values[i];
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
  // Where the set of removing masks changes along each axis: at `from`, and for a patch of some length before `to`.
  const sorted = (ends, one) =>
    Float64Array.from(new Set(ends.filter((at, mask) => axis[mask] === one && Number.isFinite(at)))).sort();
  const changes = [0, 1].map((one) => [sorted(from, one), sorted(to, one)]);
  return { width, height, axis, start, end, from, to, changes };
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
  // `read` gives the text of a column by its name.
  constructor(data, read) {
    for (const [name, type] of Object.entries(data.columns)) this[name] = decodeColumn(type, read(name));
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
    this.last = { certificate: null };
  }

  // What one target's certificate comes to at one T: the strips of the masks that decide alone, those of all masks
  // that play any part, and the stars.
  at(t, threshold) {
    if (threshold !== this.threshold) this.forget(threshold);
    if (this.known[t] === undefined) {
      const masks = this.masksOf[this.object[t]];
      const alone = this.rows("alone", t, threshold).map((row) => this.alone_mask[row]);
      const stars = this.starsOf(t, this.rows("together", t, threshold));
      const parts = [...new Set(stars.flatMap((star) => star.rows.map((row) => this.together_mask[row])))];
      const possible = widest(masks, [...new Set([...alone, ...parts])]);
      this.known[t] = { alone, safe: widest(masks, alone), parts, possible, stars };
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

  // evidence.stars_of: the neighbors of each box and the box itself; per mask the largest weight counts. Stars that
  // would not be enough even if all their views were left are not kept.
  starsOf(t, rows) {
    const { axis } = this.masksOf[this.object[t]];
    const begin = this.together_first[t];
    const bytes = Math.ceil((this.together_first[t + 1] - begin) / 8);
    const stars = new Map();
    for (const center of rows) {
      const bits = this.link_first[t] + (center - begin) * bytes;
      const best = new Map();
      for (const row of rows) {
        const at = row - begin;
        if (row !== center && !((this.link_bits[bits + (at >> 3)] >> (at & 7)) & 1)) continue;
        const other = best.get(this.together_mask[row]);
        if (other === undefined || this.together_weight[row] > this.together_weight[other])
          best.set(this.together_mask[row], row);
      }
      const members = [...best.values()];
      const total = members.reduce((sum, row) => sum + this.together_weight[row], 0);
      const mask = this.together_mask[center],
        key = `${mask}:${members}`;
      if (total < this.needed || stars.has(key)) continue;
      const views = [0, 1].map((along) => {
        const some = members.filter((row) => axis[this.together_mask[row]] === along);
        return [some.map((row) => this.together_mask[row]), some.map((row) => this.together_weight[row])];
      });
      stars.set(key, { mask, axis: axis[mask], rows: members, views, total });
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
      if (!this.provesTogether(this.grid(t, size, threshold), rectangle)) return false;
    }
    return true;
  }

  // The positions that escape the safe masks, in classes along each axis, and each star's evidence there, computed when
  // it is asked for. The last one is kept: the same patch is asked about for every where.
  grid(t, size, threshold) {
    const certificate = this.at(t, threshold);
    if (this.last.certificate !== certificate || this.last.size.join() !== size.join()) {
      const axes = [0, 1].map((along) => this.classes(t, along, certificate, size[along]));
      this.last = { certificate, size, axes, sums: certificate.stars.map(() => null) };
    }
    return this.last;
  }

  // Along one axis: from first[i] to last[i] the same masks remove the patch, and a mask m of some star does so from
  // class begin[m] to the one before end[m].
  classes(t, along, { safe, parts }, length) {
    const { width, height, axis, from, to, changes } = this.masksOf[this.object[t]];
    const [starts, ends] = changes[along];
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
    for (const m of parts) {
      if (axis[m] !== along) continue;
      begin[m] = countBelow(first, from[m]);
      end[m] = Math.max(countBelow(first, to[m] - length + 1), begin[m]);
    }
    return { first, last, begin, end };
  }

  // A star's evidence along both axes; -Infinity where the star's center is not among the views that are left.
  // (Weights are whole multiples of a power of two: all sums and differences are exact.)
  sumsOf({ certificate, axes, sums }, k) {
    const star = certificate.stars[k];
    sums[k] ??= axes.map(({ first, begin, end }, along) => {
      const found = new Float64Array(first.length + 1);
      const [masks, weights] = star.views[along];
      for (let i = 0; i < masks.length; i++) {
        found[begin[masks[i]]] += weights[i];
        found[end[masks[i]]] -= weights[i];
      }
      for (let i = 1; i < found.length; i++) found[i] += found[i - 1];
      if (star.axis === along) found.fill(-Infinity, 0, begin[star.mask]).fill(-Infinity, end[star.mask]);
      return found;
    });
    return sums[k];
  }

  // evidence.Stars.prove for the classes that a rectangle has some of. First one star at a time: often one proves all.
  provesTogether(grid, rectangle) {
    const [x, y] = grid.axes.map(({ first, last }, along) => [
      countBelow(last, rectangle[along]),
      countBelow(first, rectangle[along + 2] + 1),
    ]);
    for (let k = 0; k < grid.sums.length; k++) {
      const [across, down] = this.sumsOf(grid, k);
      if (smallest(across, ...x) + smallest(down, ...y) >= this.needed) return true;
    }
    for (let i = x[0]; i < x[1]; i++) {
      for (let j = y[0]; j < y[1]; j++) if (!this.proven(grid, i, j)) return false;
    }
    return true;
  }

  proven(grid, i, j) {
    for (let k = 0; k < grid.sums.length; k++) {
      const [across, down] = this.sumsOf(grid, k);
      if (across[i] + down[j] >= this.needed) return true;
    }
    return false;
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
        if (this.proven(grid, i, j)) continue;
        const top = ys.first[j];
        while (j + 1 < ys.first.length && ys.last[j] + 1 === ys.first[j + 1] && !this.proven(grid, i, j + 1)) j++;
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
