"""Fakes and drivers that ship with the product, for its own tests and for those of applications."""
