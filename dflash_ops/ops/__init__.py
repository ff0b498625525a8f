"""Allocating Python functions, fakes and autograd formulas, one module an op."""
