"""Engines that run a federation: in this process, in several, on Ray, at a SuperLink."""
