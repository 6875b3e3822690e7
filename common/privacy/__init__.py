"""What differential privacy costs: what was released, how far one example moves it, and the epsilon of it together.

All is said of real numbers: what the last bits of floating-point noise may tell (Mironov, 2012) is outside of it.
"""
