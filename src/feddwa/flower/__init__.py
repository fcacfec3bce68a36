"""A real federation: every algorithm of this package over Flower, its halves unchanged (needs `feddwa[flower]`)."""
