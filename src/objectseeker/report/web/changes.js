// Another run or defense of the same objects: what was gained since, what was lost, under the chosen attack.

const before = data.before && new Certificates(data.before, (name) => byId(`column-before_${name}`).textContent);
let verdictsBefore = before && emptyVerdicts();

function changeOf(n, where) {
  const [then, now] = [verdictsBefore, verdicts].map((one) => one[where].certified[n]);
  return now === then ? "same" : now ? "gained" : "lost";
}

function showChanges() {
  byId("changes").hidden = before === null;
  if (before === null) return;
  byId("before-name").textContent = data.before.name;
  const rows = wheres.map((where) => {
    const changes = counted.map((n) => changeOf(n, where));
    const then = counted.reduce((sum, n) => sum + verdictsBefore[where].certified[n], 0);
    const link = (change) => {
      const number = changes.filter((one) => one === change).length;
      if (!number) return "0";
      return make("a", { href: "#images", click: () => chooseChange(change, where) }, String(number));
    };
    const recalls = [100 * (then / counted.length), share(counted, where).recall];
    return [`certified ${where}`, ...recalls.map((one) => percent(one)), link("gained"), link("lost")];
  });
  const { figures } = data.before;
  rows.push(
    ["AP50, undefended", percent(figures.undefended.ap50), percent(data.undefended.ap50), "", ""],
    ["AP50, defended", percent(figures.defended.ap50), percent(data.defended.ap50), "", ""],
    ["clean recall", percent(figures.defended.clean_recall), percent(data.defended.clean_recall), "", ""],
  );
  byId("changes-table").replaceChildren(table(["percent", "before", "now", "gained", "lost"], rows));
}

function chooseChange(change, where) {
  byId("filters").reset();
  byId("filter-change").value = change;
  setAttack({ where });
}
