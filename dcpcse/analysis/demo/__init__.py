"""A local page to type a sentence into, and see its nearest ones under several models beside each other."""
