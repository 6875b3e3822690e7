"""What a report says of the methods of which it is the same whatever their settings are."""

from __future__ import annotations

from nectar.report.facts.words import Facts

_WEIGHTS = "No training example left a device: weights travelled."
_SENT = "The trained weights of every device were sent, and are functions of private data."

#: by the method's name
PLAIN: dict[str, Facts] = {
    "central": Facts(
        "central training",
        (
            "This is not federated learning: the server trained on the union of the partitions, the bound that "
            "federations are measured against.",
        ),
        ("The data lay in one place.",),
        carries="nothing",
    ),
    "dense": Facts(
        "DENSE",
        (_WEIGHTS,),
        (
            _SENT,
            "The server made up images that these models take for each class; the record has some of them, which show "
            "what can be read from the weights.",
        ),
        carries="weights",
        pictures="images that the server made up for all the devices' models together",
    ),
    "fedavg": Facts(
        "FedAvg",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "feddyn": Facts(
        "FedDyn",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "fedgen": Facts(
        "FedGEN",
        (_WEIGHTS,),
        (
            _SENT,
            "Each device told its number of images of every class. From these and the last layers of the weights the "
            "server learned a generator of latents of each class, which every device received.",
        ),
        carries="weights",
    ),
    "fednova": Facts(
        "FedNova",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "fedprox": Facts(
        "FedProx",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "fedpvr": Facts(
        "FedPVR",
        ("No training example left a device: weights and control variates travelled.",),
        (
            "The trained weights of every device were sent, and what its control variate changed by: functions of "
            "private data.",
        ),
        carries="weights and control variates",
    ),
    "fedvae": Facts(
        "FedVAE",
        (
            "No training example left a device, and no decoder: weights of encoders and classifiers travelled.",
        ),
        (_SENT,),
        carries="weights",
    ),
    "local": Facts(
        "local training",
        (
            "No training example left a device: each device's weights travelled to the server, to be judged, and to no "
            "other device.",
            "A figure is the mean over the devices' own models.",
        ),
        (_SENT,),
        carries="weights",
    ),
    "lowrank": Facts(
        "low-rank updates",
        ("No training example left a device: factors of an update travelled.",),
        (
            "Two factors of each matrix of the update of every device were sent, and its vectors as they are: "
            "functions of private data.",
        ),
        carries="factors of an update",
    ),
    "masking": Facts(
        "random masking",
        ("No training example left a device: a part of an update travelled.",),
        (
            "A random part of the update of every device was sent, value by value, and is a function of private data.",
        ),
        carries="a part of the update",
    ),
    "moon": Facts(
        "MOON",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "scaffold": Facts(
        "SCAFFOLD",
        ("No training example left a device: weights and control variates travelled.",),
        (
            "The trained weights of every device were sent, and what its control variate changed by: functions of "
            "private data.",
        ),
        carries="weights and control variates",
    ),
    "server": Facts(
        "training on the server's own images",
        (
            "This is not federated learning: the server trained on its own labelled images, those of the validation "
            "split, and asked no site for anything.",
        ),
        ("Nothing left a site.",),
        carries="nothing",
    ),
    "topk": Facts(
        "top-k",
        ("No training example left a device: a part of an update travelled.",),
        (
            "The largest values of the update of every device were sent, with their places, and are functions of "
            "private data.",
        ),
        carries="a part of the update",
    ),
}
