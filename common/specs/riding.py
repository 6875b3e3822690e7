"""An evaluation that rides on an instruction to train: the names of its parts, which both sides must agree on.

The site judges the weights that it is sent, which are those of the round before, and then begins its phase.
"""

#: the record of an instruction in which the evaluation is asked for, and of a reply in which its figures, or the
#: reason why there are none, stand
EVALUATION = "evaluation"

#: the record of a reply in whose place the phase would have left something, with the reason why it has not
TRAINING_FAILED = "training-failed"

#: where a reason stands in such a record
REASON = "reason"

#: the seconds that are left of a round when its instruction goes out
SECONDS_LEFT = "seconds-left"
