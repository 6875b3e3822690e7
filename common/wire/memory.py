"""What server and device say to each other about what a site remembers between rounds."""

TAKEN = "taken"
"""In an instruction: the round of this site's work that the server last took; 0 for none."""

MEMORY_LOST = "memory-lost"
"""A figure beside a reply: the site has nothing left of what it remembered, and began afresh."""

OTHER_ROUNDS = "this site remembers round "
"""How a refusal begins of a site that has other versions than the one that the server names."""

WENT_BACK = "memory-went-back"
"""A figure beside a reply: the round that the server had last taken before, where it goes on from an earlier one."""
