"""Model folders: reading and writing them on disk, and downloading them from the Hub."""
