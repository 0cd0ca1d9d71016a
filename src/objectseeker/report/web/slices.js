// Slices: certified recall by the tags of the images, and the worst slice of every tag.

const slices = data.tags.flatMap(({ name, values, of_image: ofImage }) =>
  values.map((value, at) => {
    const images = new Set(ofImage.flatMap((one, i) => (one === at ? [i] : [])));
    const objects = counted.filter((n) => images.has(certificates.image[n]));
    return { column: name, name: `${name}=${value}`, images, objects };
  }),
);

function showSlices() {
  byId("slices").hidden = !slices.length;
  const rows = slices.map((one) => [one.name, one.objects, one.images.size]);
  byId("slices-table").replaceChildren(table(["slice", "images", ...recallColumns()], recallRows(rows)));
  byId("worst-slices").replaceChildren(...data.tags.map(({ name }) => make("li", {}, ...worstOf(name))));
}

// As evaluation.sliced.worst_slices: fewest certified anywhere, among the slices that do not have few objects.
function worstOf(column) {
  const mine = slices.filter((one) => one.column === column);
  const few = mine.filter((one) => one.objects.length < data.controls.few);
  const recall = new Map(mine.map((one) => [one, share(one.objects, "anywhere").recall]));
  const [worst] = mine
    .filter((one) => !few.includes(one))
    .sort((a, b) => recall.get(a) - recall.get(b) || b.objects.length - a.objects.length);
  const left = few.length ? `${few.length} with fewer than ${data.controls.few} ${things} left out` : "";
  if (worst === undefined) return ["worst ", apart(column), `: not said, ${left}`];
  const words = `, ${percent(recall.get(worst))} % of ${countWords(worst.objects.length)} certified anywhere`;
  return ["worst ", apart(column), ": ", apart(worst.name), words, left && `; ${left}`];
}
