"""One frozen class a section: the only home of each default, range, meaning and symbol."""
