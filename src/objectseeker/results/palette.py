"""The colors of every page that the package makes, in light and dark."""

PALETTE = """\
:root {
  color-scheme: light dark;
  --paper: light-dark(#ffffff, #14181c);
  --raised: light-dark(#f4f6f8, #1d2329);
  --ink: light-dark(#1b1f24, #e8ebee);
  --soft: light-dark(#55606b, #a9b3bd);
  --line: light-dark(#d0d6dc, #38414a);
  --link: light-dark(#00598c, #7cc4f2);
  --yes: light-dark(#006b4c, #4cc9a0);
  --no: light-dark(#a64400, #ff9b5a);
}
"""
