"""A model and events in, answers out."""
