"""What several areas use: each area may import this package, and no area imports another.

A module belongs here once a second area needs it. It has programs, inputs and comparisons, never
cases: each area decides what to ask and which oracle judges the answer.
"""
