"""The partition schemes: each a frozen dataclass, a pure function of labels and a random generator."""
