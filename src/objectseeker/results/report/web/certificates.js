// Certification in the page: what certification.py, evidence.py and threats.py do, on the same integers and the same
// doubles, so that every verdict is the one Python gives. Nothing here touches the document.
//
// A rectangle of patch positions is [x first, y first, x last, y last], inclusive. Sides are 0 left, 1 top, 2 right,
// 3 bottom, so side % 2 is the axis; a mask of side 0 or 1 removes what lies before its line, the others the rest.

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

// The positions at which a patch escapes all masks that these four lines stand for.
function escaping(lines, size) {
  return [lines[0] - size[0] + 1, lines[1] - size[1] + 1, lines[2] - 1, lines[3] - 1];
}

function removesAt(side, line, start, length) {
  return side < 2 ? start + length <= line : start >= line;
}

function smallest(values) {
  let least = Infinity;
  for (const value of values) if (value < least) least = value;
  return least;
}

// The lines along each axis, ascending, and the place of each mask's line among them.
function withPlaces({ width, height, side, line }) {
  const axes = [0, 1].map((axis) =>
    [...new Set(line.filter((_, mask) => side[mask] % 2 === axis))].sort((a, b) => a - b),
  );
  return { width, height, side, line, axes, place: line.map((at, mask) => axes[side[mask] % 2].indexOf(at)) };
}

class Certificates {
  constructor(data) {
    for (const [name, packed] of Object.entries(data.columns)) this[name] = decodeColumn(packed);
    this.count = this.label.length;
    this.masks = data.masks.map((masks) => withPlaces(masks));
    this.margin = data.margin;
    this.needed = data.needed;
    this.image = new Uint32Array(this.count);
    for (let i = 0; i + 1 < this.object_first.length; i++)
      this.image.fill(i, this.object_first[i], this.object_first[i + 1]);
    this.masksOf = Array.from(this.image, (i) => this.masks[data.image_masks[i]]);
    this.forget(undefined);
  }

  forget(threshold) {
    this.threshold = threshold;
    this.known = new Array(this.count);
  }

  // What one object's certificate comes to at one T: the lines of the masks that decide alone, those of all masks that
  // play any part, and the stars.
  at(n, threshold) {
    if (threshold !== this.threshold) this.forget(threshold);
    if (this.known[n] === undefined) {
      const alone = this.rows("alone", n, threshold);
      const together = this.rows("together", n, threshold);
      const lines = this.linesOf(
        n,
        alone.map((row) => this.alone_mask[row]),
      );
      const stars = this.starsOf(n, together);
      const possible = this.linesOf(
        n,
        stars.flatMap((star) => star.rows.map((row) => this.together_mask[row])),
        lines,
      );
      this.known[n] = { lines, possible, stars };
    }
    return this.known[n];
  }

  rows(kind, n, threshold) {
    const first = this[kind + "_first"],
      share = this[kind + "_share"],
      found = [];
    for (let row = first[n]; row < first[n + 1]; row++) if (share[row] > threshold + this.margin) found.push(row);
    return found;
  }

  linesOf(n, masks, start) {
    const { width, height, side, line } = this.masksOf[n];
    const lines = start ? start.slice() : [0, 0, width, height];
    for (const mask of masks) {
      const s = side[mask];
      lines[s] = s < 2 ? Math.max(lines[s], line[mask]) : Math.min(lines[s], line[mask]);
    }
    return lines;
  }

