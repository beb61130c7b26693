"""The papers' tables as studies that can be run again: on any data, at a budget, with seeds, resumable."""
