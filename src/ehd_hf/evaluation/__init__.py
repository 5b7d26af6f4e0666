"""How good models and explanations are, as rows."""
