"""Marked temporal point processes (MTPPs), one file per backbone, all on the contract of `base.MTPPModel`."""
