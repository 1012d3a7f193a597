"""Many runs: rows of the papers' tables, searches."""
