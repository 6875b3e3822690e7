"""Folders of images: what is read, how it is decoded, what is held out."""
