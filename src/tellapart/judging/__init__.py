"""People judge captions: a blind comparison of two caption files in the browser (UNKT, Section 4.5 and Table 7)."""
