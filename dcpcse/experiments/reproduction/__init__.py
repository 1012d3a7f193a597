"""Published rows as commands: what the papers' tables say, what it takes to get it again, and what comes out here."""
