"""Fair tuning: every method gets the same budget, is chosen on validation data, and is tested once on fresh seeds."""