  // evidence.stars_of: the neighbours of each box and the box itself; per mask the largest weight counts. Kept are
  // sums: before[axis][t] of the masks that remove what lies before line t or a later one, after[axis][t] of those
  // that remove what lies after one of the first t lines. (Weights are whole multiples of a power of two: all sums
  // are exact.) Stars that would not be enough even if all their views were left are not kept.
  starsOf(n, rows) {
    const { side, axes, place } = this.masksOf[n];
    const begin = this.together_first[n];
    const bytes = Math.ceil((this.together_first[n + 1] - begin) / 8);
    const stars = new Map();
    for (const centre of rows) {
      const bits = this.link_first[n] + (centre - begin) * bytes;
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
      const [before, after] = [0, 1].map(() => axes.map((lines) => new Float64Array(lines.length + 1)));
      for (const row of members) {
        const m = this.together_mask[row],
          axis = side[m] % 2,
          t = place[m];
        if (side[m] < 2) before[axis][t] += this.together_weight[row];
        else after[axis][t + 1] += this.together_weight[row];
      }
      for (const sums of before) for (let t = sums.length - 2; t >= 0; t--) sums[t] += sums[t + 1];
      for (const sums of after) for (let t = 1; t < sums.length; t++) sums[t] += sums[t - 1];
      stars.set(key, { side: side[mask], place: place[mask], before, after, rows: members, total });
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
  place(n, x, y, size) {
    const a = this.around,
      at = 8 * n;
    const within = (k) =>
      x + size[0] >= a[at + k] && y + size[1] >= a[at + k + 1] && x <= a[at + k + 2] && y <= a[at + k + 3];
    return within(0) ? "over" : within(4) ? "close" : "far";
  }

  certified(n, where, size, threshold) {
    return this.visible[n] === 1 && this.provesAll(n, this.allowed(n, where, size), size, threshold);
  }

  vacuous(n, where, size) {
    return this.visible[n] === 1 && this.allowed(n, where, size).every(isEmpty);
  }

  // evidence.Stars.prove_all. Positions that no mask of any star removes are proven by none: most objects that are not
  // certified end there.
  provesAll(n, rectangles, size, threshold) {
    const { lines, possible, stars } = this.at(n, threshold);
    for (const rectangle of rectangles) {
      const rest = intersect(rectangle, escaping(lines, size));
      if (isEmpty(rest)) continue;
      if (!stars.length || !isEmpty(intersect(rest, escaping(possible, size)))) return false;
      if (!this.provesTogether(n, stars, rest, size)) return false;
    }
    return true;
  }

  // The positions of a rectangle at which the set of removing masks changes, axis by axis; it is constant in between.
  steps(n, rectangle, size) {
    return this.masksOf[n].axes.map((lines, axis) => {
      const first = rectangle[axis],
        last = rectangle[axis + 2],
        found = new Set([first]);
      for (const line of lines) {
        for (const start of [line - size[axis] + 1, line]) if (start > first && start <= last) found.add(start);
      }
      const starts = Array.from(found).sort((a, b) => a - b);
      // Of a patch that starts there: the first line it ends before, and how many lines lie before it.
      const upTo = (limit) => {
        let t = 0;
        return starts.map((start) => {
          while (t < lines.length && lines[t] < limit(start)) t++;
          return t;
        });
      };
      return { starts, ahead: upTo((start) => start + size[axis]), behind: upTo((start) => start + 1) };
    });
  }

  // One star's evidence along one axis; -Infinity where the star's centre is not among the views that are left.
  along(star, axis, { starts, ahead, behind }) {
    const found = new Float64Array(starts.length);
    for (let i = 0; i < starts.length; i++) {
      const left = star.side % 2 !== axis || (star.side < 2 ? ahead[i] <= star.place : behind[i] > star.place);
      found[i] = left ? star.before[axis][ahead[i]] + star.after[axis][behind[i]] : -Infinity;
    }
    return found;
  }

  // evidence.Stars.prove for a rectangle that is not empty. First one star at a time: often one proves all of it.
  provesTogether(n, stars, rectangle, size) {
    const steps = this.steps(n, rectangle, size);
    const sums = [];
    for (const star of stars) {
      const [across, down] = steps.map((step, axis) => this.along(star, axis, step));
      if (smallest(across) + smallest(down) >= this.needed) return true;
      sums.push([across, down]);
    }
    for (let i = 0; i < steps[0].starts.length; i++) {
      for (let j = 0; j < steps[1].starts.length; j++) if (!this.proven(sums, i, j)) return false;
    }
    return true;
  }

  proven(sums, i, j) {
    for (const [across, down] of sums) if (across[i] + down[j] >= this.needed) return true;
    return false;
  }

  // The positions that are not proven, as rectangles that do not overlap.
  unproven(n, size, threshold) {
    const { lines, stars } = this.at(n, threshold);
    const rest = intersect(this.everywhere(n, size), escaping(lines, size));
    if (isEmpty(rest)) return [];
    if (!stars.length) return [rest];
    const steps = this.steps(n, rest, size);
    const sums = stars.map((star) => steps.map((step, axis) => this.along(star, axis, step)));
    const [xs, ys] = steps.map((step) => step.starts);
    const found = [];
    let before = new Map(); // the rectangles that end where this column begins, by their rows
    for (let i = 0; i < xs.length; i++) {
      const right = i + 1 < xs.length ? xs[i + 1] - 1 : rest[2],
        here = new Map();
      for (let j = 0, from = -1; j <= ys.length; j++) {
        const open = j < ys.length && !this.proven(sums, i, j);
        if (open && from < 0) from = j;
        if (!open && from >= 0) {
          const key = `${from} ${j}`;
          const wide = before.get(key) ?? [xs[i], ys[from], right, j < ys.length ? ys[j] - 1 : rest[3]];
          if (!before.has(key)) found.push(wide);
          wide[2] = right;
          here.set(key, wide);
          from = -1;
        }
      }
      before = here;
    }
    return found;
  }

  // What proves the object against the patch at (x, y), if anything does: the best mask that decides alone, or the
  // views that do it together, strongest first.
  proofAt(n, x, y, size, threshold) {
    const { side, line } = this.masksOf[n];
    const removed = (s, l) => removesAt(s, l, s % 2 ? y : x, size[s % 2]);
    let best = -1;
    for (const row of this.rows("alone", n, threshold)) {
      const mask = this.alone_mask[row];
      if (removed(side[mask], line[mask]) && (best < 0 || this.alone_share[row] > this.alone_share[best])) best = row;
    }
    if (this.visible[n] === 0) return null;
    if (best >= 0) return { kind: "alone", views: [{ row: best, mask: this.alone_mask[best] }] };
    let proof = null,
      most = 0;
    for (const star of this.at(n, threshold).stars) {
      if (!removed(star.side, this.masksOf[n].axes[star.side % 2][star.place])) continue;
      const left = star.rows.filter((row) => removed(side[this.together_mask[row]], line[this.together_mask[row]]));
      const sum = left.reduce((total, row) => total + this.together_weight[row], 0);
      if (sum >= this.needed && sum > most) {
        most = sum;
        left.sort((a, b) => this.together_weight[b] - this.together_weight[a]);
        proof = { kind: "together", views: left.map((row) => ({ row, mask: this.together_mask[row] })) };
      }
    }
    return proof;
  }

  // Certificates.largest_square.
  largestSquare(n, threshold) {
    if (this.visible[n] === 0) return 0;
    const { lines, stars } = this.at(n, threshold);
    const { width, height } = this.masksOf[n];
    let low = Math.max(lines[0] - lines[2] + 1, lines[1] - lines[3] + 1, 0);
    if (!stars.length) return low;
    for (let high = Math.max(width, height); low < high;) {
      const middle = Math.floor((low + high + 1) / 2),
        size = [middle, middle];
      if (this.provesAll(n, [this.everywhere(n, size)], size, threshold)) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  sizeFor(n, { area, aspect }) {
    const { width, height } = this.masksOf[n];
    return patchSize(area, aspect, width, height);
  }
}
