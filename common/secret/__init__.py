"""A secret sum (Bonawitz et al., 2017): what server and sites agree on, and its cryptography. It knows no method."""
