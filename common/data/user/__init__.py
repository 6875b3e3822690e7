"""User-defined data sets: arrays in a file, a function's, torchvision's and the Hugging Face Hub's."""
