"""Results to look at: tables, plots, pictures and the report."""
