"""Tables, sequences, windows: what a user has. Knows no model."""
