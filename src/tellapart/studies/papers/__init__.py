"""One module per paper. Each defines `STUDIES`, a tuple of `Study`, and must not import torch (listing stays fast)."""
