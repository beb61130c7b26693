"""Captions that tell a set of pictures apart.

The package is not called `tell_apart`: a module of that name would hide the function `tellapart.tell_apart`.
"""
