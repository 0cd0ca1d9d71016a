// Search: titles and pages first, most of all those whose title has the words; single attributes of the Python API last.
var Scorer = {
  score: ([page, title, , , score]) => {
    const words = (new URLSearchParams(location.search).get("q") || "").toLowerCase().match(/[\w.]{3,}/g) || [];
    const found = words.filter((word) => title.toLowerCase().includes(word.replace(/s$/, ""))).length;
    return score + 8 * found - (page.startsWith("results/") ? 4 : 0) + (page.startsWith("reference/glossary") ? 4 : 0);
  },
  objNameMatch: 3, objPartialMatch: 1, objPrio: {0: 2, 1: 1, 2: 0}, objPrioDefault: 0,
  title: 25, partialTitle: 12, term: 5, partialTerm: 2,
};
