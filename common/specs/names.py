"""The names of what stands beside the arrays of an instruction or a reply, which both sides must agree on.

An evaluation can ride on an instruction to train: the site judges the weights that it is sent, which are those of the
round before, and then begins its phase.
"""

TAKEN = "taken"
"""In an instruction: the round of this site's work that the server last took; 0 for none."""

MEMORY_LOST = "memory-lost"
"""A figure beside a reply: the site has nothing left of what it remembered, and began afresh."""

OTHER_ROUNDS = "this site remembers round "
"""How a refusal begins of a site that has other versions than the one that the server names."""

DATA = "data"
"""In an instruction: the first 16 digits of the checksum of the data of which the sites have parts."""

OTHER_DATA = "the data are not those that the run began with"
"""How a refusal begins of whoever reads data of another checksum."""

WENT_BACK = "memory-went-back"
"""A figure beside a reply: the round that the server had last taken before, where it goes on from an earlier one."""

#: the record of an instruction in which the evaluation is asked for, and of a reply in which its figures, or the
#: reason why there are none, stand
EVALUATION = "evaluation"

#: the record of a reply in whose place the phase would have left something, with the reason why it has not
TRAINING_FAILED = "training-failed"

#: where a reason stands in such a record
REASON = "reason"

#: the seconds that are left of a round when its instruction goes out
SECONDS_LEFT = "seconds-left"
