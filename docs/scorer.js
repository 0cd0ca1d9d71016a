// Search: titles and pages first, single attributes of the Python API last.
var Scorer = {
  score: (result) => result[4] - (result[0].startsWith("results/") ? 4 : 0) + (result[0].startsWith("reference/glossary") ? 4 : 0),
  objNameMatch: 3, objPartialMatch: 1, objPrio: {0: 2, 1: 1, 2: 0}, objPrioDefault: 0,
  title: 25, partialTitle: 12, term: 5, partialTerm: 2,
};
