"""The way to the Hub and back."""
