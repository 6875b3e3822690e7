"""What differential privacy costs: what was released, how far one example moves it, and the epsilon of it together.

All guarantees hold for real numbers: leaks by the last bits of floating-point noise (Mironov, 2012) are outside.
"""
