"""Other formats and libraries, in and out."""
