"""What can be known to go wrong before a federation is started, at the operator's and at a site."""
