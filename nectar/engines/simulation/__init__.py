"""The Flower app as a dependable child: own SuperLink, own Ray, real outcome, no leftovers."""
