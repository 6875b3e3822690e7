"""The devices of a run in this machine's process and several more: the same messages, the same numbers, more cores."""
