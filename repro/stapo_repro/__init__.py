"""Reproduction wing: tables, figures and the driver, from records alone."""
