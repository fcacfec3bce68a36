"""Labels and pixels: where the samples come from, and who has what."""
