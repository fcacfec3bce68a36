"""Differential privacy: a filter between the two sides, its accounting, and which methods it covers."""
