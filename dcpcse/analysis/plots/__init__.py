"""Pictures for papers, a module each: `gather` reads its data, `draw` is pure, `KIND` is for the command."""
